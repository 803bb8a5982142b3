//! A server that holds the key and may send any reply at any time.

use std::time::Duration;

use fabricbios_fallback_udp::{DataKey, crc32c, transfer::Setup};
use fabricbios_wire::{
    DATA_HEADER_LEN, DATA_OVERHEAD, DATA_PAYLOAD_MAX, DataHeader, DataStatus, DpKey, HELLO_LEN,
    HelloReply, LeaseId,
};

use crate::script::Script;

/// The client gives up a silent server after this time.
pub const GIVE_UP: Duration = Duration::from_secs(30);

/// The client half, with a datagram size from the script.
pub fn setup(script: &mut Script<'_>) -> Setup {
    Setup {
        lease_id: LeaseId(7),
        key: key(),
        payload_mac: script.byte().unwrap_or(0) & 1 == 1,
        give_up: GIVE_UP,
        seed: 1,
        route_mtu: 576 + script.small() as usize % 16_384,
        ip_header: 20,
    }
}

pub fn key() -> DataKey {
    DataKey::new(&DpKey([7; 32]))
}

/// A reply to one of the requests, possibly damaged. Some HELLOs get the reply `usual`, if there is one.
pub fn reply(
    step: u8,
    asked: &[Vec<u8>],
    usual: Option<&HelloReply>,
    script: &mut Script<'_>,
) -> Vec<u8> {
    let which = usize::from(script.byte().unwrap_or(0));
    let Some(header) = asked.iter().rev().nth(which).and_then(|it| header_of(it)) else {
        return script.rest(usize::from(step));
    };
    let status = DataStatus::from_byte(script.byte().unwrap_or(0) % 16).unwrap_or(DataStatus::Ok);
    let mut told = header.answered(status);
    let payload = match (status, header.op) {
        (DataStatus::Ok, 1) => hello(header.payload_len, usual, script),
        (DataStatus::Ok, 2) => vec![step; read_bytes(&header, usual.map_or(1, |it| it.unit))],
        (DataStatus::Ok, _) if step & 7 > 0 => Vec::new(),
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

/// How many bytes a READ should return.
fn read_bytes(header: &DataHeader, unit: u32) -> usize {
    let parts = header.part().ok().flatten().map_or(1, |part| part.count());
    let bytes = u64::from(header.length) * u64::from(unit) / u64::from(parts);
    usize::try_from(bytes).unwrap_or(usize::MAX) % (DATA_PAYLOAD_MAX + 1)
}

fn header_of(datagram: &[u8]) -> Option<DataHeader> {
    let header: &[u8; DATA_HEADER_LEN] = datagram.first_chunk()?;
    assert!(datagram.len() >= DATA_OVERHEAD);
    DataHeader::read(header)
}

fn hello(length: u32, usual: Option<&HelloReply>, script: &mut Script<'_>) -> Vec<u8> {
    let told = match usual {
        Some(usual) if script.byte().unwrap_or(0) < 128 => HelloReply {
            session: script.small(),
            write_verifier: script.small().into(),
            ..*usual
        },
        _ => any_hello(script),
    };
    let mut payload = told.bytes().to_vec();
    payload.resize((length as usize).clamp(HELLO_LEN, DATA_PAYLOAD_MAX), 0);
    payload
}

fn any_hello(script: &mut Script<'_>) -> HelloReply {
    HelloReply {
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
    }
}
