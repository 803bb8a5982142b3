//! Senders without a key do not keep out clients with a key.

use std::{
    net::UdpSocket,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use fabricbios_wire::DataStatus;

use crate::{
    client::{OK, SHORTEST},
    fixture::{Fixture, config},
};

#[test]
fn a_flood_of_forged_frames_does_not_stop_the_holder() {
    let fixture = Fixture::new();
    let mut client = fixture.leased(1);
    let mut forged = client.write_frame(0, &[0xEE; 64]);
    forged[60] ^= 1;
    let stop = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            while !stop.load(Ordering::Acquire) {
                let _sent = socket.send_to(&forged, fixture.udp.local_addr());
            }
        });
        // Until there are more datagrams than the server answers.
        while fixture.udp.counters().tally().dropped == 0 {
            thread::yield_now();
        }
        // A datagram may be lost in the flood; the client then sends the same one again.
        let patience = Duration::from_millis(10);
        client.socket.set_read_timeout(Some(patience)).unwrap();
        for round in 0..20u8 {
            let frame = client.write_frame(0, &[round; 64]);
            let got = loop {
                client.socket.send(&frame).unwrap();
                let got = client.receive().filter(|got| got.authentic);
                if let Some(got) = got.filter(|got| got.nonce == client.nonce()) {
                    break got;
                }
            };
            assert_eq!(got.status, OK);
        }
        stop.store(true, Ordering::Release);
    });
    assert_eq!(&fixture.bytes(1)[..64], &[19; 64]);
}

#[test]
fn few_answers_to_those_without_a_key() {
    let fixture = Fixture::new();
    let client = fixture.leased(1);
    let mut forged = client.frame(client.header(fabricbios_wire::DataOp::Ping, 0, 0), &[]);
    forged[60] ^= 1;
    for _ in 0..500 {
        client.socket.send(&forged).unwrap();
    }
    let before = fixture.udp.counters().tally().received;
    assert_eq!(client.ping_through().status, OK);
    let tally = fixture.udp.counters().tally();
    assert!(tally.unauthenticated >= 1, "{before} {tally:?}");
    assert!(tally.unauthenticated < 100, "{tally:?}");
}

#[test]
fn what_is_more_than_a_lease_is_allowed_gets_busy_and_nothing_is_done() {
    let arena = Fixture::new().arena;
    let mut slow = config(arena);
    slow.ops_per_second = 1;
    let fixture = Fixture::with(slow);
    let mut client = fixture.leased(1);
    let mut neighbour = fixture.leased(2);
    let mut statuses = Vec::new();
    while statuses.last() != Some(&(DataStatus::Busy as u8)) {
        statuses.push(client.write(0, &[statuses.len() as u8; 8]));
        assert!(statuses.len() < 1000, "the burst ends");
    }
    let done = statuses.len() - 2;
    assert_eq!(&fixture.bytes(1)[..8], &[done as u8; 8]);
    assert_eq!(neighbour.write(0, b"served"), OK);
}

#[test]
fn what_is_no_frame_gets_no_answer_at_all() {
    let fixture = Fixture::new();
    let client = fixture.leased(1);
    let ping = client.frame(client.header(fabricbios_wire::DataOp::Ping, 0, 0), &[]);
    let mut other_magic = ping.clone();
    other_magic[..4].copy_from_slice(b"FBBU");
    let mut reply = ping.clone();
    reply[6] |= 0x80;
    for nothing in [&ping[..SHORTEST - 1], &[], &other_magic, &reply] {
        client.socket.send(nothing).unwrap();
    }
    assert_eq!(client.ping().status, OK, "the only answer");
    assert_eq!(fixture.udp.counters().tally().dropped, 4);
}
