//! Storage that takes its time: requests in flight, requests that come meanwhile, and the final answers.

use std::time::Duration;

use fabricbios_fallback_udp::{
    AccessState, Begin, Io, Opened, Pending, Request, StoreFailed, begin, finish, open,
};
use fabricbios_wire::{
    DATA_OVERHEAD, DATAGRAM_MAX, DataFrame, DataHeader, DataOp, DataService, DataStatus, Part,
};

use crate::world::{DEADLINE, ELSEWHERE, World, key, nonce, seal, seal_with, status_of};

const UNIT: u32 = 512;

/// A request in flight, and the bytes to be written.
type Begun = (Pending, Vec<u8>);

struct Later(World);

impl Later {
    fn new() -> Self {
        Self(World::of(DataService::Block, UNIT))
    }

    fn send(&self, datagram: &[u8], has_room: bool) -> (Begin, Box<[u8; DATAGRAM_MAX]>) {
        let mut buffer = Box::new([0xEE; DATAGRAM_MAX]);
        let Opened::Frame(frame) = open(DataService::Block, datagram) else {
            panic!("no frame");
        };
        let asked = Request {
            frame: &frame,
            source: self.0.source.get(),
            now: self.0.now.get(),
        };
        let begun = begin(&self.0.lease, &self.0.keys, asked, has_room, &mut buffer);
        (begun.expect("a right key"), buffer)
    }

    /// Begins a request that the storage has to do.
    fn begin(&self, datagram: &[u8]) -> Begun {
        match self.send(datagram, true) {
            (Begin::Pending(pending), buffer) => {
                let bytes = match *pending.io() {
                    Io::Write { bytes, .. } => bytes,
                    _ => 0,
                };
                (pending, buffer[DATA_OVERHEAD..][..bytes].to_vec())
            }
            (other, _) => panic!("{other:?}"),
        }
    }

    /// The status of an immediate answer; `None`: no immediate answer.
    fn ask_with(&self, datagram: &[u8], has_room: bool) -> Option<DataStatus> {
        match self.send(datagram, has_room).0 {
            Begin::Reply(reply) => Some(reply.status),
            Begin::Nothing => None,
            Begin::Pending(pending) => panic!("{pending:?}"),
        }
    }

    fn ask(&self, datagram: &[u8]) -> Option<DataStatus> {
        self.ask_with(datagram, true)
    }

    /// The answer of a storage that read `value` everywhere.
    fn finish(
        &self,
        pending: &Pending,
        result: Result<(), StoreFailed>,
        value: u8,
    ) -> Option<(DataStatus, Vec<u8>)> {
        let (world, mut buffer) = (&self.0, Box::new([value; DATAGRAM_MAX]));
        let now = world.now.get();
        let reply = finish(&world.lease, &world.keys, pending, result, now, &mut buffer)?;
        let frame = DataFrame::parse(&buffer[..reply.length]).unwrap();
        assert!(world.keys.iter().any(|key| key.verifies(&frame)));
        assert_eq!(frame.header.status, reply.status as u8);
        Some((status_of(frame.header.status), frame.payload.to_vec()))
    }

    fn done(&self, pending: &Pending) -> Option<DataStatus> {
        self.finish(pending, Ok(()), 0).map(|(status, _)| status)
    }
}

fn block(value: u8) -> Vec<u8> {
    vec![value; UNIT as usize]
}

#[test]
fn a_request_under_way_is_begun_once_and_answered_once() {
    let later = Later::new();
    let session = later.0.session();
    let frame = later.0.write(session, 1, 3, &block(7));
    let (pending, bytes) = later.begin(&frame);
    assert_eq!(
        *pending.io(),
        Io::Write {
            offset: 3,
            bytes: 512
        }
    );
    assert_eq!(bytes, block(7));
    assert_eq!(later.ask(&frame), None);
    let other = later.0.write(session, 1, 3, &block(8));
    assert_eq!(later.ask(&other), Some(DataStatus::Replay));
    assert_eq!(later.done(&pending), Some(DataStatus::Ok));
    assert_eq!(later.ask(&frame), Some(DataStatus::Ok));
}

#[test]
fn what_failed_later_fails_again() {
    let later = Later::new();
    let session = later.0.session();
    let frame = seal(later.0.header(DataOp::Flush, nonce(session, 1), 0, 0), &[]);
    let (pending, _) = later.begin(&frame);
    let failed = later.finish(&pending, Err(StoreFailed), 0);
    assert_eq!(failed, Some((DataStatus::Io, vec![])));
    assert_eq!(later.ask(&frame), Some(DataStatus::Io));
}

#[test]
fn without_room_nothing_is_begun_and_the_nonce_is_not_used() {
    let later = Later::new();
    let session = later.0.session();
    let write = later.0.write(session, 1, 0, &block(1));
    assert_eq!(later.ask_with(&write, false), Some(DataStatus::Busy));
    let (pending, _) = later.begin(&write);
    assert_eq!(later.ask_with(&write, false), None, "it is under way");
    assert_eq!(later.done(&pending), Some(DataStatus::Ok));
    assert_eq!(later.ask_with(&write, false), Some(DataStatus::Ok));
    let read = later.0.read(session, 2, 0, 1);
    let (pending, _) = later.begin(&read);
    later.done(&pending);
    assert_eq!(
        later.ask_with(&read, false),
        Some(DataStatus::Busy),
        "again"
    );
}

#[test]
fn a_read_is_done_again_with_the_bytes_of_now_and_only_for_its_own_address() {
    let later = Later::new();
    let session = later.0.session();
    let frame = later.0.read(session, 1, 0, 1);
    for value in [1, 2] {
        let (pending, _) = later.begin(&frame);
        let told = later.finish(&pending, Ok(()), value);
        assert_eq!(told, Some((DataStatus::Ok, block(value))));
    }
    let (pending, _) = later.begin(&frame);
    let failed = later.finish(&pending, Err(StoreFailed), 0);
    assert_eq!(failed, Some((DataStatus::Io, vec![])));
    later.begin(&frame);
    later.0.source.set(ELSEWHERE);
    assert_eq!(later.ask(&frame), Some(DataStatus::Replay));
}

#[test]
fn what_ends_while_a_request_waits_takes_its_answer_away() {
    type End = fn(&mut World);
    let ends: [End; 4] = [
        |world| world.lease.state.set(AccessState::Over),
        |world| world.lease.state.set(AccessState::Fenced),
        |world| world.now.set(DEADLINE),
        |world| {
            world.keys.rotate(key(1));
            world.keys.retire();
        },
    ];
    for end in ends {
        let mut later = Later::new();
        let session = later.0.session();
        let (pending, _) = later.begin(&later.0.read(session, 1, 0, 1));
        end(&mut later.0);
        assert_eq!(later.finish(&pending, Ok(()), 7), None);
    }
}

#[test]
fn an_answer_has_the_key_of_its_request() {
    let mut later = Later::new();
    let session = later.0.session();
    let (old, _) = later.begin(&later.0.read(session, 1, 0, 1));
    later.0.keys.rotate(key(1));
    let header = later.0.header(DataOp::Read, nonce(session, 2), 0, 1);
    let (new, _) = later.begin(&seal_with(&key(1), header, &[]));
    assert_eq!(later.done(&old), Some(DataStatus::Ok));
    later.0.keys.retire();
    later.0.keys.rotate(key(2));
    assert_eq!(later.done(&new), Some(DataStatus::Ok), "the one before now");
    later.0.keys.retire();
    assert_eq!(later.done(&new), None);
}

#[test]
fn no_write_follows_one_of_a_closed_session_that_is_still_under_way() {
    let later = Later::new();
    let session = later.0.session();
    let (pending, _) = later.begin(&later.0.write(session, 1, 0, &block(1)));
    let (reading, _) = later.begin(&later.0.read(session, 2, 0, 1));
    later.ask(&later.0.hello_frame(99, session));
    let write = later.0.write(session + 1, 1, 0, &block(2));
    assert_eq!(later.ask(&write), Some(DataStatus::Busy));
    later.begin(&later.0.read(session + 1, 2, 0, 1));
    assert_eq!(later.done(&pending), Some(DataStatus::Ok));
    let (written, _) = later.begin(&write);
    later.begin(&later.0.write(session + 1, 3, 1, &block(3)));
    assert_eq!(later.done(&written), Some(DataStatus::Ok));
    assert_eq!(later.done(&reading), Some(DataStatus::Ok));
}

#[test]
fn no_write_follows_one_of_a_session_that_gives_way_to_it() {
    let later = Later::new();
    let first = later.0.session();
    let (pending, _) = later.begin(&later.0.write(first, 1, 0, &block(1)));
    later.0.pass(Duration::from_secs(11));
    for _ in 0..15 {
        let session = later.0.session();
        later.begin(&later.0.read(session, 1, 0, 1));
    }
    let write = later.0.write(later.0.session(), 1, 0, &block(2));
    assert_eq!(later.ask(&write), Some(DataStatus::Busy));
    assert_eq!(later.done(&pending), Some(DataStatus::Ok));
    later.begin(&write);
}

#[test]
fn the_last_part_begins_the_write_of_the_whole_block() {
    let later = Later::new();
    let session = later.0.session();
    let part = |index: u16| {
        let header = later
            .0
            .header(DataOp::Write, nonce(session, 1 + u32::from(index)), 5, 1);
        let reserved = Part::new(index, 2).unwrap().reserved();
        seal(DataHeader { reserved, ..header }, &[index as u8 + 1; 256])
    };
    assert_eq!(later.ask(&part(1)), Some(DataStatus::Ok));
    assert_eq!(later.ask_with(&part(0), false), Some(DataStatus::Busy));
    let (pending, bytes) = later.begin(&part(0));
    assert_eq!(
        *pending.io(),
        Io::Write {
            offset: 5,
            bytes: 512
        }
    );
    assert_eq!(bytes, [[1; 256], [2; 256]].concat());
    assert_eq!(later.ask(&part(1)), Some(DataStatus::Ok));
    assert_eq!(later.ask(&part(0)), None, "under way");
    let failed = later.finish(&pending, Err(StoreFailed), 0);
    assert_eq!(failed, Some((DataStatus::Io, vec![])));
    assert_eq!(later.ask(&part(0)), Some(DataStatus::Io));
}

#[test]
fn an_end_behind_the_window_changes_nothing() {
    let later = Later::new();
    let session = later.0.session();
    let (pending, _) = later.begin(&later.0.write(session, 1, 0, &block(1)));
    let next = later.0.write(session, 129, 1, &block(2));
    let (newer, _) = later.begin(&next);
    assert_eq!(later.done(&pending), Some(DataStatus::Ok));
    assert_eq!(later.ask(&next), None, "still under way");
    assert_eq!(later.done(&newer), Some(DataStatus::Ok));
}
