//! HELLO, and the life of sessions.

use std::time::Duration;

use fabricbios_wire::{DataHeader, DataOp, DataStatus, HelloReply};

use crate::world::{Back, World, nonce, seal};

fn session_of(back: &Back) -> u32 {
    match back {
        Back::Status(DataStatus::Ok, payload) => HelloReply::read(payload).unwrap().session,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_same_hello_gets_the_same_session_until_that_is_used() {
    let world = World::new();
    let hello = world.hello_frame(42, 0);
    let session = session_of(&world.send(&hello));
    assert_eq!(session_of(&world.send(&hello)), session);
    assert_eq!(world.status(&world.read(session, 1, 0, 1)), DataStatus::Ok);
    assert_ne!(session_of(&world.send(&hello)), session);
    assert_eq!(
        world.status(&world.read(session, 2, 0, 1)),
        DataStatus::Ok,
        "untouched"
    );
}

#[test]
fn a_session_that_is_given_up_takes_nothing_any_more() {
    let world = World::new();
    let old = world.session();
    assert_eq!(world.status(&world.write(old, 1, 0, b"a")), DataStatus::Ok);
    let delayed = world.write(old, 2, 0, b"delayed");
    let new = session_of(&world.send(&world.hello_frame(43, old)));
    assert!(new > old);
    assert_eq!(world.status(&delayed), DataStatus::TooOld);
    assert_eq!(world.status(&world.write(new, 1, 0, b"b")), DataStatus::Ok);
    assert_eq!((world.writes(), world.bytes()[0]), (2, b'b'));
}

#[test]
fn a_session_that_nobody_opened_is_not_known() {
    let world = World::new();
    let session = world.session();
    for other in [0, session + 1, u32::MAX] {
        assert_eq!(
            world.status(&world.read(other, 1, 0, 1)),
            DataStatus::TooOld
        );
    }
}

#[test]
fn sessions_do_not_share_counters() {
    let world = World::new();
    let (one, two) = (world.session(), world.session());
    assert_eq!(world.status(&world.write(one, 1, 0, b"1")), DataStatus::Ok);
    assert_eq!(world.status(&world.write(two, 1, 1, b"2")), DataStatus::Ok);
    assert_eq!(&world.bytes()[..2], b"12");
}

#[test]
fn programs_that_ask_keep_their_sessions_and_the_seventeenth_waits() {
    let world = World::new();
    for _ in 0..16 {
        let session = world.session();
        assert_eq!(world.status(&world.read(session, 1, 0, 1)), DataStatus::Ok);
    }
    let hello = world.hello_frame(99, 0);
    assert_eq!(world.status(&hello), DataStatus::Busy);
    world.pass(Duration::from_secs(10));
    assert_eq!(world.status(&world.read(1, 2, 0, 1)), DataStatus::Ok);
    let session = session_of(&world.send(&hello));
    assert_eq!(world.status(&world.read(session, 1, 0, 1)), DataStatus::Ok);
    let left = (1..=16).filter(|number| {
        let again = world.status(&world.read(*number, 3, 0, 1));
        again != DataStatus::TooOld
    });
    assert_eq!(left.count(), 15, "one gave way");
    assert_eq!(
        world.status(&world.read(1, 4, 0, 1)),
        DataStatus::Ok,
        "not the one that asked"
    );
}

#[test]
fn old_hellos_sent_again_close_no_session_in_use() {
    let world = World::new();
    let recorded: Vec<_> = (100..200)
        .map(|nonce| world.hello_frame(nonce, 0))
        .collect();
    let session = world.session();
    assert_eq!(world.status(&world.read(session, 1, 0, 1)), DataStatus::Ok);
    world.pass(Duration::from_secs(60));
    for hello in &recorded {
        world.send(hello);
    }
    assert_eq!(world.status(&world.read(session, 2, 0, 1)), DataStatus::Ok);
}

#[test]
fn a_request_that_makes_no_sense_does_not_count_as_use() {
    let world = World::new();
    let hello = world.hello_frame(42, 0);
    let session = session_of(&world.send(&hello));
    let nonsense = DataHeader {
        length: 0,
        ..world.header(DataOp::Read, nonce(session, 1), 0, 1)
    };
    assert_eq!(world.status(&seal(nonsense, &[])), DataStatus::Invalid);
    assert_eq!(session_of(&world.send(&hello)), session);
}
