//! A failed release on a resource whose leases survive the machine: the fenced part and the rest.

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;
use Transport::NvmeTcp;

fn world() -> World {
    World::of_blocks(block_offer())
}

/// A lease that was freed, and whose release does not come back.
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

/// Whether the whole is fenced, whether parts are, and the available amount.
fn state(world: &World) -> (bool, bool, u64) {
    let pool = world.table.availability().next().expect("a pool");
    (pool.fenced, pool.partly_fenced, pool.available / PAGE)
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
    world.report(Report::Release(binding_id, Ok(())));
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
    world.report(Report::Release(stuck, Ok(())));
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
    world.report(Report::Release(first, Ok(())));
    assert_eq!(
        (state(&world), told(&mut world)),
        ((false, true, 14), vec![second.lease_id])
    );
    world.report(Report::Release(second, Ok(())));
    assert_eq!(
        (state(&world), told(&mut world)),
        ((false, false, 16), vec![])
    );
}

/// The crash came before the graver fence was written down, and after its lease was.
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
