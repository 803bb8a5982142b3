//! Every status, and which of two refusals takes precedence.

use std::time::Duration;

use fabricbios_fallback_udp::AccessState;
use fabricbios_wire::{DataHeader, DataOp, DataService, DataStatus, data_flags};

use crate::world::{Back, DEADLINE, LENGTH, World, as_it_is, key, nonce, seal};

#[test]
fn what_is_written_is_read() {
    let world = World::new();
    let session = world.session();
    assert_eq!(
        world.status(&world.write(session, 1, 7, b"bytes")),
        DataStatus::Ok
    );
    let read = world.send(&world.read(session, 2, 6, 7));
    assert_eq!(read, Back::Status(DataStatus::Ok, b"\0bytes\0".to_vec()));
}

#[test]
fn the_longest_payload_goes_through() {
    let world = World::new();
    let session = world.session();
    let bytes = vec![0x5A; 9128];
    assert_eq!(
        world.status(&world.write(session, 1, 0, &bytes)),
        DataStatus::Ok
    );
    let read = world.send(&world.read(session, 2, 0, 9128));
    assert_eq!(read, Back::Status(DataStatus::Ok, bytes));
    assert_eq!(
        world.status(&world.read(session, 3, 0, 9129)),
        DataStatus::Invalid
    );
    let too_long = world.write(session, 3, 0, &[1; 9129]);
    assert_eq!(world.send(&too_long), Back::Unauthenticated);
}

#[test]
fn a_lease_is_over_at_its_deadline_to_the_nanosecond() {
    let world = World::new();
    let session = world.session();
    world.now.set(DEADLINE - Duration::from_nanos(1));
    assert_eq!(
        world.status(&world.write(session, 1, 0, b"a")),
        DataStatus::Ok
    );
    world.now.set(DEADLINE);
    assert_eq!(
        world.status(&world.write(session, 2, 0, b"b")),
        DataStatus::NoLease
    );
    assert_eq!(
        world.status(&world.write(session, 1, 0, b"a")),
        DataStatus::NoLease
    );
    assert_eq!(world.bytes()[0], b'a');
    world.lease.deadline.set(DEADLINE + Duration::from_nanos(1));
    assert_eq!(
        world.status(&world.write(session, 2, 0, b"b")),
        DataStatus::Ok
    );
}

#[test]
fn an_ended_lease_says_how_it_ended_to_every_operation() {
    for (state, status) in [
        (AccessState::Over, DataStatus::NoLease),
        (AccessState::Fenced, DataStatus::Fenced),
    ] {
        let world = World::new();
        let session = world.session();
        world.lease.state.set(state);
        let ping = seal(world.header(DataOp::Ping, 0, 0, 0), &[]);
        let frames = [
            world.write(session, 1, 0, b"x"),
            world.read(session, 1, 0, 1),
            world.hello_frame(1, 0),
            ping,
        ];
        for frame in frames {
            assert_eq!(world.status(&frame), status);
        }
        assert_eq!(world.writes(), 0);
    }
}

#[test]
fn a_fence_is_told_also_after_the_deadline() {
    let world = World::new();
    world.lease.state.set(AccessState::Fenced);
    world.now.set(DEADLINE);
    assert_eq!(world.status(&world.hello_frame(1, 0)), DataStatus::Fenced);
}

#[test]
fn ranges_end_with_the_lease() {
    let world = World::new();
    let session = world.session();
    let mut counter = 0;
    let mut status = |offset, length| {
        counter += 1;
        world.status(&world.read(session, counter, offset, length))
    };
    assert_eq!(status(LENGTH - 10, 10), DataStatus::Ok);
    for (offset, length) in [
        (LENGTH - 10, 11),
        (LENGTH, 1),
        (u64::MAX, 1),
        (u64::MAX - 1, 2),
    ] {
        assert_eq!(status(offset, length), DataStatus::Range);
    }
    let write = world.write(session, 9, LENGTH - 1, b"ab");
    assert_eq!(world.status(&write), DataStatus::Range);
    assert_eq!(world.writes(), 0);
}

#[test]
fn requests_that_make_no_sense_are_invalid_and_use_no_nonce() {
    let world = World::new();
    let session = world.session();
    let good = world.header(DataOp::Read, nonce(session, 1), 0, 4);
    let nonsense = [
        DataHeader { op: 0, ..good },
        DataHeader { op: 6, ..good },
        DataHeader { op: 255, ..good },
        DataHeader {
            op: DataOp::Flush as u8,
            length: 0,
            ..good
        },
        DataHeader { flags: 2, ..good },
        DataHeader {
            flags: 0x40,
            ..good
        },
        DataHeader { status: 1, ..good },
        DataHeader {
            reserved: 1,
            ..good
        },
        DataHeader { length: 0, ..good },
        DataHeader {
            length: u32::MAX,
            ..good
        },
        DataHeader {
            nonce: nonce(session, 0),
            ..good
        },
    ];
    for header in nonsense {
        assert_eq!(
            world.status(&seal(header, &[])),
            DataStatus::Invalid,
            "{header:?}"
        );
    }
    assert_eq!(world.status(&seal(good, b"payload")), DataStatus::Invalid);
    let write = world.header(DataOp::Write, nonce(session, 1), 0, 4);
    for payload in [&b""[..], b"123", b"12345"] {
        assert_eq!(world.status(&seal(write, payload)), DataStatus::Invalid);
    }
    assert_eq!(
        world.status(&seal(good, &[])),
        DataStatus::Ok,
        "1 is not used"
    );
    assert_eq!(world.writes(), 0);
}

#[test]
fn ping_needs_no_session_and_no_payload() {
    let world = World::new();
    let ping = world.header(DataOp::Ping, u64::MAX, u64::MAX, u32::MAX);
    for _again in 0..2 {
        assert_eq!(world.status(&seal(ping, &[])), DataStatus::Ok);
    }
    assert_eq!(world.status(&seal(ping, b"x")), DataStatus::Invalid);
}

#[test]
fn hello_is_zeros_and_its_reply_as_long_as_itself() {
    let world = World::new();
    let hello = world.header(DataOp::Hello, 9, 0, 0);
    for length in [40, 41, 1384, 9128] {
        let Back::Status(DataStatus::Ok, payload) = world.send(&seal(hello, &vec![0; length]))
        else {
            panic!("{length}");
        };
        assert_eq!(payload.len(), length);
        assert!(payload[40..].iter().all(|byte| *byte == 0));
    }
    let mut dirty = vec![0; 100];
    dirty[99] = 1;
    let longer = DataHeader { length: 1, ..hello };
    for frame in [
        seal(hello, &[0; 39]),
        seal(hello, &[]),
        seal(hello, &dirty),
        seal(longer, &[0; 40]),
    ] {
        assert_eq!(world.status(&frame), DataStatus::Invalid);
    }
}

#[test]
fn hello_says_what_there_is_and_how_long() {
    let world = World::new();
    world.now.set(DEADLINE - Duration::from_micros(1500));
    let told = world.hello();
    assert_eq!((told.resource_len, told.unit), (LENGTH, 1));
    assert_eq!(
        (told.max_read, told.max_write, told.datagram_max),
        (9128, 9128, 9216)
    );
    assert_eq!(told.remaining_ms, 1);
    world.lease.deadline.set(Duration::MAX);
    assert_eq!(world.hello().remaining_ms, u32::MAX);
}

#[test]
fn a_session_with_payload_mac_takes_nothing_without() {
    let world = World::new();
    let flags = data_flags::PAYLOAD_MAC;
    let hello = DataHeader {
        flags,
        ..world.header(DataOp::Hello, 5, 0, 0)
    };
    assert_eq!(world.status(&seal(hello, &[0; 40])), DataStatus::Ok);
    let write = world.header(DataOp::Write, nonce(1, 1), 0, 4);
    assert_eq!(world.status(&seal(write, b"bare")), DataStatus::Invalid);
    assert_eq!(world.writes(), 0);
    let covered = seal(DataHeader { flags, ..write }, b"safe");
    assert_eq!(world.status(&covered), DataStatus::Ok);
    let read = DataHeader {
        flags,
        ..world.header(DataOp::Read, nonce(1, 2), 0, 4)
    };
    let read = world.send(&seal(read, &[]));
    assert_eq!(read, Back::Status(DataStatus::Ok, b"safe".to_vec()));
}

#[test]
fn the_checksum_is_looked_at_also_where_the_tag_covers_the_payload() {
    let world = World::new();
    let session = world.session();
    let wrong = DataHeader {
        payload_crc: 1,
        payload_len: 4,
        ..world.header(DataOp::Write, nonce(session, 1), 0, 4)
    };
    for flags in [0, data_flags::PAYLOAD_MAC] {
        let frame = as_it_is(&key(0), DataHeader { flags, ..wrong }, b"data");
        assert_eq!(world.send(&frame), Back::Unauthenticated);
    }
    let of_nothing = DataHeader {
        payload_crc: 1,
        ..world.header(DataOp::Ping, 1, 0, 0)
    };
    assert_eq!(
        world.send(&as_it_is(&key(0), of_nothing, &[])),
        Back::Unauthenticated
    );
    assert_eq!(world.writes(), 0);
}

#[test]
fn a_frame_of_the_other_service_is_not_answered() {
    let world = World::new();
    let other = World::of(DataService::Block, 512);
    assert_eq!(world.send(&other.hello_frame(1, 0)), Back::Nothing);
    assert_eq!(other.send(&world.hello_frame(1, 0)), Back::Nothing);
}
