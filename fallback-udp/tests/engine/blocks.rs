//! The same engine for FBBU: units, durability, and storage that is read-only or fails.

use std::time::Duration;

use fabricbios_wire::{DataHeader, DataOp, DataService, DataStatus, Part};

use crate::world::{Back, LENGTH, World, nonce, seal};

const UNIT: u32 = 512;

fn world() -> World {
    World::of(DataService::Block, UNIT)
}

fn flush(world: &World, session: u32, counter: u32) -> DataHeader {
    world.header(DataOp::Flush, nonce(session, counter), 0, 0)
}

#[test]
fn offsets_and_lengths_count_blocks() {
    let world = world();
    let told = world.hello();
    assert_eq!((told.resource_len, told.unit), (LENGTH / 512, UNIT));
    let block = [7; UNIT as usize];
    assert_eq!(
        world.status(&world.write(told.session, 1, 2, &block)),
        DataStatus::Ok
    );
    assert_eq!(&world.bytes()[1024..1536], &block);
    let read = world.send(&world.read(told.session, 2, 2, 1));
    assert_eq!(read, Back::Status(DataStatus::Ok, block.to_vec()));
    let last = LENGTH / 512 - 1;
    assert_eq!(
        world.status(&world.read(told.session, 3, last, 2)),
        DataStatus::Range
    );
    assert_eq!(
        world.status(&world.read(told.session, 4, 0, 18)),
        DataStatus::Invalid
    );
    let half = world.header(DataOp::Write, nonce(told.session, 5), 0, 1);
    assert_eq!(world.status(&seal(half, &[0; 256])), DataStatus::Invalid);
}

#[test]
fn a_flush_is_done_once_and_has_no_lengths() {
    let world = world();
    let session = world.session();
    for _again in 0..2 {
        assert_eq!(
            world.status(&seal(flush(&world, session, 1), &[])),
            DataStatus::Ok
        );
    }
    assert_eq!(world.lease.memory.flushes.get(), 1);
    let long = DataHeader {
        length: 1,
        ..flush(&world, session, 2)
    };
    assert_eq!(world.status(&seal(long, &[])), DataStatus::Invalid);
}

#[test]
fn a_read_only_lease_is_read_only() {
    let mut world = world();
    world.lease.memory.read_only = true;
    let told = world.hello();
    assert!(told.read_only);
    let write = world.write(told.session, 1, 0, &[1; UNIT as usize]);
    assert_eq!(world.status(&write), DataStatus::ReadOnly);
    assert_eq!(
        world.status(&world.read(told.session, 2, 0, 1)),
        DataStatus::Ok
    );
    assert_eq!(world.writes(), 0);
}

fn part(world: &World, session: u32, counter: u32, index: u16) -> Vec<u8> {
    let reserved = Part::new(index, 2).unwrap().reserved();
    let header = world.header(DataOp::Write, nonce(session, counter), 3, 1);
    seal(DataHeader { reserved, ..header }, &[7; UNIT as usize / 2])
}

#[test]
fn a_block_that_stays_half_sent_is_given_up_and_its_session_with_it() {
    let world = world();
    let (slow, stays) = (world.session(), world.session());
    let tidy = || {
        let mut sessions = world.lease.sessions.borrow_mut();
        assert_eq!(sessions.tidy(world.now.get(), None), None);
    };
    for session in [slow, stays] {
        assert_eq!(world.status(&part(&world, session, 1, 0)), DataStatus::Ok);
    }
    world.pass(Duration::from_millis(9_999));
    tidy();
    assert_eq!(world.status(&part(&world, stays, 2, 1)), DataStatus::Ok);
    world.pass(Duration::from_millis(1));
    tidy();
    assert_eq!(world.status(&part(&world, slow, 2, 1)), DataStatus::TooOld);
    assert_eq!(world.status(&part(&world, slow, 1, 0)), DataStatus::TooOld);
    assert_eq!(world.writes(), 1);
    assert_eq!(world.status(&world.read(stays, 3, 3, 1)), DataStatus::Ok);
}

#[test]
fn storage_that_fails_says_so() {
    let world = world();
    let session = world.session();
    world.lease.memory.is_broken.set(true);
    for frame in [
        world.read(session, 1, 0, 1),
        world.write(session, 2, 0, &[1; UNIT as usize]),
        seal(flush(&world, session, 3), &[]),
    ] {
        assert_eq!(world.status(&frame), DataStatus::Io);
    }
}
