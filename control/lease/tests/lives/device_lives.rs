//! Lives of GPUs: random lives compared with a slow and simple table, and one long life.

use std::collections::BTreeMap;

use fabricbios_lease::*;
use fabricbios_wire::*;
use proptest::prelude::*;

use crate::{
    device_classes::{GIB, Gpu, Mode, SESSIONS, WHOLE, amounts, asked, world},
    devices::{available, free},
    restart::restart_into,
    support::*,
};

use GpuExclusivityClass::{DeviceExclusive, SessionExclusive, Shared};

/// What the model knows of a lease: its amounts, and whether it has the device alone.
#[derive(Clone, Debug)]
struct Has {
    gib: u64,
    slices: u64,
    alone: bool,
}

/// The slow and simple table of one GPU: a list of its leases.
fn decides(
    of: Gpu,
    mode: Mode,
    held: &BTreeMap<LeaseId, Has>,
    (gib, slices, class): (u64, Option<u16>, Option<GpuExclusivityClass>),
) -> Result<Has, LeaseError> {
    let all = u64::from(of.slices);
    let default = if mode == Mode::Exclusive {
        DeviceExclusive
    } else {
        Shared
    };
    let alone = class.unwrap_or(default) != Shared;
    if gib == 0 || (mode == Mode::Exclusive && !alone) {
        return Err(LeaseError::InvalidArgs);
    }
    if gib > of.gib || slices.is_some_and(|it| it > of.slices) {
        return Err(LeaseError::CapacityExceeded);
    }
    if alone {
        return match (held.is_empty(), mode) {
            (true, _) => Ok(Has {
                gib: of.gib,
                slices: all,
                alone,
            }),
            (false, Mode::Exclusive) => Err(LeaseError::CapacityExceeded),
            (false, Mode::Fractional) => Err(LeaseError::ResourceBusy),
        };
    }
    if held.values().any(|it| it.alone) {
        return Err(LeaseError::ResourceBusy);
    }
    let share = (gib * all).div_ceil(of.gib);
    let slices = slices.map_or(share, u64::from);
    let has = |amount: fn(&Has) -> u64| held.values().map(amount).sum::<u64>();
    let fits = gib + has(|it| it.gib) <= of.gib
        && slices + has(|it| it.slices) <= all
        && has(|_| 1) < SESSIONS;
    match fits {
        true => Ok(Has { gib, slices, alone }),
        false => Err(LeaseError::CapacityExceeded),
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(u64, Option<u16>, Option<GpuExclusivityClass>),
    Free(usize),
    /// The report of the oldest order: success (true) or failure.
    Report(bool),
    Pass,
    Clear,
    Restart(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let class = prop_oneof![
        3 => Just(None),
        3 => Just(Some(Shared)),
        1 => Just(Some(SessionExclusive)),
        1 => Just(Some(DeviceExclusive)),
    ];
    let gib = prop_oneof![8 => 1..30u64, 1 => Just(0), 1 => 30..90u64];
    let slices = prop::option::weighted(0.4, 1..9u16);
    prop_oneof![
        6 => (gib, slices, class).prop_map(|(gib, slices, class)| Step::Ask(gib, slices, class)),
        3 => (0usize..8).prop_map(Step::Free),
        8 => prop::bool::weighted(0.85).prop_map(Step::Report),
        1 => Just(Step::Pass),
        1 => Just(Step::Clear),
        1 => any::<bool>().prop_map(Step::Restart),
    ]
}

/// Whether the lease is over and not fenced: its part is being released.
fn is_over(world: &mut World, id: LeaseId) -> bool {
    use LeasePhase::{Expired, Freed, Revoked};
    matches!(world.phase(id), Expired | Freed | Revoked)
}

/// Checks that every lease with a part is known and has the amounts of the model.
fn check(world: &World, known: &mut BTreeMap<LeaseId, Has>) {
    assert_eq!(world.table.check(), []);
    let holders = world.table.holders(ARENA);
    let holders: BTreeMap<LeaseId, Vec<u64>> = holders
        .map(|(binding_id, placement)| (binding_id.lease_id, amounts(placement)))
        .collect();
    known.retain(|id, _| holders.contains_key(id));
    let expected = known.iter().map(|(id, has)| {
        let sessions = if has.alone { SESSIONS } else { 1 };
        (*id, vec![has.gib * GIB, has.slices, sessions])
    });
    assert_eq!(holders, expected.collect());
    for (number, capacity) in [WHOLE.gib * GIB, WHOLE.slices.into(), SESSIONS]
        .into_iter()
        .enumerate()
    {
        let taken: u64 = holders.values().map(|it| it[number]).sum();
        assert_eq!(taken + free(world)[number], capacity);
    }
}

proptest! {
    #[test]
    fn a_device_is_one_leases_or_shared_within_its_amounts(
        mode in prop::sample::select(vec![Mode::Fractional, Mode::Fractional, Mode::Exclusive]),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = world(WHOLE, mode);
        let mut known = BTreeMap::new();
        for step in steps {
            match step {
                Step::Ask(gib, slices, class) => {
                    let mut decided = decides(WHOLE, mode, &known, (gib, slices, class));
                    let mut stays = known.clone();
                    stays.retain(|id, _| !is_over(&mut world, *id));
                    if decided.is_err() && decides(WHOLE, mode, &stays, (gib, slices, class)).is_ok() {
                        decided = Err(LeaseError::ResourceBusy);
                    }
                    let ticket = world.ask(Request::LeaseAlloc(asked(gib, slices, class)));
                    match (world.answer(ticket), decided) {
                        (None, Ok(has)) => drop(known.insert(LeaseId(world.next.into()), has)),
                        (Some(Err(refusal)), Err(error)) => prop_assert_eq!(refusal.error, error),
                        other => prop_assert!(false, "{:?}", other),
                    }
                }
                Step::Free(n) => {
                    if let Some(id) = known.keys().nth(n) {
                        world.free(*id);
                    }
                }
                Step::Report(well) if !world.orders.is_empty() => {
                    let order = world.orders.remove(0);
                    world.report(outcome(ResourceType::Gpu, order, well));
                }
                Step::Report(_) => {}
                Step::Pass => world.pass_ms(4_000),
                Step::Clear => drop(world.operator(Request::FenceClear(ARENA))),
                Step::Restart(same_boot) => {
                    world = restart_into(&world, self::world(WHOLE, mode), same_boot);
                }
            }
            check(&world, &mut known);
        }
    }
}

#[test]
fn after_a_hundred_thousand_leases_all_of_the_device_is_there() {
    let mut world = world(WHOLE, Mode::Fractional);
    let start = (free(&world), available(&world));
    let (mut held, mut grants, mut number) = (Vec::new(), 0, 0usize);
    while grants < 100_000 {
        number += 1;
        // Each class with each size and each number of slices: the three numbers of choices have no common factor.
        let class = [
            None,
            Some(Shared),
            Some(SessionExclusive),
            None,
            Some(DeviceExclusive),
        ][number % 5];
        let slices = [None, Some(1), None, Some(2), None, Some(3), Some(7)][number % 7];
        let gib = [1, 5, 9, 17, 3, 29, 80, 2, 40, 11, 7][number % 11];
        let ticket = world.ask(Request::LeaseAlloc(asked(gib, slices, class)));
        match world.answer(ticket) {
            Some(_) if held.is_empty() => panic!("a free device is refused: {:?}", world.answers),
            Some(_) => ended(&mut world, held.swap_remove(number % held.len())),
            None => {
                let order = world.bind_order();
                let bound = Ok(Binding::plain(ResourceType::Gpu));
                world.report(Report::Bind(order.binding_id, bound));
                held.push(order.binding_id);
                grants += 1;
            }
        }
        world.answers.clear();
        world.journal.clear();
        world.notes.clear();
        world.said.clear();
    }
    for binding_id in held {
        ended(&mut world, binding_id);
    }
    assert_eq!((free(&world), available(&world)), start);
    assert_eq!(world.table.check(), []);
}
