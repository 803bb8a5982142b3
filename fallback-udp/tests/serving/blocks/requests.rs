//! Requests for blocks, one at a time.

use std::{fs::OpenOptions, thread, time::Duration};

use fabricbios_contract::{DataPath as _, Volume};
use fabricbios_wire::{DataHeader, DataOp, DataStatus};

use super::fixture::{BLOCKS, Disks, UNIT, block};
use crate::{
    client::{NO_LEASE, OK, is_unauthenticated},
    fixture::{binding_id, in_a_minute, now},
};

const RANGE: u8 = DataStatus::Range as u8;
const READ_ONLY: u8 = DataStatus::ReadOnly as u8;
const IO: u8 = DataStatus::Io as u8;

#[test]
fn what_is_written_is_read_and_lies_in_the_file() {
    let disks = Disks::new();
    let mut client = disks.leased(1);
    let two = [block(1), block(2)].concat();
    assert_eq!(client.write(5, &two), OK);
    assert_eq!(client.read(5, 2), (OK, two));
    assert_eq!(client.read(6, 1), (OK, block(2)));
    assert_eq!(client.read(4, 1), (OK, block(0)));
    assert_eq!(disks.block(1, 5), block(1));
    assert_eq!(disks.block(1, 6), block(2));
}

#[test]
fn small_blocks_fill_a_datagram() {
    let disks = Disks::new();
    let file = Volume {
        block_bytes: 512,
        ..disks.file(1)
    };
    let mut client = disks.client(1, &disks.lease(1, &file)).of_blocks(512);
    assert_eq!(client.hello().resource_len, BLOCKS * 8);
    let bytes: Vec<u8> = (0..=255).cycle().take(17 * 512).collect();
    assert_eq!(client.write(3, &bytes), OK);
    assert_eq!(client.read(3, 17), (OK, bytes));
    let (invalid, _) = client.read(3, 18);
    assert_eq!(invalid, DataStatus::Invalid as u8, "no datagram is so long");
}

#[test]
fn beyond_the_last_block_there_is_nothing_though_the_file_goes_on() {
    let disks = Disks::new();
    let file = Volume {
        bytes: 10 * u64::from(UNIT),
        ..disks.file(1)
    };
    let mut client = disks.client(1, &disks.lease(1, &file));
    client.hello();
    assert_eq!(client.write(9, &block(1)), OK);
    assert_eq!(client.write(10, &block(1)), RANGE);
    assert_eq!(client.read(9, 2).0, RANGE);
    assert_eq!(client.read(u64::MAX, 1).0, RANGE);
    assert_eq!(disks.block(1, 10), block(0));
}

#[test]
fn a_read_only_lease_can_only_be_read() {
    let disks = Disks::new();
    let file = Volume {
        read_only: true,
        ..disks.file(1)
    };
    let mut client = disks.client(1, &disks.lease(1, &file));
    assert!(client.hello().read_only);
    assert_eq!(client.write(0, &block(1)), READ_ONLY);
    let part = DataHeader {
        reserved: 4,
        ..client.next(DataOp::Write, 0, 1)
    };
    assert_eq!(client.ask(&client.frame(part, &[1; 1024])).0, READ_ONLY);
    assert_eq!(client.read(0, 1), (OK, block(0)));
    assert_eq!(client.flush(), OK);
}

#[test]
fn storage_that_fails_says_so_and_goes_on_saying_so() {
    let disks = Disks::new();
    let mut client = disks.leased(1);
    assert_eq!(client.write(9, &block(1)), OK);
    let file = OpenOptions::new().write(true).open(disks.path(1)).unwrap();
    file.set_len(5 * u64::from(UNIT)).unwrap();
    let frame = client.read_frame(9, 1);
    assert_eq!(client.ask(&frame), (IO, vec![]));
    assert_eq!(client.read(4, 2), (IO, vec![]), "half of it is there");
    file.set_len(BLOCKS * u64::from(UNIT)).unwrap();
    assert_eq!(client.ask(&frame).0, IO, "the same request");
    assert_eq!(client.read(9, 1), (OK, block(0)), "a new one");
}

#[test]
fn without_the_key_nothing_is_read() {
    let disks = Disks::new();
    let (one, mut two) = (disks.leased(1), disks.leased(2));
    two.lease = one.lease;
    let frame = two.read_frame(0, 1);
    assert!(is_unauthenticated(&two.exchange(&frame)));
}

#[test]
fn the_deadline_ends_a_lease_and_a_renewal_prolongs_it() {
    let disks = Disks::new();
    let mut client = disks.leased(1);
    assert_eq!(client.write(0, &block(1)), OK);
    let soon = now() + Duration::from_millis(20);
    disks.backend.extend(binding_id(1, 1), soon).unwrap();
    while now() < soon {
        thread::yield_now();
    }
    assert_eq!(client.write(0, &block(2)), NO_LEASE);
    assert_eq!(disks.block(1, 0), block(1));
    disks
        .backend
        .extend(binding_id(1, 1), in_a_minute())
        .unwrap();
    assert_eq!(client.write(0, &block(3)), OK);
}
