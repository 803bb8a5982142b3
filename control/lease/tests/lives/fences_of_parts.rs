//! A failed release or cut on a resource whose leases survive the machine: the fenced part and the other parts.

use core::time::Duration;

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;
use Transport::NvmeTcp;

fn world() -> World {
    World::of_blocks(block_offer())
}

/// A resource on which no lease can reach the part of another lease.
fn separate() -> World {
    World::of_blocks(Offer {
        fence_scope: FenceScope::Separate,
        ..block_offer()
    })
}

/// A lease that was freed, and whose release does not end.
fn stuck(world: &mut World) -> BindingId {
    let binding_id = world.granted_blocks(NvmeTcp, 100, 0);
    world.free(binding_id.lease_id);
    let cut = world.cut_order();
    world.cut_ok(cut);
    assert_eq!(world.release_order().0, binding_id);
    world.report(Report::ReleaseProgress(binding_id));
    world.pass_ms(10_000);
    assert_eq!(world.phase(binding_id.lease_id), LeasePhase::Fenced);
    binding_id
}

fn fails_to_be_cut(world: &mut World) -> BindingId {
    let binding_id = world.granted_blocks(NvmeTcp, 100, 0);
    world.free(binding_id.lease_id);
    let cut = world.cut_order();
    world.report(Report::Cut(cut, Err(failed("unlink"))));
    binding_id
}

fn told(world: &mut World) -> Vec<LeaseId> {
    let ticket = world.operator(Request::FenceList);
    match world.answer(ticket) {
        Some(Ok(Reply::Fences(fences))) => fences.iter().map(|fence| fence.lease_id).collect(),
        other => panic!("{other:?}"),
    }
}

/// Whether the whole resource is fenced, whether parts are fenced, and the available amount.
fn state(world: &World) -> (bool, bool, u64) {
    let pool = world.table.availability().next().expect("a pool");
    (
        pool.fenced,
        pool.trouble.is_some() && !pool.fenced,
        pool.available / PAGE,
    )
}

/// The size of the fenced parts.
fn fenced_pages(world: &World) -> u64 {
    let pool = world.table.availability().next().expect("a pool");
    pool.fenced_part / PAGE
}

#[test]
fn a_stuck_release_leaves_the_pool_to_others() {
    let mut world = world();
    let binding_id = stuck(&mut world);
    assert_eq!(
        (state(&world), fenced_pages(&world)),
        ((false, true, 15), 1)
    );
    assert_eq!(told(&mut world), [binding_id.lease_id]);
    let unreleased: Vec<BindingId> = world
        .table
        .unreleased(binding_id.resource_id)
        .map(|it| it.0)
        .collect();
    assert_eq!(unreleased, [binding_id]);
    let other = world.granted_blocks(NvmeTcp, 100, 0);
    world.free(other.lease_id);
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.released();
    assert_eq!(state(&world), (false, true, 15));
    world.report(Report::Release(binding_id, Ok(Proof::default())));
    assert_eq!(
        (state(&world), told(&mut world)),
        ((false, false, 16), vec![])
    );
    assert_eq!(fenced_pages(&world), 0);
}

#[test]
fn a_remediation_clears_the_stuck_part_beside_leases_in_use() {
    let mut world = world();
    let using = world.granted_blocks(NvmeTcp, 100, 0);
    let binding_id = stuck(&mut world);
    let cleared = world.operator(Request::FenceClear(ARENA));
    let Order::Reset(_, leases) = world.order() else {
        panic!("a reset");
    };
    assert_eq!(
        leases.iter().map(|it| it.0).collect::<Vec<_>>(),
        [binding_id]
    );
    world.report(Report::Reset(ARENA, Ok(())));
    assert_eq!(world.answer(cleared), Some(&Ok(Reply::FenceCleared)));
    assert_eq!(state(&world), (false, false, 15));
    assert_eq!(world.phase(using.lease_id), LeasePhase::Active);
}

#[test]
fn a_failed_cut_beside_a_stuck_release_fences_it_all_and_is_what_is_told() {
    let mut world = world();
    let stuck = stuck(&mut world);
    let graver = fails_to_be_cut(&mut world);
    assert_eq!(
        (state(&world), told(&mut world)),
        ((true, false, 0), vec![graver.lease_id])
    );
    let refused = world.ask(Request::LeaseAlloc(blocks(10, 0)));
    assert_eq!(world.refusal(refused).error, LeaseError::Fenced);
    world.report(Report::Release(stuck, Ok(Proof::default())));
    assert_eq!(
        told(&mut world),
        [graver.lease_id],
        "clears its own part alone"
    );
    assert_eq!(state(&world), (true, false, 0));
}

#[test]
fn of_two_stuck_releases_each_clears_its_own_part() {
    let mut world = world();
    let (first, second) = (stuck(&mut world), stuck(&mut world));
    assert_eq!(
        (state(&world), told(&mut world)),
        ((false, true, 14), vec![first.lease_id])
    );
    world.report(Report::Release(first, Ok(Proof::default())));
    assert_eq!(
        (state(&world), told(&mut world)),
        ((false, true, 14), vec![second.lease_id])
    );
    world.report(Report::Release(second, Ok(Proof::default())));
    assert_eq!(
        (state(&world), told(&mut world)),
        ((false, false, 16), vec![])
    );
}

/// The crash came after the record of the lease was written, and before that of the graver fence.
#[test]
fn after_a_restart_parts_are_parts_and_a_failed_cut_is_all_of_it() {
    let run = EarlierRun {
        same_boot: true,
        wall_clock_trusted: true,
    };
    for graver in [false, true] {
        let mut before = world();
        let binding_id = stuck(&mut before);
        let fence = before.journal.iter().find_map(|change| match change {
            Change::PutFence(fence) => Some(fence.clone()),
            _ => None,
        });
        if graver {
            fails_to_be_cut(&mut before);
        }
        let mut after = world();
        for record in crate::restart::records(&before).into_values() {
            after.table.restore_lease(after.now, record, run);
        }
        after.table.restore_fence(after.now, fence.unwrap(), false);
        after.drain();
        let expected = if graver {
            (true, false, 0)
        } else {
            (false, true, 15)
        };
        assert_eq!(state(&after), expected);
        assert_eq!(after.phase(binding_id.lease_id), LeasePhase::Fenced);
    }
}

#[test]
fn where_parts_are_separate_a_failed_cut_leaves_the_rest_to_others() {
    let mut world = separate();
    let other = world.granted_blocks(NvmeTcp, 100, 0);
    let uncut = fails_to_be_cut(&mut world);
    assert_eq!(
        (state(&world), fenced_pages(&world), told(&mut world)),
        ((false, true, 14), 1, vec![uncut.lease_id])
    );
    let reachable = |world: &World| -> Vec<LeaseId> {
        let uncut = world.table.uncut();
        uncut.map(|(id, _)| id).collect()
    };
    assert!(
        reachable(&world).contains(&uncut.lease_id),
        "nothing proves its end"
    );
    // Other leases come and go. A late release changes nothing: the lease was never cut.
    world.granted_blocks(NvmeTcp, 100, 0);
    world.free(other.lease_id);
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.released();
    world.report(Report::Release(uncut, Ok(Proof::default())));
    assert_eq!(
        (state(&world), told(&mut world)),
        ((false, true, 13), vec![uncut.lease_id])
    );
    let after = crate::restart::restart_into(&world, separate(), true);
    assert_eq!(
        state(&after),
        (false, true, 13),
        "the next run keeps it too"
    );
    let cleared = world.operator(Request::FenceClear(ARENA));
    let Order::Reset(_, leases) = world.order() else {
        panic!("a reset");
    };
    assert_eq!(leases.iter().map(|it| it.0).collect::<Vec<_>>(), [uncut]);
    world.report(Report::Reset(ARENA, Ok(())));
    assert_eq!(world.answer(cleared), Some(&Ok(Reply::FenceCleared)));
    assert_eq!(
        (state(&world), told(&mut world)),
        ((false, false, 13), vec![])
    );
}

#[test]
fn where_parts_are_separate_a_failed_cut_and_a_stuck_release_fence_two_parts() {
    let mut world = separate();
    let stuck = stuck(&mut world);
    let uncut = fails_to_be_cut(&mut world);
    assert_eq!(
        (state(&world), fenced_pages(&world)),
        ((false, true, 14), 2)
    );
    world.report(Report::Release(stuck, Ok(Proof::default())));
    assert_eq!(fenced_pages(&world), 1);
    assert_eq!(told(&mut world), [uncut.lease_id]);
}

/// The fence of a lease that is not on record.
fn stray(lease: u128, is_cut: bool) -> FenceRecord {
    FenceRecord {
        resource_id: ARENA,
        resource_type: ResourceType::Block,
        lease_id: LeaseId(lease),
        since_unix_ms: 1,
        reason: failed("unlink"),
        by_release: is_cut,
    }
}

/// It is unknown which part such objects reach. If they were cut, they reach none.
#[test]
fn where_parts_are_separate_objects_of_no_lease_on_record_fence_it_all_unless_they_were_cut() {
    for (is_cut, expected) in [(true, (false, true, 16)), (false, (true, false, 0))] {
        let mut world = separate();
        world
            .table
            .restore_stray(world.now, stray(99, is_cut), None);
        assert_eq!(state(&world), expected);
        world.drain();
        world.report(Report::Reset(ARENA, Ok(())));
        world.orders.clear();
        fails_to_be_cut(&mut world);
        assert_eq!(state(&world), (false, true, 15), "cleared, and fenced anew");
    }
}

/// A store refuses every lease that would lie where it still has a stray.
#[test]
fn no_lease_gets_the_place_of_a_stray_until_its_fence_is_cleared() {
    let mut world = separate();
    let place = Extent {
        offset: 0,
        length: 4 * PAGE,
    };
    let part = Some(Placement::Stretch(place));
    world
        .table
        .restore_stray(world.now, stray(99, true), part.clone());
    assert_eq!(world.table.check(), []);
    assert_eq!(
        (state(&world), fenced_pages(&world)),
        ((false, true, 12), 4)
    );
    world.drain();
    assert!(matches!(world.order(), Order::Reset(ARENA, _)));
    world.report(Report::Reset(ARENA, Err(failed("still held"))));
    let other = world.granted_blocks(NvmeTcp, 100, 0);
    let where_it_is = |world: &World, of: BindingId| {
        let mut holders = world.table.holders(ARENA);
        let (_, placement) = holders.find(|(it, _)| *it == of).expect("a part");
        placement.extent().offset
    };
    assert_eq!(where_it_is(&world, other), place.end());
    assert_eq!(world.table.check(), []);
    let cleared = world.operator(Request::FenceClear(ARENA));
    world.order();
    world.report(Report::Reset(ARENA, Ok(())));
    assert_eq!(world.answer(cleared), Some(&Ok(Reply::FenceCleared)));
    let next = world.granted_blocks(NvmeTcp, 100, 0);
    assert_eq!(where_it_is(&world, next), 0);
    assert_eq!(
        (state(&world), world.table.check()),
        ((false, false, 11), vec![])
    );
}

/// The journal is right about a part that a lease on record has.
#[test]
fn a_lease_keeps_its_part_beside_a_stray_that_is_in_it() {
    let mut world = separate();
    let holder = world.granted_blocks(NvmeTcp, 100, 0);
    let part = world.table.holders(ARENA).find(|it| it.0 == holder);
    let part = part.map(|(_, placement)| placement.clone());
    world.table.restore_stray(world.now, stray(99, true), part);
    assert_eq!(fenced_pages(&world), 0);
    world.drain();
    world.order();
    world.report(Report::Reset(ARENA, Ok(())));
    assert_eq!(
        (state(&world), world.table.check()),
        ((false, false, 15), vec![])
    );
}

/// One remediation looks for the objects of both leases.
#[test]
fn objects_of_two_leases_that_are_not_on_record_have_one_remediation_and_one_time_limit() {
    let mut world = separate();
    for lease in [98, 99] {
        world
            .table
            .restore_stray(world.now, stray(lease, false), None);
        world.now.boot = world.now.boot + Duration::from_millis(1);
    }
    assert_eq!(world.table.check(), []);
    world.drain();
    assert!(matches!(world.order(), Order::Reset(ARENA, _)));
    world.report(Report::Reset(ARENA, Ok(())));
    assert_eq!(state(&world), (false, false, 16));
    assert_eq!(world.orders.len(), 0);
}

/// A report does not say which remediation it is of, so there is only one at a time.
#[test]
fn a_remediation_that_took_too_long_clears_nothing_that_was_fenced_since_it_began() {
    let mut world = separate();
    fails_to_be_cut(&mut world);
    let first = world.operator(Request::FenceClear(ARENA));
    world.order();
    world.pass_ms(30_000);
    let refusal = world.refusal(first).clone();
    assert!(refusal.message.contains("goes on"), "{refusal}");
    let uncut = fails_to_be_cut(&mut world);
    let second = world.operator(Request::FenceClear(ARENA));
    assert_eq!(world.refusal(second).error, LeaseError::ResourceBusy);
    world.orders.clear();
    world.report(Report::Reset(ARENA, Ok(())));
    assert_eq!(fenced_pages(&world), 2);
    assert_eq!(world.phase(uncut.lease_id), LeasePhase::Fenced);
    let third = world.operator(Request::FenceClear(ARENA));
    let Order::Reset(_, leases) = world.order() else {
        panic!("no remediation");
    };
    assert_eq!(leases.len(), 2);
    world.report(Report::Reset(ARENA, Ok(())));
    assert_eq!(world.answer(third), Some(&Ok(Reply::FenceCleared)));
}

#[test]
fn a_remediation_that_took_too_long_clears_the_fence_when_it_succeeds() {
    let mut world = separate();
    fails_to_be_cut(&mut world);
    world.operator(Request::FenceClear(ARENA));
    world.order();
    world.pass_ms(600_000);
    world.report(Report::Reset(ARENA, Ok(())));
    assert_eq!(state(&world), (false, false, 16));
}
