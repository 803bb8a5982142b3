//! Leases of CPU cores: whole cores of one lease, or time of CPUs that leases share.

use std::collections::{BTreeMap, BTreeSet};

use fabricbios_lease::*;
use fabricbios_wire::*;
use proptest::prelude::*;

use crate::{
    classes::{cores, of_cpu},
    restart::restart_into,
    support::*,
};

use CpuIsolationClass::{BestEffort, StrictIsolated, WholeCore};

const CPUS: u64 = 8;

fn world() -> World {
    let offer = cores(classes(WholeCore, None));
    World::of(ResourceType::Cpu, Policy::default(), offer)
}

fn asked(count: u64, class: CpuIsolationClass) -> LeaseAllocRequest {
    let isolation = Some(class);
    let terms = CpuTerms {
        isolation,
        ..CpuTerms::default()
    };
    of_cpu(count, terms)
}

fn groups(numbers: &[u32]) -> Placement {
    Placement::Cores(numbers.into())
}

/// The available amount of each class.
fn available(world: &World) -> [u64; 3] {
    let told = world.table.availability().next().expect("the offer");
    let by_class: BTreeMap<u8, u64> = told.available_by_class.into_iter().collect();
    assert_eq!(told.available, by_class[&(WholeCore as u8)], "the default");
    [BestEffort, WholeCore, StrictIsolated].map(|class| by_class[&(class as u8)])
}

#[test]
fn exclusive_leases_and_sharing_leases_leave_each_other_what_they_have() {
    let mut world = world();
    assert_eq!(available(&world), [8, 4, 2]);
    let (shares, time) = granted(&mut world, asked(5, BestEffort));
    assert_eq!(time, Placement::Amount(5));
    assert_eq!(available(&world), [3, 1, 1]);
    let ticket = world.ask(Request::LeaseAlloc(asked(2, WholeCore)));
    let refusal = world.refusal(ticket);
    let told = (refusal.error, refusal.class);
    assert_eq!(
        told,
        (LeaseError::CapacityExceeded, RefusalClass::Transient)
    );
    let (alone, its) = granted(&mut world, asked(1, WholeCore));
    assert_eq!(its, groups(&[0]));
    assert_eq!(available(&world), [1, 0, 0]);
    let ticket = world.ask(Request::LeaseAlloc(asked(2, BestEffort)));
    assert_eq!(world.refusal(ticket).class, RefusalClass::Transient);
    ended(&mut world, shares);
    ended(&mut world, alone);
    assert_eq!(available(&world), [8, 4, 2]);
    for (count, class) in [(9, BestEffort), (5, WholeCore), (3, StrictIsolated)] {
        let ticket = world.ask(Request::LeaseAlloc(asked(count, class)));
        let refusal = world.refusal(ticket);
        assert_eq!(refusal.class, RefusalClass::Permanent, "{class}: {refusal}");
    }
    let ticket = world.ask(Request::LeaseAlloc(asked(0, WholeCore)));
    assert_eq!(world.refusal(ticket).error, LeaseError::InvalidArgs);
}

#[test]
fn strict_leases_stay_in_one_node_and_whole_cores_where_they_can() {
    let mut world = world();
    assert_eq!(granted(&mut world, asked(1, WholeCore)).1, groups(&[0]));
    let strict = granted(&mut world, asked(2, StrictIsolated)).1;
    assert_eq!(strict, groups(&[2, 3]));
    assert_eq!(available(&world), [2, 1, 1]);
    let mut world = self::world();
    assert_eq!(
        granted(&mut world, asked(3, WholeCore)).1,
        groups(&[0, 1, 2])
    );
}

/// A lease of cores has no contents, no keys and no queue pairs.
#[test]
fn grace_rotation_and_binding_are_refused() {
    let mut world = world();
    let ticket = world.ask(Request::LeaseAlloc(LeaseAllocRequest {
        grace_secs: 5,
        ..asked(1, WholeCore)
    }));
    let refusal = world.refusal(ticket);
    assert_eq!(refusal.error, LeaseError::InvalidArgs);
    assert!(refusal.message.contains("no contents"), "{refusal}");
    let (binding_id, _) = granted(&mut world, asked(1, WholeCore));
    let requests = [
        (world.rotate(binding_id.lease_id, 0), "no key to rotate"),
        (world.rebind(binding_id.lease_id), "queue pair"),
    ];
    for (ticket, word) in requests {
        let refusal = world.refusal(ticket);
        assert_eq!(refusal.error, LeaseError::InvalidArgs);
        assert!(refusal.message.contains(word), "{refusal}");
    }
    // The refusals are the same while the lease has no binding: waiting does not help.
    let mut after = restart_into(&world, self::world(), true);
    let ticket = after.rotate(binding_id.lease_id, 0);
    assert_eq!(after.refusal(ticket).error, LeaseError::InvalidArgs);
}

#[test]
fn a_release_or_cut_that_failed_keeps_its_cores_and_its_time_from_others() {
    let (alone, shares) = ((WholeCore, [4, 2, 2]), (BestEffort, [6, 3, 2]));
    for ((class, left), is_cut) in [
        (alone, true),
        (alone, false),
        (shares, true),
        (shares, false),
    ] {
        let mut world = world();
        let (binding_id, part) = granted(&mut world, asked(2, class));
        world.free(binding_id.lease_id);
        let cut = world.cut_order();
        if is_cut {
            world.cut_ok(cut);
            world.release_order();
            world.report(Report::Release(binding_id, Err(failed("cgroup.kill"))));
        } else {
            world.report(Report::Cut(cut, Err(failed("cgroup.kill"))));
        }
        let told = world.table.availability().next().expect("the offer");
        assert!(told.trouble.is_some() && !told.fenced);
        assert_eq!((told.fenced_part, available(&world)), (2, left));
        let next = restart_into(&world, self::world(), true);
        assert_eq!(available(&next), left, "the next run keeps them too");
        world.operator(Request::FenceClear(ARENA));
        assert_eq!(world.order(), Order::Reset(ARENA, vec![(binding_id, part)]));
        world.report(Report::Reset(ARENA, Ok(())));
        assert_eq!(available(&world), [8, 4, 2]);
    }
}

/// Another program made the kernel give the cores of a lease to other processes too.
#[test]
fn a_lease_that_lost_its_cores_ends_fenced_and_the_others_go_on() {
    let mut world = world();
    let (lost, _) = granted(&mut world, asked(1, WholeCore));
    let (other, _) = granted(&mut world, asked(1, WholeCore));
    let (ends, _) = granted(&mut world, asked(1, BestEffort));
    world.free(ends.lease_id);
    world.cut_order();
    let condition = Condition::Lost {
        why: "root invalid".into(),
        leases: [lost, ends].map(|it| it.lease_id).into(),
    };
    world.report(Report::Condition(ResourceId(9), condition.clone()));
    assert_eq!(
        world.phase(lost.lease_id),
        LeasePhase::Active,
        "another resource's"
    );
    world.report(Report::Condition(ARENA, condition.clone()));
    assert_eq!(
        world.orders,
        [Order::Cut(lost, Linger::None)],
        "its processes are ended"
    );
    assert_eq!(world.phase(lost.lease_id), LeasePhase::Fenced);
    assert_eq!(world.phase(other.lease_id), LeasePhase::Active);
    let fences = world.table.fences();
    assert!(fences[0].reason.contains("root invalid"), "{fences:?}");
    world.orders.clear();
    world.cut_ok(ends);
    world.released();
    world.report(Report::Condition(ARENA, condition));
    assert_eq!(
        (world.table.fences(), available(&world)),
        (fences, [4, 2, 2])
    );
    assert_eq!(world.table.check(), []);
}

/// Fewer CPUs are online than in the last run.
#[test]
fn leases_whose_cores_are_gone_are_given_up() {
    let mut before = world();
    let (stays, _) = granted(&mut before, asked(1, WholeCore));
    let (goes, _) = granted(&mut before, asked(2, StrictIsolated));
    let mut offer = cores(classes(WholeCore, None));
    let AllocationMode::Cores { groups } = &mut offer.allocation_mode else {
        panic!("{offer:?}")
    };
    groups.truncate(3);
    let fewer = World::of(ResourceType::Cpu, Policy::default(), offer);
    let mut after = restart_into(&before, fewer, true);
    assert_eq!(after.phase(goes.lease_id), LeasePhase::Revoked);
    assert_eq!(after.phase(stays.lease_id), LeasePhase::Active);
    assert_eq!(available(&after), [4, 2, 1]);
}

#[test]
fn cores_that_one_tenant_holds_are_counted_in_every_class() {
    let policy = Policy {
        tenant_capacity_max: [(ResourceType::Cpu, 3)].into(),
        ..Policy::default()
    };
    let mut world = World::of(ResourceType::Cpu, policy, cores(classes(WholeCore, None)));
    granted(&mut world, asked(1, WholeCore));
    granted(&mut world, asked(2, BestEffort));
    let ticket = world.ask(Request::LeaseAlloc(asked(1, BestEffort)));
    let refusal = world.refusal(ticket);
    assert_eq!(refusal.class, RefusalClass::Policy);
    assert!(refusal.message.contains("cpu-per-tenant-max"), "{refusal}");
}

#[test]
fn a_lease_that_ended_before_a_reboot_takes_no_cores_from_one_granted_after_it() {
    let mut world = world();
    let (ended_before, part) = granted(&mut world, asked(1, WholeCore));
    // When the machine goes down, the lease is cut and its release is not done.
    world.free(ended_before.lease_id);
    let cut = world.cut_order();
    world.cut_ok(cut);
    let mut rebooted = restart_into(&world, self::world(), false);
    let (lives, its) = granted(&mut rebooted, asked(1, WholeCore));
    assert_eq!(its, part);
    let mut after = restart_into(&rebooted, self::world(), true);
    assert_eq!(after.query(lives.lease_id).phase, LeasePhase::Active);
    let holders = after.table.holders(ARENA);
    let holders: Vec<LeaseId> = holders.map(|(binding_id, _)| binding_id.lease_id).collect();
    assert_eq!(holders, [lives.lease_id]);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(u64, CpuIsolationClass),
    Free(usize),
    /// The report of the oldest order: success (true) or failure.
    Report(bool),
    Pass,
    Clear,
    Restart(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let class = prop::sample::select(CpuIsolationClass::ALL);
    prop_oneof![
        4 => (0u64..6, class).prop_map(|(count, class)| Step::Ask(count, class)),
        3 => (0usize..8).prop_map(Step::Free),
        8 => prop::bool::weighted(0.85).prop_map(Step::Report),
        1 => Just(Step::Pass),
        1 => Just(Step::Clear),
        1 => any::<bool>().prop_map(Step::Restart),
    ]
}

/// Checks: a core has at most one exclusive lease, the other cores suffice for all sharing leases, and a lease keeps
/// its part.
fn check(world: &World, known: &mut BTreeMap<LeaseId, Placement>) {
    assert_eq!(world.table.check(), []);
    let (mut shared, mut exclusive) = (0, BTreeSet::new());
    for (binding_id, placement) in world.table.holders(ARENA) {
        let id = binding_id.lease_id;
        assert_eq!(
            known.entry(id).or_insert_with(|| placement.clone()),
            placement
        );
        match placement {
            Placement::Amount(cpus) => shared += cpus,
            Placement::Cores(numbers) => {
                let news = |number: &u32| exclusive.insert(*number);
                assert!(numbers.iter().all(news), "{id}: {numbers:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    let open = CPUS - 2 * exclusive.len() as u64;
    assert!(shared <= open, "{shared} of {open}");
    let told = world.table.availability().next().expect("the offer");
    assert!(!told.fenced, "cores are separate");
    assert_eq!(available(world)[0], open - shared);
}

proptest! {
    #[test]
    fn no_core_is_anybody_elses(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = world();
        let mut known = BTreeMap::new();
        for step in steps {
            match step {
                Step::Ask(count, class) => {
                    let most = available(&world)[usize::from(class as u8)];
                    let ticket = world.ask(Request::LeaseAlloc(asked(count, class)));
                    let refused = matches!(world.answer(ticket), Some(Err(_)));
                    prop_assert_eq!(refused, count == 0 || count > most, "{} of {}", count, most);
                }
                Step::Free(n) => {
                    let holders = world.table.holders(ARENA);
                    let ids: Vec<LeaseId> = holders.map(|(binding_id, _)| binding_id.lease_id).collect();
                    if let Some(id) = ids.get(n) {
                        world.free(*id);
                    }
                }
                Step::Report(well) if !world.orders.is_empty() => {
                    let order = world.orders.remove(0);
                    world.report(outcome(ResourceType::Cpu, order, well));
                }
                Step::Report(_) => {}
                Step::Pass => world.pass_ms(4_000),
                Step::Clear => drop(world.operator(Request::FenceClear(ARENA))),
                Step::Restart(same_boot) => {
                    world = restart_into(&world, self::world(), same_boot);
                    prop_assert!(same_boot || world.orders.is_empty());
                }
            }
            check(&world, &mut known);
        }
    }
}
