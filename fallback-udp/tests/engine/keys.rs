//! Two keys work for a while.

use fabricbios_wire::{DataOp, DataStatus};

use crate::world::{Back, World, key, nonce, seal_with};

#[test]
fn both_keys_work_on_the_same_sessions_and_each_answers_for_itself() {
    let mut world = World::new();
    let session = world.session();
    world.keys.rotate(key(1));
    for (counter, first) in [(1, 0), (2, 1)] {
        let write = world.header(DataOp::Write, nonce(session, counter), 0, 1);
        let frame = seal_with(&key(first), write, b"k");
        let back = world.send_as(&key(first), &frame);
        assert_eq!(back, Back::Status(DataStatus::Ok, vec![]));
    }
    let other = world.header(DataOp::Ping, 1, 0, 0);
    assert_eq!(
        world.send(&seal_with(&key(2), other, &[])),
        Back::Unauthenticated
    );
}

#[test]
fn a_retired_key_is_dead() {
    let mut world = World::new();
    let session = world.session();
    world.keys.rotate(key(1));
    assert!(world.keys.retire().is_some());
    assert_eq!(
        world.send(&world.write(session, 1, 0, b"x")),
        Back::Unauthenticated
    );
    assert_eq!(world.writes(), 0);
    assert!(world.keys.retire().is_none());
}
