//! Memory that leases leave, and memory that comes back.

use super::*;

#[test]
fn a_shared_lease_wipes_its_own_memory_beside_its_neighbour() {
    let world = World::new();
    let [one, two] = [part(1), part(2)];
    world.bound(&one);
    world.bound(&two);
    let _leaves = world.filled(lease_id(1));
    let mut stays = world.session(lease_id(2)).unwrap();
    world.cut(&one);
    let cleaned = world.release(&one).unwrap().to_string();
    assert!(cleaned.contains("overwritten by its worker"), "{cleaned}");
    assert!(!world.has_pattern());
    stays
        .ask(&GpuRequest::MemAlloc { bytes: MIB }, &[])
        .unwrap();
    let too_much = stays.ask(&GpuRequest::MemAlloc { bytes: 8 * MIB }, &[]);
    assert_eq!(too_much.unwrap_err().error, LeaseError::CapacityExceeded);
    world.end(&two);
}

/// The tenant uses all queues of the session. The node closes the session in order nevertheless.
#[test]
fn a_shared_lease_with_all_queues_in_use_is_wiped() {
    let world = World::new();
    let [one, two] = [part(1), part(2)];
    world.bound(&one);
    world.bound(&two);
    let _first = world.filled(lease_id(1));
    let _others: Vec<Session> = (1..)
        .map_while(|_| world.session(lease_id(1)).ok())
        .collect();
    world.end(&one);
    assert!(!world.has_pattern());
}

/// A killed worker does not disturb its neighbours: the device is still leased, and wiped after the last of their
/// leases.
#[test]
fn a_worker_that_was_killed_leaves_a_shared_device_open() {
    let world = World::new();
    let [one, two] = [part(1), part(2)];
    world.bound(&one);
    world.bound(&two);
    let _leaves = world.filled(lease_id(1));
    let mut stays = world.session(lease_id(2)).unwrap();
    signal_worker(&world, lease_id(1), Signal::SIGSTOP);
    world.end(&one);
    assert!(world.has_pattern());
    stays
        .ask(&GpuRequest::MemAlloc { bytes: MIB }, &[])
        .unwrap();
    // A later lease is a neighbour too.
    let three = part(3);
    world.bound(&three);
    world.end(&two);
    let mut comes = world.session(lease_id(3)).unwrap();
    comes
        .ask(&GpuRequest::MemAlloc { bytes: 8 * MIB }, &[])
        .unwrap();
    world.end(&three);
    assert!(!world.has_pattern());
    world.bound(&whole(4));
}

/// The daemon may die between the end of the last lease and the wipe.
#[test]
fn bytes_that_the_last_lease_left_are_wiped_before_an_exclusive_one() {
    let world = World::new();
    let [one, two] = [part(1), part(2)];
    world.bound(&one);
    let neighbour = part(5);
    world.bound(&neighbour);
    let _leaves = world.filled(lease_id(1));
    signal_worker(&world, lease_id(1), Signal::SIGSTOP);
    world.end(&one);
    let placement = neighbour.placement.clone();
    world.cut(&neighbour);
    world
        .store
        .forget(neighbour.binding_id, &placement)
        .unwrap();
    assert!(world.has_pattern());
    let knobs = &world.machine.lab.directory;
    let half = (MEMORY / 2).to_string();
    knobs.set(Knob::ShortScrub, &half).unwrap();
    let error = world.store.prepare(&whole(3), &|| ()).unwrap_err();
    assert!(error.detail.contains("could be wiped"), "{error}");
    // A shared lease cannot read any of these bytes.
    world.bound(&two);
    knobs.set(Knob::ShortScrub, "0").unwrap();
    world.end(&two);
    assert!(!world.has_pattern());
    world.store.prepare(&whole(3), &|| ()).unwrap();
    world.bound(&whole(3));
}

/// A world whose first lease has filled the memory of its device. The driver does not return it until the test says so.
fn with_lingering_memory() -> (World, BindOrder, Session) {
    let world = World::new();
    let lease = whole(1);
    world.bound_beside_another(&lease);
    let leaves = world.filled(lease_id(1));
    let knobs = &world.machine.lab.directory;
    knobs.set(Knob::Lingering, "3600000").unwrap();
    (world, lease, leaves)
}

/// The driver returns the memory after the wipe, long after the end of the process.
#[test]
fn memory_that_comes_back_after_the_wipe_is_wiped_before_the_next_lease() {
    let (world, lease, _leaves) = with_lingering_memory();
    let knobs = &world.machine.lab.directory;
    world.end(&lease);
    assert!(world.has_pattern());
    knobs.set(Knob::Lingering, "1").unwrap();
    world.settle();
    assert!(world.has_pattern());
    world.prepared(&whole(2)).unwrap();
    assert!(!world.has_pattern());
}

/// The memory comes back after the wipe and after the look before the next lease.
#[test]
fn memory_that_comes_back_beside_a_grant_refuses_it_once() {
    let (world, lease, _leaves) = with_lingering_memory();
    let knobs = &world.machine.lab.directory;
    world.end(&lease);
    let next = whole(2);
    world.store.prepare(&next, &|| ()).unwrap();
    knobs.set(Knob::Lingering, "1").unwrap();
    world.settle();
    let refused = world.provider.bind(&next).unwrap_err();
    assert!(matches!(refused, BindError::Failed(why) if why.detail.contains("came back")));
    assert!(world.has_pattern());
    world.prepared(&next).unwrap();
    assert!(!world.has_pattern());
}

#[test]
fn memory_that_comes_back_during_a_wipe_is_wiped_too() {
    let (world, lease, _leaves) = with_lingering_memory();
    let knobs = &world.machine.lab.directory;
    world.cut(&lease);
    world.write_pattern_at_the_end();
    let passes = Cell::new(0);
    let progress = || {
        if world.has_pattern_at_the_end() {
            return;
        }
        passes.set(passes.get() + 1);
        match passes.get() {
            1 => world.write_pattern_at_the_end(),
            // A wipe has two passes; the second ends here.
            2 => knobs.set(Knob::Lingering, "1").unwrap(),
            _ => {}
        }
    };
    let placement = lease.placement.clone();
    let released = world
        .provider
        .release(lease.binding_id, placement, &progress);
    released.unwrap();
    assert!(passes.get() >= 2);
    assert!(!world.has_pattern());
}

/// The session of one lease dies beside a neighbour's session, before anybody ends the lease.
#[test]
fn the_memory_of_a_session_that_died_is_read_by_nobody() {
    let world = World::new();
    let [one, two] = [part(1), part(2)];
    world.bound(&one);
    world.bound(&two);
    let mut died = world.filled(lease_id(1));
    kill_worker(&world, lease_id(1), &mut died);
    assert!(world.has_pattern());
    // The stand-in allocates at the lowest free address.
    world.settle();
    let three = part(3);
    world.bound(&three);
    let mut comes = world.session(lease_id(3)).unwrap();
    comes
        .ask(&GpuRequest::MemAlloc { bytes: 4 * MIB }, &[])
        .unwrap();
    assert!(!world.has_pattern());
    for lease in [&one, &two, &three] {
        world.cut(lease);
        world.release(lease).unwrap();
    }
}
