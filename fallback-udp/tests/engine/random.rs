//! Random requests, from senders with and without a key.

use std::collections::HashMap;

use fabricbios_wire::{DataHeader, DataOp, DataStatus, LeaseId};
use proptest::prelude::*;

use crate::world::{Back, ELSEWHERE, HOME, LEASE, LENGTH, World, as_it_is, key, nonce, seal};

/// Headers that are nearly valid, so that every check is reached.
fn any_header() -> impl Strategy<Value = DataHeader> {
    let small = prop_oneof![4 => 0..300u32, 1 => any::<u32>()];
    let offset = prop_oneof![2 => 0..LENGTH + 10, 1 => any::<u64>()];
    let nonces =
        prop_oneof![3 => (0..4u32, 0..300u32).prop_map(|(s, c)| nonce(s, c)), 1 => any::<u64>()];
    let rare = prop_oneof![9 => Just(0u8), 1 => any::<u8>()];
    let fields = (
        0..8u8,
        prop_oneof![4 => 0..2u8, 1 => any::<u8>()],
        rare,
        nonces,
        offset,
    );
    (fields, small.clone(), any::<bool>(), any::<u32>()).prop_map(
        |((op, flags, status, nonce, offset), length, is_ours, crc)| DataHeader {
            flags,
            op,
            status,
            lease_id: if is_ours { LEASE } else { LeaseId(1) },
            nonce,
            offset,
            length,
            payload_crc: crc,
            payload_len: length,
            reserved: u32::from(status),
            service: fabricbios_wire::DataService::Memory,
        },
    )
}

proptest! {
    #[test]
    fn noise_changes_nothing(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        let world = World::new();
        prop_assert_eq!(world.send_raw(&noise), None);
        let mut addressed = noise;
        addressed.splice(..addressed.len().min(5), *b"FBMU\0");
        let reply = world.send_raw(&addressed).unwrap_or_default();
        prop_assert!(reply.len() <= addressed.len());
        prop_assert_eq!(world.writes(), 0);
    }

    #[test]
    fn frames_without_a_key_change_nothing_and_get_nothing_longer(
        header in any_header(),
        payload in prop::collection::vec(any::<u8>(), 0..300),
        other in 1..9u8,
    ) {
        let world = World::new();
        world.session();
        for frame in [as_it_is(&key(other), header, &payload), seal_other(other, header, &payload)] {
            let reply = world.send_raw(&frame).unwrap_or_default();
            prop_assert!(reply.len() <= 88 && reply.len() <= frame.len());
        }
        prop_assert_eq!(world.writes(), 0);
    }

    /// Requests with a valid key may still make no sense.
    #[test]
    fn what_is_not_answered_with_ok_changed_nothing(
        frames in prop::collection::vec((any_header(), 0..300usize), 1..60),
    ) {
        let world = World::new();
        for (header, length) in frames {
            let before = world.bytes();
            let back = world.send(&seal(header, &vec![1; length]));
            if !matches!(back, Back::Status(DataStatus::Ok, _)) {
                prop_assert_eq!(world.bytes(), before);
            }
        }
    }

    /// Requests of one session in any order, lost, doubled, from two addresses: the bytes at the end are those that a
    /// list of the nonces predicts.
    #[test]
    fn every_write_is_done_once_at_most(
        steps in prop::collection::vec((1..400u32, 0..3u8, any::<bool>()), 1..300),
    ) {
        let world = World::new();
        let session = world.session();
        let mut bytes = vec![0; LENGTH as usize];
        let mut done: HashMap<u32, u8> = HashMap::new();
        let mut highest = 0;
        for (counter, value, is_home) in steps {
            world.source.set(if is_home { HOME } else { ELSEWHERE });
            let at = usize::from(value) * 7;
            let status = world.status(&world.write(session, counter, at as u64, &[value + 1; 30]));
            let expected = match done.get(&counter) {
                _ if counter + 128 <= highest => DataStatus::TooOld,
                Some(used) if *used != value => DataStatus::Replay,
                Some(_) => DataStatus::Ok,
                None => {
                    bytes[at..at + 30].fill(value + 1);
                    done.insert(counter, value);
                    highest = highest.max(counter);
                    DataStatus::Ok
                }
            };
            prop_assert_eq!(status, expected);
            prop_assert_eq!(&world.bytes(), &bytes);
        }
        prop_assert_eq!(world.writes() as usize, done.len());
    }
}

/// A frame that is correct except for the key.
fn seal_other(other: u8, header: DataHeader, payload: &[u8]) -> Vec<u8> {
    let op = DataOp::Write as u8;
    crate::world::seal_with(&key(other), DataHeader { op, ..header }, payload)
}
