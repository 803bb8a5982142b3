//! A datagram that was changed on its way has no effect and gets no longer datagram back.

use fabricbios_wire::{DataHeader, DataOp, DataStatus, data_flags};

use crate::world::{Back, World, nonce, seal};

/// Frames that would change or reveal something.
fn frames(world: &World, session: u32) -> Vec<Vec<u8>> {
    let flags = data_flags::PAYLOAD_MAC;
    let write = world.header(DataOp::Write, nonce(session, 1), 0, 20);
    let read = world.header(DataOp::Read, nonce(session, 2), 0, 20);
    vec![
        seal(write, &[0xAA; 20]),
        seal(DataHeader { flags, ..write }, &[0xAA; 20]),
        seal(read, &[]),
        seal(DataHeader { flags, ..read }, &[]),
        world.hello_frame(77, session),
    ]
}

#[test]
fn every_bit_of_every_byte_counts() {
    let world = World::new();
    let session = world.session();
    for frame in frames(&world, session) {
        for at in 0..frame.len() * 8 {
            let mut tampered = frame.clone();
            tampered[at / 8] ^= 1 << (at % 8);
            let back = world.send(&tampered);
            let is_refused = matches!(back, Back::Nothing | Back::Unauthenticated);
            assert!(is_refused, "byte {} of {frame:?}: {back:?}", at / 8);
        }
    }
    assert_eq!(world.writes(), 0);
    let untouched = &frames(&world, session)[0];
    assert_eq!(
        world.status(untouched),
        DataStatus::Ok,
        "no nonce was used, no session closed"
    );
}

#[test]
fn a_datagram_cut_short_or_made_longer_is_refused() {
    let world = World::new();
    let session = world.session();
    for frame in frames(&world, session) {
        for length in 0..frame.len() {
            let back = world.send_raw(&frame[..length]);
            assert_eq!(back.is_some(), length >= 88, "{length}");
            assert!(back.is_none_or(|reply| reply.len() <= length));
        }
        let longer = [&frame[..], &[0]].concat();
        assert_eq!(world.send(&longer), Back::Unauthenticated);
    }
    assert_eq!(world.writes(), 0);
}

#[test]
fn a_tag_for_one_frame_is_no_tag_for_another() {
    let world = World::new();
    let session = world.session();
    let all = frames(&world, session);
    for from in &all {
        for to in &all {
            let mut mixed = to.clone();
            mixed[56..88].copy_from_slice(&from[56..88]);
            if mixed != *to {
                assert_eq!(world.send(&mixed), Back::Unauthenticated);
            }
        }
    }
    assert_eq!(world.writes(), 0);
}
