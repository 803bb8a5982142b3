//! A made-up kind, on the terms of CPU cores: units in sets, alone or shared, a part that can be fenced, leases
//! that stay until a reboot, no transport.

use std::collections::{BTreeMap, BTreeSet};

use fabricbios_lease::*;
use fabricbios_wire::*;
use proptest::prelude::*;

use crate::{
    restart::{records, restart_into},
    support::*,
};

const NUMBERS: [u32; 5] = [1, 2, 3, 5, 8];
const SHARERS: u32 = 2;

fn units() -> Offer {
    Offer {
        capacity: NUMBERS.len() as u64,
        align: 1,
        transports: vec![],
        durability: Durability::Boot,
        fence_scope: FenceScope::Part,
        allocation_mode: AllocationMode::Units {
            numbers: NUMBERS.to_vec(),
            sharers: SHARERS,
        },
        classes: Some(classes(CpuIsolationClass::WholeCore, None)),
        ..offer(ARENA, 0)
    }
}

fn world() -> World {
    World::of(ResourceType::Cpu, Policy::default(), units())
}

fn asked(count: u64, shared: bool) -> LeaseAllocRequest {
    let class = match shared {
        true => CpuIsolationClass::BestEffort,
        false => CpuIsolationClass::WholeCore,
    };
    LeaseAllocRequest {
        terms: LeaseTerms::Cpu(CpuTerms {
            isolation: Some(class),
            ..CpuTerms::default()
        }),
        ..LeaseAllocRequest::new(ResourceType::Cpu, count, 10)
    }
}

fn of(numbers: &[u32], shared: bool) -> Placement {
    Placement::Units {
        numbers: numbers.into(),
        shared,
    }
}

fn restart(before: &World, same_boot: bool) -> World {
    restart_into(before, world(), same_boot)
}

fn placed(world: &World) -> BTreeMap<LeaseId, Placement> {
    let holders = world.table.holders(ARENA);
    holders
        .map(|(binding_id, it)| (binding_id.lease_id, it.clone()))
        .collect()
}

#[test]
fn units_are_had_alone_or_shared_and_told_without_a_transport() {
    let mut world = world();
    let (alone, cores) = granted(&mut world, asked(2, false));
    assert_eq!(cores, of(&[1, 2], false));
    let (_, shared) = granted(&mut world, asked(2, true));
    assert_eq!(shared, of(&[3, 5], true));
    let (_, shared) = granted(&mut world, asked(1, true));
    assert_eq!(
        shared,
        of(&[3], true),
        "beside the other, not on one that is free"
    );
    assert_eq!(world.available(), 1);
    let over = world.ask(Request::LeaseAlloc(asked(2, false)));
    let refusal = world.refusal(over);
    let what = (refusal.error, refusal.class);
    assert_eq!(
        what,
        (LeaseError::CapacityExceeded, RefusalClass::Transient)
    );
    let never = world.ask(Request::LeaseAlloc(asked(6, true)));
    assert_eq!(world.refusal(never).class, RefusalClass::Permanent);
    let record = &records(&world)[&alone.lease_id];
    assert_eq!(record.placement, Some(cores));
    let info = world.query(alone.lease_id);
    let classes = (info.effective.transport, info.effective.cpu_isolation);
    assert_eq!(classes, (None, Some(CpuIsolationClass::WholeCore)));
    assert_eq!((info.capacity, info.generation), (2, Generation(1)));
    let answer = Ok(Reply::Lease(info));
    let query = encode_request(1, 2, &Request::LeaseQuery(alone.lease_id));
    let (asked, _) = decode_request(&query).unwrap();
    let frame = encode_answer(&asked, &answer);
    assert_eq!(decode_answer(&asked, &frame).unwrap(), answer);
}

#[test]
fn a_lease_without_a_transport_has_a_life_like_any_other() {
    let mut world = world();
    let named = LeaseAllocRequest {
        transport: Transport::Udp,
        ..asked(1, false)
    };
    let ticket = world.ask(Request::LeaseAlloc(named));
    let refusal = world.refusal(ticket);
    assert_eq!(refusal.error, LeaseError::InvalidArgs);
    assert!(
        refusal.message.contains("udp is not offered"),
        "{refusal:?}"
    );
    let (binding_id, _) = granted(&mut world, asked(5, false));
    for ticket in [
        world.rebind(binding_id.lease_id),
        world.rotate(binding_id.lease_id, 0),
    ] {
        assert_eq!(world.refusal(ticket).error, LeaseError::InvalidArgs);
    }
    world.pass_ms(9_000);
    let renewed = world.renew(binding_id.lease_id);
    assert_eq!(world.lease(renewed).remaining_ms, 10_000);
    world.pass_ms(10_000);
    assert_eq!(world.cut_order(), binding_id);
    world.cut_ok(binding_id);
    assert_eq!(world.phase(binding_id.lease_id), LeasePhase::Expired);
    assert_eq!(world.available(), 0, "not before they are clean");
    world.released();
    assert_eq!(world.available(), 5);
}

#[test]
fn a_lease_without_a_key_does_not_promise_to_change_it() {
    let mut world = world();
    let refused = world.ask(Request::LeaseAlloc(LeaseAllocRequest {
        rotate_on_renew: true,
        ..asked(1, false)
    }));
    let refusal = world.refusal(refused);
    assert_eq!(refusal.error, LeaseError::InvalidArgs);
    assert!(refusal.message.contains("needs a key"), "{refusal:?}");
}

#[test]
fn a_release_that_failed_fences_its_own_units() {
    let mut world = world();
    let (binding_id, cores) = granted(&mut world, asked(2, false));
    world.free(binding_id.lease_id);
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.release_order();
    world.report(Report::Release(binding_id, Err(failed("rmdir"))));
    let told = world.table.availability().next().unwrap();
    assert!(told.trouble.is_some() && !told.fenced);
    assert_eq!((told.fenced_part, told.available), (2, 3));
    let (_, others) = granted(&mut world, asked(3, false));
    assert_eq!(others, of(&[3, 5, 8], false));
    let cleared = world.operator(Request::FenceClear(ARENA));
    assert_eq!(
        world.order(),
        Order::Reset(ARENA, vec![(binding_id, cores.clone())])
    );
    world.report(Report::Reset(ARENA, Ok(())));
    assert_eq!(world.answer(cleared), Some(&Ok(Reply::FenceCleared)));
    assert_eq!(granted(&mut world, asked(2, false)).1, cores);
}

/// Two leases share a unit, and one of them leaves it unclean.
#[test]
fn a_fenced_unit_that_is_shared_goes_to_nobody_else() {
    let mut world = world();
    let (ends, unit) = granted(&mut world, asked(1, true));
    let (lives, same) = granted(&mut world, asked(1, true));
    assert_eq!((&unit, &same), (&of(&[1], true), &of(&[1], true)));
    world.free(ends.lease_id);
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.release_order();
    world.report(Report::Release(ends, Err(failed("rmdir"))));
    assert_eq!(world.available(), 4);
    world.free(lives.lease_id);
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.released();
    assert_eq!(granted(&mut world, asked(1, true)).1, of(&[2], true));

    let mut after = restart(&world, true);
    after.ask(Request::LeaseAlloc(asked(1, true)));
    let binds = after.orders.iter().filter_map(|order| match order {
        Order::Bind(order) if !order.adopts => Some(order.placement.clone()),
        _ => None,
    });
    assert_eq!(binds.collect::<Vec<_>>(), [of(&[2], true)]);

    let cleared = world.operator(Request::FenceClear(ARENA));
    world.order();
    world.report(Report::Reset(ARENA, Ok(())));
    assert_eq!(world.answer(cleared), Some(&Ok(Reply::FenceCleared)));
    assert_eq!(
        granted(&mut world, asked(4, false)).1,
        of(&[1, 3, 5, 8], false)
    );
}

#[test]
fn a_cut_that_failed_fences_all_units() {
    let mut world = world();
    let (binding_id, _) = granted(&mut world, asked(1, false));
    world.free(binding_id.lease_id);
    let cut = world.cut_order();
    world.report(Report::Cut(cut, Err(failed("cgroup.kill"))));
    let refused = world.ask(Request::LeaseAlloc(asked(1, true)));
    assert_eq!(world.refusal(refused).error, LeaseError::Fenced);
}

#[test]
fn the_next_run_takes_up_what_lives_and_ends_what_does_not_each_by_itself() {
    let mut before = world();
    let (lives, its) = granted(&mut before, asked(2, true));
    let (ends, cores) = granted(&mut before, asked(1, false));
    before.free(ends.lease_id);
    let cut = before.cut_order();
    before.cut_ok(cut);
    assert_eq!(before.phase(ends.lease_id), LeasePhase::Freed);
    before.pass_ms(4_000);
    let mut after = restart(&before, true);
    let bind = after.orders.iter().find_map(|order| match order {
        Order::Bind(bind) => Some(bind.clone()),
        _ => None,
    });
    let bind = bind.unwrap();
    assert_eq!(
        (bind.binding_id.lease_id, &bind.placement),
        (lives.lease_id, &its)
    );
    assert!(bind.adopts, "what was made for it is there");
    after
        .orders
        .retain(|order| !matches!(order, Order::Bind(_)));
    assert_eq!(
        after.available(),
        2,
        "also its units that is over are not clean yet"
    );
    after.report(Report::Bind(
        bind.binding_id,
        Ok(Binding::plain(ResourceType::Cpu)),
    ));
    let info = after.query(lives.lease_id);
    assert_eq!((info.phase, info.remaining_ms), (LeasePhase::Active, 6_000));
    assert_eq!(after.cut_order(), ends);
    after.cut_ok(ends);
    assert_eq!(after.order(), Order::Release(ends, cores));
    after.report(Report::Release(ends, Ok(Proof::default())));
    assert_eq!(after.available(), 3);
    assert_eq!(after.phase(ends.lease_id), LeasePhase::Freed);
    // The deadline passed while the daemon was down.
    before.now.boot = before.now.boot + core::time::Duration::from_secs(60);
    let mut late = restart(&before, true);
    late.orders.retain(
        |order| matches!(order, Order::Cut(binding_id, _) if binding_id.lease_id == lives.lease_id),
    );
    let cut = late.cut_order();
    late.cut_ok(cut);
    assert_eq!(late.phase(lives.lease_id), LeasePhase::Expired);
}

#[test]
fn after_a_reboot_they_are_over_and_nothing_is_left_to_do() {
    let mut before = world();
    let (lives, _) = granted(&mut before, asked(2, false));
    let mut after = restart(&before, false);
    assert_eq!(after.orders, []);
    assert_eq!(after.phase(lives.lease_id), LeasePhase::Revoked);
    assert_eq!(after.available(), 5);
}

#[test]
fn units_that_are_not_offered_any_more_are_given_up() {
    let mut before = world();
    let (binding_id, _) = granted(&mut before, asked(5, false));
    let mut fewer = World::of(
        ResourceType::Cpu,
        Policy::default(),
        Offer {
            allocation_mode: AllocationMode::Units {
                numbers: vec![1, 2],
                sharers: SHARERS,
            },
            capacity: 2,
            ..units()
        },
    );
    (fewer.now, fewer.next) = (before.now, before.next);
    let run = EarlierRun {
        same_boot: true,
        wall_clock_trusted: true,
    };
    let record = records(&before).remove(&binding_id.lease_id).unwrap();
    fewer.table.restore_lease(fewer.now, record, run);
    fewer.drain();
    let displaced = |note: &Note| matches!(note, Note::Displaced { lease_id, .. } if *lease_id == binding_id.lease_id);
    assert!(fewer.notes.iter().any(displaced), "{:?}", fewer.notes);
    assert_eq!((fewer.orders.len(), fewer.available()), (0, 2));
}

/// Actions on units.
#[derive(Clone, Copy, Debug)]
enum Step {
    Ask {
        count: u64,
        shared: bool,
    },
    Free(usize),
    /// The oldest order comes back, well or not.
    Report {
        well: bool,
    },
    Pass,
    Clear,
    Restart {
        same_boot: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u64..4, any::<bool>()).prop_map(|(count, shared)| Step::Ask { count, shared }),
        3 => (0usize..8).prop_map(Step::Free),
        8 => prop::bool::weighted(0.85).prop_map(|well| Step::Report { well }),
        1 => Just(Step::Pass),
        1 => Just(Step::Clear),
        1 => any::<bool>().prop_map(|same_boot| Step::Restart { same_boot }),
    ]
}

/// Each unit has one exclusive lease or up to the allowed number of sharing leases, the availability is the number of
/// free units, and a lease always keeps the same units.
fn check(world: &World, known: &mut BTreeMap<LeaseId, Placement>) {
    let holders = placed(world);
    for (id, placement) in &holders {
        assert_eq!(
            known.entry(*id).or_insert_with(|| placement.clone()),
            placement,
            "{id}"
        );
    }
    let mut used = BTreeSet::new();
    for number in NUMBERS {
        let on = holders.values().filter_map(|placement| match placement {
            Placement::Units { numbers, shared } => numbers.contains(&number).then_some(*shared),
            other => panic!("{other:?}"),
        });
        let on: Vec<bool> = on.collect();
        let alone = on.iter().any(|shared| !shared);
        assert!(!alone || on.len() == 1, "unit {number}: {holders:?}");
        assert!(on.len() <= SHARERS as usize, "unit {number}: {holders:?}");
        if !on.is_empty() {
            used.insert(number);
        }
    }
    let told = world.table.availability().next().expect("the units");
    if !told.fenced {
        assert_eq!(
            told.available,
            (NUMBERS.len() - used.len()) as u64,
            "{holders:?}"
        );
    }
}

proptest! {
    #[test]
    fn no_unit_is_anybody_elses(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = world();
        let mut known = BTreeMap::new();
        for step in steps {
            match step {
                Step::Ask { count, shared } => {
                    world.ask(Request::LeaseAlloc(asked(count, shared)));
                }
                Step::Free(n) => {
                    let ids: Vec<LeaseId> = placed(&world).into_keys().collect();
                    if let Some(id) = ids.get(n) {
                        world.free(*id);
                    }
                }
                Step::Report { well } if !world.orders.is_empty() => {
                    let order = world.orders.remove(0);
                    world.report(outcome(ResourceType::Cpu, order, well));
                }
                Step::Report { .. } => {}
                Step::Pass => world.pass_ms(4_000),
                Step::Clear => drop(world.operator(Request::FenceClear(ARENA))),
                Step::Restart { same_boot } => {
                    world = restart(&world, same_boot);
                    prop_assert!(same_boot || world.orders.is_empty());
                }
            }
            check(&world, &mut known);
        }
    }
}
