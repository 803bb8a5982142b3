//! What is told of changes to those who keep a copy of the list of leases.

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;

fn since(world: &World, from: LogPosition) -> Changes {
    let changes = world.table.changes_since(from, 1_000);
    changes.expect("the log goes back so far")
}

#[test]
fn each_change_is_told_once_with_what_the_lease_is_now() {
    let mut world = World::new();
    let start = world.table.log_end();
    let id = world.granted(1, 10, 0).lease_id;
    let all = since(&world, start);
    let [told] = &all.leases[..] else {
        panic!("{all:?}")
    };
    let now = world.query(id);
    assert_eq!((told.lease_id, told.phase), (id, LeasePhase::Active));
    assert_eq!(
        (told.resource_id, told.capacity, told.expires_at_unix_ms),
        (now.resource_id, now.capacity, now.expires_at_unix_ms)
    );
    assert_eq!((&*all.gone, all.more), (&[][..], false));
    let nothing = since(&world, all.next);
    assert_eq!((nothing.leases, nothing.gone), (vec![], vec![]));

    // Whoever reads late gets the end alone.
    world.free(id);
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.released();
    for from in [all.next, start] {
        let over = since(&world, from);
        assert_eq!((&*over.leases, &*over.gone), (&[][..], &[id][..]));
    }
}

#[test]
fn a_lease_that_ends_by_a_timer_alone_is_told() {
    let mut world = World::new();
    let id = world.granted(1, 10, 5).lease_id;
    let granted = world.table.log_end();
    world.pass_ms(10_000);
    let cut = world.cut_order();
    world.cut_ok(cut);
    let told = since(&world, granted);
    let phases: Vec<_> = { told.leases.iter() }
        .map(|it| (it.lease_id, it.phase))
        .collect();
    assert_eq!(phases, [(id, LeasePhase::Grace)]);
}
