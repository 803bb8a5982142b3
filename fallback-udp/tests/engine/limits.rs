//! The rate limits of a lease, which nobody without the key can use up.

use std::{cell::RefCell, time::Duration};

use fabricbios_fallback_udp::{Rate, SessionState};
use fabricbios_wire::{DataOp, DataStatus, HelloReply};

use crate::world::{Back, World, seal};

/// Requests of a lease: 10 a second, 3 at once.
fn slow() -> World {
    let mut world = World::new();
    world.lease.sessions = RefCell::new(SessionState::new(Rate::new(10, 3)));
    world
}

fn ping(world: &World) -> Vec<u8> {
    seal(world.header(DataOp::Ping, 7, 0, 0), &[])
}

/// How many of 1,000 requests are not answered with BUSY.
fn served(world: &World, frame: &[u8]) -> usize {
    let statuses = (0..1000).map(|_| world.status(frame));
    statuses
        .filter(|status| *status != DataStatus::Busy)
        .count()
}

#[test]
fn more_than_is_allowed_gets_busy_and_may_come_again() {
    let world = slow();
    let session = world.session();
    for counter in 1..=3 {
        let write = world.write(session, counter, 0, b"a");
        assert_eq!(world.status(&write), DataStatus::Ok);
    }
    let write = world.write(session, 4, 0, b"b");
    assert_eq!(world.status(&write), DataStatus::Busy);
    assert_eq!(world.bytes()[0], b'a');
    world.pass(Duration::from_millis(100));
    assert_eq!(world.status(&write), DataStatus::Ok);
    assert_eq!(world.bytes()[0], b'b');
}

#[test]
fn recorded_requests_take_nothing_from_new_ones() {
    let world = slow();
    let session = world.session();
    let (write, read) = (
        world.write(session, 1, 0, b"a"),
        world.read(session, 2, 0, 1),
    );
    assert_eq!(world.status(&write), DataStatus::Ok);
    assert_eq!(world.status(&read), DataStatus::Ok);
    assert_eq!(served(&world, &write), 1000, "nothing is done for it");
    assert_eq!(served(&world, &read), 3, "its answer is long");
    assert_eq!(served(&world, &ping(&world)), 200);
    assert_eq!(
        served(&world, &world.hello_frame(7, 0)),
        199,
        "one was said"
    );
    let of_the_closed = world.read(session + 100, 1, 0, 1);
    assert_eq!(world.status(&of_the_closed), DataStatus::TooOld);
    let new = world.write(session, 3, 0, b"b");
    assert_eq!(world.status(&new), DataStatus::Ok);
}

#[test]
fn recorded_reads_come_back_to_what_they_may() {
    let world = slow();
    let session = world.session();
    let read = world.read(session, 1, 0, 1);
    assert_eq!(world.status(&read), DataStatus::Ok);
    served(&world, &read);
    assert_eq!(world.status(&read), DataStatus::Busy);
    world.pass(Duration::from_millis(100));
    assert_eq!(world.status(&read), DataStatus::Ok);
}

#[test]
fn pings_do_not_keep_a_program_from_saying_hello() {
    let world = World::new();
    served(&world, &ping(&world));
    assert_eq!(world.status(&ping(&world)), DataStatus::Busy);
    assert_eq!(world.hello().session, 1);
}

#[test]
fn recorded_hellos_use_up_few_numbers() {
    let world = World::new();
    let recorded: Vec<_> = (100..110)
        .map(|nonce| world.hello_frame(nonce, 0))
        .collect();
    for hello in recorded.iter().cycle().take(10_000) {
        world.send(hello);
    }
    world.pass(Duration::from_secs(1));
    let Back::Status(DataStatus::Ok, payload) = world.send(&recorded[0]) else {
        panic!("there is room again")
    };
    assert_eq!(HelloReply::read(&payload).unwrap().session, 201);
}
