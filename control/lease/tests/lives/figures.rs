//! How many leases are in each state, and for how long.

use std::time::Duration;

use fabricbios_lease::*;

use crate::support::*;

fn of(world: &World, state: State) -> StateFigures {
    let all = world.table.figures(world.now.boot);
    let found = all.into_iter().find(|it| it.state == state);
    found.expect("every state has figures")
}

#[test]
fn a_cut_that_takes_long_shows_before_it_fences_and_its_time_is_counted() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    assert_eq!(of(&world, State::Active).leases, 1);
    assert_eq!(of(&world, State::Active).above_bound, None);
    world.pass_ms(10_000);
    // No thread has begun it yet.
    assert_eq!(world.order().lease_id(), Some(binding_id.lease_id));
    world.pass_ms(1_000);
    let cutting = of(&world, State::Cutting);
    assert_eq!((cutting.leases, cutting.above_bound), (1, Some(0)));
    world.pass(Duration::from_nanos(1));
    assert_eq!(of(&world, State::Cutting).above_bound, Some(1));
    assert_eq!(of(&world, State::Active).stays.sum, Duration::from_secs(10));
    world.cut_ok(binding_id);
    let cutting = of(&world, State::Cutting);
    assert_eq!((cutting.leases, cutting.above_bound), (0, Some(0)));
    let took = Duration::from_nanos(1_000_000_001);
    assert_eq!((cutting.stays.count, cutting.stays.sum), (1, took));
    world.released();
    for state in [State::Active, State::Cutting, State::Releasing] {
        let it = of(&world, state);
        assert_eq!((it.leases, it.stays.count), (0, 1), "{state:?}");
    }
}

#[test]
fn a_fenced_lease_is_counted_until_it_is_cleared() {
    let mut world = World::new();
    let binding_id = world.granted(1, 10, 0);
    world.pass_ms(10_000);
    world.cut_order();
    world.report(Report::Cut(binding_id, Err(failed("cut"))));
    let fenced = of(&world, State::Fenced);
    assert_eq!((fenced.leases, fenced.above_bound), (1, None));
    assert_eq!(of(&world, State::Cutting).leases, 0);
}
