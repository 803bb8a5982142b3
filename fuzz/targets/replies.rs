//! The asking half of the UDP road against a server that holds the key and answers anything at any time:
//! it never panics, and comes to an end.
#![no_main]

mod script;

use std::time::Duration;

use fabricbios_fallback_udp::{
    DataKey, crc32c,
    transfer::{Requester, Setup, Transfer, Work},
};
use fabricbios_wire::{
    DATA_HEADER_LEN, DATA_OVERHEAD, DataHeader, DataStatus, DpKey, HELLO_LEN, HelloReply, LeaseId,
};
use libfuzzer_sys::fuzz_target;
use script::Script;

const GIVE_UP: Duration = Duration::from_secs(30);

fn key() -> DataKey {
    DataKey::new(&DpKey([7; 32]))
}

fuzz_target!(|bytes: &[u8]| {
    let mut script = Script(bytes);
    let mut requester = Requester::new(Setup {
        lease_id: LeaseId(7),
        key: key(),
        payload_mac: script.byte().unwrap_or(0) & 1 == 1,
        give_up: GIVE_UP,
        seed: 1,
        route_mtu: 576 + script.small() as usize % 16_384,
        ip_header: 20,
    });
    let from = vec![1; script.small() as usize % 70_000];
    let mut into = vec![0; script.small() as usize % 70_000];
    let mut now = Duration::from_secs(1);
    let (offset, work) = (script.number(), script.byte().unwrap_or(0));
    now = run(
        requester.transfer(
            Work::Write {
                offset,
                from: &from,
            },
            now,
        ),
        &mut script,
        now,
    );
    let work = match work % 3 {
        0 => Work::Read {
            offset,
            into: &mut into,
        },
        1 => Work::Ping,
        _ => Work::Hello,
    };
    run(requester.transfer(work, now), &mut script, now);
});

/// Until it is over: as long as the script lasts, and then in silence.
fn run(mut transfer: Transfer<'_>, script: &mut Script<'_>, mut now: Duration) -> Duration {
    let began = now;
    let mut asked = Vec::new();
    while transfer.outcome().is_none() {
        while let Some(transmit) = transfer.poll_transmit(now) {
            let mut datagram = transmit.prefix.to_vec();
            datagram.extend_from_slice(transmit.payload);
            asked.push(datagram);
        }
        match script.byte() {
            Some(step) => {
                let reply = reply(step, &asked, script);
                now += Duration::from_millis(u64::from(step));
                transfer.on_datagram(&reply, now);
            }
            None => now = transfer.next_timeout().unwrap_or(now).max(now),
        }
        // Something was done at each step of the script at most.
        let steps = u32::try_from(script.0.len()).unwrap_or(u32::MAX).max(1);
        assert!(
            now < began + GIVE_UP * 4096 || steps > 4096,
            "it does not end"
        );
    }
    now
}

/// A reply to one of the requests, more or less.
fn reply(step: u8, asked: &[Vec<u8>], script: &mut Script<'_>) -> Vec<u8> {
    let which = usize::from(script.byte().unwrap_or(0));
    let Some(header) = asked.iter().rev().nth(which).and_then(|it| header_of(it)) else {
        return script.rest(usize::from(step));
    };
    let status = DataStatus::from_byte(script.byte().unwrap_or(0) % 16).unwrap_or(DataStatus::Ok);
    let mut told = header.answered(status);
    let payload = match (status, header.op) {
        (DataStatus::Ok, 1) => hello(header.payload_len, script),
        (DataStatus::Ok, 2) => vec![step; header.length as usize % 9_129],
        _ => script.rest(usize::from(step & 7)),
    };
    match step >> 4 {
        0 => told.offset ^= script.number(),
        1 => told.length ^= script.small(),
        2 => told.op = script.byte().unwrap_or(0),
        3 => told.flags ^= script.byte().unwrap_or(0),
        _ => {}
    }
    told.payload_len = payload.len() as u32;
    told.payload_crc = crc32c(&payload);
    let tag = match step & 15 {
        0 => [0; 32],
        _ => key().tag(&told, &payload),
    };
    [&told.bytes()[..], &tag, &payload].concat()
}

fn header_of(datagram: &[u8]) -> Option<DataHeader> {
    let header: &[u8; DATA_HEADER_LEN] = datagram.first_chunk()?;
    assert!(datagram.len() >= DATA_OVERHEAD);
    DataHeader::read(header)
}

fn hello(length: u32, script: &mut Script<'_>) -> Vec<u8> {
    let told = HelloReply {
        resource_len: script.number().wrapping_mul(1 << 10),
        unit: script.byte().unwrap_or(1).into(),
        max_read: script.small(),
        max_write: script.small(),
        session: script.small(),
        window: u16::from(script.byte().unwrap_or(128)),
        read_only: script.byte() == Some(255),
        remaining_ms: script.small(),
        datagram_max: script.small().wrapping_mul(64),
        write_verifier: script.small().into(),
    };
    let mut payload = told.bytes().to_vec();
    payload.resize((length as usize).clamp(HELLO_LEN, 9_128), 0);
    payload
}
