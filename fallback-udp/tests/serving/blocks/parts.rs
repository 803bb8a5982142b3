//! Blocks that do not fit a datagram.

use fabricbios_fallback_udp::FbbuConfig;
use fabricbios_wire::{DataHeader, DataOp, DataStatus, Part};

use super::fixture::{Disks, UNIT, block, config};
use crate::client::{Client, OK};

const INVALID: u8 = DataStatus::Invalid as u8;
const BUSY: u8 = DataStatus::Busy as u8;
const COUNT: u16 = 4;
const BYTES: usize = UNIT as usize / COUNT as usize;

/// The parts of one write, in their order.
fn parts(client: &mut Client, at: u64, bytes: &[u8]) -> Vec<Vec<u8>> {
    let headers = (0..COUNT).map(|index| (index, client.next(DataOp::Write, at, 1)));
    let headers: Vec<_> = headers.collect();
    let frame = |(index, header): (u16, DataHeader)| {
        let range = Part::new(index, COUNT).unwrap().range(UNIT).unwrap();
        client.frame(in_part(header, index), &bytes[range])
    };
    headers.into_iter().map(frame).collect()
}

fn in_part(header: DataHeader, index: u16) -> DataHeader {
    let reserved = Part::new(index, COUNT).unwrap().reserved();
    DataHeader { reserved, ..header }
}

fn pattern() -> Vec<u8> {
    (0..COUNT as u8)
        .flat_map(|it| vec![it + 1; BYTES])
        .collect()
}

#[test]
fn parts_in_any_order_are_a_block_and_are_read_back_in_parts() {
    let disks = Disks::new();
    let mut client = disks.leased(1);
    let parts = parts(&mut client, 7, &pattern());
    for index in [3, 0, 2, 1] {
        assert_eq!(client.ask(&parts[index]).0, OK);
    }
    assert_eq!(disks.block(1, 7), pattern());
    for index in 0..COUNT {
        let read = in_part(client.next(DataOp::Read, 7, 1), index);
        let told = client.ask(&client.frame(read, &[]));
        assert_eq!(told, (OK, vec![index as u8 + 1; BYTES]));
    }
}

#[test]
fn a_block_is_not_written_before_all_its_parts_are_there() {
    let disks = Disks::new();
    let mut client = disks.leased(1);
    let parts = parts(&mut client, 7, &pattern());
    for part in &parts[..3] {
        assert_eq!(client.ask(part).0, OK);
        assert_eq!(client.ask(part).0, OK, "the same again");
    }
    assert_eq!(client.read(7, 1), (OK, block(0)));
    assert_eq!(client.ask(&parts[3]).0, OK);
    assert_eq!(client.read(7, 1), (OK, pattern()));
    assert_eq!(client.write(7, &block(9)), OK);
    for part in &parts {
        assert_eq!(client.ask(part).0, OK, "answered from memory");
    }
    assert_eq!(client.read(7, 1), (OK, block(9)));
}

#[test]
fn parts_of_different_blocks_are_no_write() {
    let disks = Disks::new();
    let mut client = disks.leased(1);
    let parts = parts(&mut client, 7, &pattern());
    for part in &parts[..3] {
        assert_eq!(client.ask(part).0, OK);
    }
    client.counter -= 1;
    let other = in_part(client.next(DataOp::Write, 8, 1), 3);
    assert_eq!(client.ask(&client.frame(other, &[4; BYTES])).0, INVALID);
    assert_eq!(disks.block(1, 7), block(0));
    assert_eq!(disks.block(1, 8), block(0));
}

#[test]
fn a_late_part_of_a_write_that_was_dropped_is_not_taken_for_done() {
    let disks = Disks::new();
    let mut client = disks.leased(1);
    let parts = parts(&mut client, 7, &pattern());
    for part in &parts[..3] {
        assert_eq!(client.ask(part).0, OK);
    }
    client.counter += 126;
    assert_eq!(client.write(0, &block(1)), OK);
    assert_eq!(client.ask(&parts[3]).0, DataStatus::TooOld as u8);
    assert_eq!(disks.block(1, 7), block(0));
}

#[test]
fn half_sent_blocks_have_their_bounds_and_leave_room_for_other_tenants() {
    // A block for each lease, 16 for each tenant.
    let config = FbbuConfig {
        half_sent_max: 128 * UNIT as usize,
        ..config()
    };
    let disks = Disks::with(config, None);
    let begin = |client: &mut Client| {
        let parts = parts(client, 7, &pattern());
        (client.ask(&parts[2]).0, parts)
    };
    let mut leases: Vec<_> = (1..=17).map(|number| disks.leased(number)).collect();
    let mut ann = leases.pop().unwrap();
    let (first, rest) = begin(&mut leases[0]);
    assert_eq!(first, OK);
    assert_eq!(begin(&mut leases[0]).0, BUSY, "of one lease");
    for client in &mut leases[1..] {
        assert_eq!(begin(client).0, OK);
    }
    let (refused, parts) = begin(&mut ann);
    assert_eq!(refused, BUSY, "of one tenant");
    assert_eq!(begin(&mut disks.leased_to("bob", 20)).0, OK);
    assert_eq!(ann.write(8, &block(8)), OK, "in one datagram");
    for index in [0, 1, 3] {
        assert_eq!(leases[0].ask(&rest[index]).0, OK, "what is begun goes on");
    }
    for part in parts {
        assert_eq!(ann.ask(&part).0, OK, "the same again, where there is room");
    }
    assert_eq!(disks.block(17, 7), pattern());
}

#[test]
fn what_is_no_part_is_refused() {
    let disks = Disks::new();
    let mut client = disks.leased(1);
    let nonsense: [(u32, u32, usize); 5] = [
        (0x0004_0004, 1, BYTES), // a fifth of four
        (3, 1, UNIT as usize / 3),
        (128, 1, 32),
        (4, 2, BYTES),     // of two blocks
        (4, 1, BYTES * 2), // longer than a part
    ];
    for (reserved, length, bytes) in nonsense {
        let header = DataHeader {
            reserved,
            ..client.next(DataOp::Write, 0, length)
        };
        let told = client.ask(&client.frame(header, &vec![1; bytes])).0;
        assert_eq!(told, INVALID, "{reserved:#x} {length} {bytes}");
    }
    let flush = in_part(client.next(DataOp::Flush, 0, 0), 0);
    assert_eq!(client.ask(&client.frame(flush, &[])).0, INVALID);
    client.hello();
    let first = in_part(client.next(DataOp::Write, 0, 1), 1);
    let told = client.ask(&client.frame(first, &[1; BYTES])).0;
    assert_eq!(told, INVALID, "its first part would have counter 0");
}
