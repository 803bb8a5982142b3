//! Intents, the use of a lease that a tenant states: kept and reported, never enforced. Also the memory that many
//! leases leave behind.

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::{
    classes::{cores, of_cpu},
    restart::{records, restart_into},
    support::*,
};

fn intent() -> LeaseIntent {
    LeaseIntent {
        kv_cache: Some(KvCacheIntent {
            tier: KvCacheTier::Warm,
            block_bytes: 4096,
        }),
        affinities: vec![Affinity {
            category: 3,
            strength: 2,
            target_type: 4,
            target: b"rack 7".to_vec(),
        }],
    }
}

fn world() -> World {
    let offer = cores(classes(CpuIsolationClass::WholeCore, None));
    World::of(ResourceType::Cpu, Policy::default(), offer)
}

fn asked() -> LeaseAllocRequest {
    LeaseAllocRequest {
        intent: intent(),
        ..of_cpu(1, CpuTerms::default())
    }
}

#[test]
fn an_intent_is_told_and_logged_and_survives_a_restart_but_not_the_end() {
    let mut world = world();
    let ticket = world.ask(Request::LeaseAlloc(asked()));
    let binding_id = world.bind_order().binding_id;
    let bound = Ok(Binding::plain(ResourceType::Cpu));
    world.report(Report::Bind(binding_id, bound));
    assert_eq!(world.lease(ticket).intent.as_deref(), Some(&intent()));
    let id = binding_id.lease_id;
    assert_eq!(world.query(id).intent.as_deref(), Some(&intent()));
    let logged = world.notes.iter().find_map(|note| match note {
        Note::Granted { intent, .. } => Some(intent.as_deref()),
        _ => None,
    });
    assert_eq!(logged, Some(Some(&intent())));

    let mut after = restart_into(&world, self::world(), true);
    assert_eq!(after.query(id).intent.as_deref(), Some(&intent()));

    ended(&mut world, binding_id);
    assert_eq!(world.query(id).intent, None);
    assert_eq!(records(&world)[&id].intent, None);
}

#[test]
fn no_intent_is_none_and_a_list_has_none() {
    let mut world = world();
    let (said, _) = granted(&mut world, asked());
    let (silent, _) = granted(&mut world, of_cpu(1, CpuTerms::default()));
    assert_eq!(world.query(silent.lease_id).intent, None);
    let ticket = world.ask(Request::LeaseList {
        after: LeaseId(0),
        ended: false,
    });
    let Some(Ok(Reply::Leases(page))) = world.answer(ticket) else {
        panic!("{:?}", world.answer(ticket))
    };
    assert_eq!(page.leases.len(), 2);
    assert!(page.leases.iter().all(|info| info.intent.is_none()));
    assert!(world.query(said.lease_id).intent.is_some());
}

#[test]
fn nothing_grows_over_a_hundred_thousand_leases() {
    let policy = Policy {
        ended_max: 20,
        ..Policy::default()
    };
    let offer = cores(classes(CpuIsolationClass::WholeCore, None));
    let mut world = World::of(ResourceType::Cpu, policy, offer);
    let mut size_at = Vec::new();
    for round in 0..100_000u32 {
        let class = CpuIsolationClass::ALL[round as usize % 3];
        let isolation = Some(class);
        let terms = CpuTerms {
            isolation,
            ..CpuTerms::default()
        };
        let wanted = asked().with_terms(terms);
        let (binding_id, _) = granted(&mut world, wanted);
        ended(&mut world, binding_id);
        // The driver has taken these effects by now.
        world.answers.clear();
        world.notes.clear();
        world.journal.clear();
        world.said.clear();
        // The log of changes is full by the first of these.
        if round == 29_999 || round == 99_999 {
            size_at.push(format!("{:?}", world.table).len());
        }
    }
    assert_eq!(world.table.records(), 20);
    assert_eq!(world.available(), 4);
    // Ids and times have more digits by then.
    assert!(size_at[1] < size_at[0] + size_at[0] / 10, "{size_at:?}");
}
