//! Repeated requests, other requests with the same counter, and old ones.

use std::cell::RefCell;

use fabricbios_fallback_udp::{Rate, ReplayWindow, SessionState};
use fabricbios_wire::{DataOp, DataStatus};

use crate::world::{Back, ELSEWHERE, HOME, LENGTH, World, nonce, seal};

#[test]
fn a_write_that_comes_again_is_answered_and_not_done_again() {
    let world = World::new();
    let session = world.session();
    let first = world.write(session, 1, 0, b"first");
    assert_eq!(world.status(&first), DataStatus::Ok);
    assert_eq!(
        world.status(&world.write(session, 2, 0, b"later")),
        DataStatus::Ok
    );
    for source in [HOME, ELSEWHERE] {
        world.source.set(source);
        assert_eq!(world.status(&first), DataStatus::Ok);
    }
    assert_eq!((world.writes(), &world.bytes()[..5]), (2, &b"later"[..]));
}

#[test]
fn a_read_that_comes_again_has_the_bytes_that_are_there_now() {
    let world = World::new();
    let session = world.session();
    let read = world.read(session, 1, 0, 3);
    assert_eq!(world.send(&read), Back::Status(DataStatus::Ok, vec![0; 3]));
    assert_eq!(
        world.status(&world.write(session, 2, 0, b"new")),
        DataStatus::Ok
    );
    assert_eq!(
        world.send(&read),
        Back::Status(DataStatus::Ok, b"new".to_vec())
    );
}

#[test]
fn a_recorded_read_cannot_be_sent_from_another_address() {
    let world = World::new();
    let session = world.session();
    let read = world.read(session, 1, 0, 1000);
    assert_eq!(world.status(&read), DataStatus::Ok);
    world.source.set(ELSEWHERE);
    assert_eq!(world.status(&read), DataStatus::Replay);
    // The client has moved: its next request shows its new address, and from then on its retries from there are
    // answered.
    assert_eq!(world.status(&world.read(session, 2, 0, 1)), DataStatus::Ok);
    assert_eq!(world.status(&read), DataStatus::Ok);
    world.source.set(HOME);
    assert_eq!(world.status(&read), DataStatus::Replay);
}

#[test]
fn an_older_request_that_arrives_late_does_not_move_the_session() {
    let world = World::new();
    let session = world.session();
    assert_eq!(world.status(&world.read(session, 2, 0, 1)), DataStatus::Ok);
    world.source.set(ELSEWHERE);
    assert_eq!(world.status(&world.read(session, 1, 0, 1)), DataStatus::Ok);
    assert_eq!(
        world.status(&world.read(session, 2, 0, 1)),
        DataStatus::Replay
    );
}

#[test]
fn what_failed_fails_again_also_when_it_would_work_by_now() {
    let world = World::new();
    let session = world.session();
    let outside = world.read(session, 1, LENGTH, 1);
    let broken = world.write(session, 2, 0, b"x");
    world.lease.memory.is_broken.set(true);
    for _again in 0..2 {
        assert_eq!(world.status(&outside), DataStatus::Range);
        assert_eq!(world.status(&broken), DataStatus::Io);
        world.lease.memory.is_broken.set(false);
    }
    assert_eq!(world.writes(), 0);
}

#[test]
fn a_nonce_is_not_used_for_two_requests() {
    let world = World::new();
    let session = world.session();
    assert_eq!(
        world.status(&world.write(session, 1, 0, b"one")),
        DataStatus::Ok
    );
    for other in [
        world.write(session, 1, 0, b"two"),
        world.write(session, 1, 1, b"one"),
        world.read(session, 1, 0, 3),
    ] {
        assert_eq!(world.status(&other), DataStatus::Replay);
    }
    assert_eq!(world.writes(), 1);
}

#[test]
fn behind_the_window_nothing_is_known() {
    let world = World::new();
    let session = world.session();
    let first = world.write(session, 1, 0, b"a");
    let never_seen = world.write(session, 2, 0, b"delayed");
    assert_eq!(world.status(&first), DataStatus::Ok);
    assert_eq!(
        world.status(&world.read(session, 128, 0, 1)),
        DataStatus::Ok
    );
    assert_eq!(
        world.status(&first),
        DataStatus::Ok,
        "the last of the window"
    );
    assert_eq!(
        world.status(&world.read(session, 130, 0, 1)),
        DataStatus::Ok
    );
    assert_eq!(world.status(&first), DataStatus::TooOld);
    assert_eq!(world.status(&never_seen), DataStatus::TooOld);
    assert_eq!(world.writes(), 1);
}

#[test]
fn the_last_counter_of_a_session_works() {
    let world = World::new();
    let session = world.session();
    assert_eq!(
        world.status(&world.write(session, u32::MAX, 0, b"z")),
        DataStatus::Ok
    );
    assert_eq!(
        world.status(&world.write(session, 1, 0, b"a")),
        DataStatus::TooOld
    );
}

#[test]
fn an_answer_is_never_taken_for_a_request() {
    let world = World::new();
    let session = world.session();
    let ping = seal(world.header(DataOp::Ping, nonce(session, 1), 0, 0), &[]);
    for request in [
        ping,
        world.write(session, 1, 0, b"x"),
        world.read(session, 2, 0, 9),
    ] {
        let reply = world.send_raw(&request).unwrap();
        assert_eq!(world.send_raw(&reply), None);
    }
}

#[test]
fn a_session_with_the_shortest_window_remembers_64_requests_and_hello_says_so() {
    let mut world = World::new();
    let state = SessionState::new(Rate::new(1_000_000, 1_000_000));
    world.lease.sessions = RefCell::new(state.with_window(ReplayWindow::SHORTEST));
    let hello = world.hello();
    assert_eq!(hello.window, 64);
    let read = |counter| world.status(&world.read(hello.session, counter, 0, 1));
    assert_eq!(read(100), DataStatus::Ok);
    assert_eq!(read(37), DataStatus::Ok);
    assert_eq!(read(36), DataStatus::TooOld);
    assert_eq!(read(35), DataStatus::TooOld);
}
