//! Frames of the data plane over UDP, under the key 00 01 … 1f.

use fabricbios_wire::*;

use super::*;
use crate::{
    data_plane::{self, crc32c, sealed, sealed_as_told},
    samples,
};

const SESSION_7: u64 = 0x0000_0007_0000_0000;
const BYTES: &[u8] = b"sixteen and more bytes";

fn header(op: DataOp, nonce: u64, offset: u64, length: u32) -> DataHeader {
    DataHeader {
        service: DataService::Memory,
        op: op as u8,
        flags: 0,
        status: 0,
        lease_id: samples::LEASE,
        nonce,
        offset,
        length,
        payload_crc: 0,
        payload_len: 0,
        reserved: 0,
    }
}

fn hello() -> DataHeader {
    header(DataOp::Hello, 0xa1a2_a3a4_a5a6_a7a8, 0, 0)
}

fn read() -> DataHeader {
    header(DataOp::Read, SESSION_7 | 1, 0x0000_0102_0304_0506, 22)
}

fn write() -> DataHeader {
    header(DataOp::Write, SESSION_7 | 0xFFFF_FFFF, 0x1000, 22)
}

fn with_mac(header: DataHeader) -> DataHeader {
    let flags = header.flags | data_flags::PAYLOAD_MAC;
    DataHeader { flags, ..header }
}

fn of_blocks(header: DataHeader) -> DataHeader {
    let service = DataService::Block;
    DataHeader { service, ..header }
}

/// The header of a part of a block.
fn part(index: u16, count: u16, header: DataHeader) -> DataHeader {
    let reserved = Part::new(index, count).map_or(0, Part::reserved);
    let length = 1;
    of_blocks(DataHeader {
        reserved,
        length,
        ..header
    })
}

fn quarter() -> Vec<u8> {
    (0..=255).cycle().take(1024).collect()
}

pub(crate) fn requests(c: &mut Vec<Case>) {
    let mut add = |name: &str, about: &str, header: DataHeader, payload: &[u8]| {
        let bytes = sealed(&header, payload);
        let (value, _) = data_plane::request(&bytes).unwrap_or_default();
        let name = format!("data_plane_request_{name}");
        good(c, &name, Kind::DataRequest, about, bytes, value);
    };
    add(
        "hello",
        "HELLO, as short as it can be",
        hello(),
        &[0; HELLO_LEN],
    );
    let again = DataHeader {
        offset: 6,
        ..hello()
    };
    let about = "HELLO with padding that gives up session 6";
    add("hello_padded", about, again, &[0; 100]);
    add("read", "READ of 22 bytes", read(), &[]);
    add(
        "read_mac",
        "READ; the reply is to have PAYLOAD_MAC",
        with_mac(read()),
        &[],
    );
    add(
        "write",
        "WRITE, the last counter of session 7",
        write(),
        BYTES,
    );
    add(
        "write_mac",
        "WRITE whose tag covers the payload",
        with_mac(write()),
        BYTES,
    );
    let ping = header(DataOp::Ping, 0, 0xFFFF_FFFF_FFFF_FFFF, 0xFFFF_FFFF);
    add("ping", "PING, any nonce, offset and length", ping, &[]);
    add("block_read", "READ of 22 blocks", of_blocks(read()), &[]);
    let flush = header(DataOp::Flush, SESSION_7 | 2, 0, 0);
    add("block_flush", "FLUSH", of_blocks(flush), &[]);
    let about = "READ of the last quarter of a block";
    add("block_read_part", about, part(3, 4, read()), &[]);
    let about = "WRITE of the third quarter of a block of 4096 bytes";
    let third = DataHeader {
        nonce: SESSION_7 | 12,
        ..write()
    };
    add("block_write_part", about, part(2, 4, third), &quarter());
    let about = "WRITE of the last of 64 parts, whose tag covers the payload";
    let last = with_mac(part(63, 64, write()));
    add("block_write_part_mac", about, last, &[0xA5; 64]);
}

fn answered(asked: DataHeader, status: DataStatus) -> DataHeader {
    asked.answered(status)
}

pub(crate) fn replies(c: &mut Vec<Case>) {
    let mut add = |name: &str, about: &str, header: DataHeader, payload: &[u8]| {
        let bytes = sealed(&header, payload);
        let (value, _) = data_plane::reply(&bytes).unwrap_or_default();
        let name = format!("data_plane_reply_{name}");
        good(c, &name, Kind::DataReply, about, bytes, value);
    };
    let said = hello_reply().bytes();
    add(
        "hello",
        "what a session may do",
        answered(hello(), DataStatus::Ok),
        &said[..HELLO_LEN],
    );
    let padded = [&said[..], &[0; 52]].concat();
    let about = "as long as its request";
    add(
        "hello_padded",
        about,
        answered(hello(), DataStatus::Ok),
        &padded,
    );
    let blocks = HelloReply {
        unit: 4096,
        read_only: true,
        write_verifier: 0xb0b1_b2b3_b4b5_b6b7,
        ..hello_reply()
    };
    let about = "a read-only lease of blocks";
    add(
        "block_hello",
        about,
        answered(of_blocks(hello()), DataStatus::Ok),
        &blocks.bytes(),
    );
    add("read", "22 bytes", answered(read(), DataStatus::Ok), BYTES);
    let about = "22 bytes that the tag covers";
    add(
        "read_mac",
        about,
        answered(with_mac(read()), DataStatus::Ok),
        BYTES,
    );
    add(
        "write",
        "WRITE done",
        answered(write(), DataStatus::Ok),
        &[],
    );
    let about = "the last quarter of a block";
    let asked = part(3, 4, read());
    add(
        "block_read_part",
        about,
        answered(asked, DataStatus::Ok),
        &quarter(),
    );
    let about = "the third quarter of a block is there, or with it the block was written";
    let asked = part(2, 4, write());
    add(
        "block_write_part",
        about,
        answered(asked, DataStatus::Ok),
        &[],
    );
    for status in DataStatus::ALL {
        let name = format!("status_{}_{}", *status as u8, status.name().to_lowercase());
        add(
            &name,
            "every status, to a READ",
            answered(read(), *status),
            &[],
        );
    }
}

fn hello_reply() -> HelloReply {
    HelloReply {
        resource_len: 0x0000_0011_1213_1415,
        unit: 1,
        max_read: 9_128,
        max_write: 9_127,
        session: 7,
        window: 128,
        read_only: false,
        remaining_ms: 59_005,
        datagram_max: 9_216,
        write_verifier: 0,
    }
}

/// Requests that a server refuses before it looks at the lease.
pub(crate) fn bad_requests(c: &mut Vec<Case>) {
    let mut add = |name: &str, about: &str, bytes: Vec<u8>, word: &'static str| {
        let name = format!("bad_data_plane_request_{name}");
        refused(c, &name, Kind::DataRequest, about, bytes, word);
    };
    let whole = sealed(&write(), BYTES);
    let with = |at: usize, byte: u8| {
        let mut datagram = whole.clone();
        datagram[at] = byte;
        datagram
    };
    add("empty", "no bytes at all", vec![], "dropped");
    add(
        "cut",
        "87 bytes",
        sealed(&read(), &[])[..87].to_vec(),
        "dropped",
    );
    add("magic", "FBMV", with(3, b'V'), "dropped");
    add("version", "version 1", with(4, 1), "dropped");
    let reflected = sealed(&answered(read(), DataStatus::Ok), BYTES);
    add("reflected", "a reply, sent back", reflected, "dropped");
    let lost = "unauthenticated";
    add(
        "payload_short",
        "a byte is missing",
        whole[..whole.len() - 1].to_vec(),
        lost,
    );
    add(
        "payload_long",
        "a byte too many",
        [&whole[..], &[0]].concat(),
        lost,
    );
    let long = sealed(&hello(), &[0; DATA_PAYLOAD_MAX + 1]);
    add("too_long", "9,217 bytes", long, lost);
    add("offset_changed", "a bit of the offset", with(39, 1), lost);
    add(
        "tag_first",
        "a bit of the first byte of the tag",
        with(56, whole[56] ^ 1),
        lost,
    );
    add(
        "tag_last",
        "a bit of the last byte of the tag",
        with(87, whole[87] ^ 0x80),
        lost,
    );
    let zero = [&whole[..56], &[0; 32], BYTES].concat();
    add("tag_zero", "a tag of zeros", zero, lost);
    add("payload_changed", "the CRC finds it", with(88, b'S'), lost);
    let forged = DataHeader {
        payload_crc: crc32c(b"Sixteen and more bytes"),
        payload_len: 22,
        ..with_mac(write())
    };
    let mac = sealed_as_told(&forged, BYTES);
    let forged = [&mac[..88], b"S", &mac[89..]].concat();
    add(
        "payload_forged",
        "the CRC fits; the tag covers the payload and does not",
        forged,
        lost,
    );
    let crc = DataHeader {
        payload_crc: 1,
        ..read()
    };
    add(
        "crc_of_nothing",
        "a CRC without a payload",
        sealed_as_told(&crc, &[]),
        lost,
    );
    let word = "INVALID";
    for (name, about, header) in [
        (
            "status",
            "a status in a request",
            DataHeader {
                status: 1,
                ..read()
            },
        ),
        (
            "reserved",
            "reserved is 1",
            DataHeader {
                reserved: 1,
                ..read()
            },
        ),
        (
            "memory_part",
            "a part to FBMU",
            DataHeader {
                service: DataService::Memory,
                ..part(0, 2, read())
            },
        ),
        (
            "flush_part",
            "a part in FLUSH",
            part(0, 2, header(DataOp::Flush, SESSION_7 | 2, 0, 0)),
        ),
        (
            "part_3_of_3",
            "three parts, no power of two",
            of_blocks(DataHeader {
                reserved: 0x0002_0003,
                ..read()
            }),
        ),
        (
            "part_4_of_4",
            "a fifth part of four",
            of_blocks(DataHeader {
                reserved: 0x0004_0004,
                ..read()
            }),
        ),
        (
            "part_0_of_1",
            "one part",
            of_blocks(DataHeader {
                reserved: 1,
                ..read()
            }),
        ),
        (
            "part_0_of_128",
            "128 parts",
            of_blocks(DataHeader {
                reserved: 128,
                ..read()
            }),
        ),
        (
            "part_1_of_0",
            "a part of none",
            of_blocks(DataHeader {
                reserved: 0x0001_0000,
                ..read()
            }),
        ),
        (
            "flag_02",
            "an undefined flag",
            DataHeader { flags: 2, ..read() },
        ),
        (
            "flag_40",
            "an undefined flag",
            DataHeader {
                flags: 0x40,
                ..read()
            },
        ),
        ("op_0", "no operation", DataHeader { op: 0, ..read() }),
        (
            "op_6",
            "an unknown operation",
            DataHeader { op: 6, ..read() },
        ),
        (
            "memory_flush",
            "FLUSH to FBMU",
            DataHeader {
                op: 5,
                length: 0,
                offset: 0,
                ..read()
            },
        ),
    ] {
        add(name, about, sealed(&header, &[]), word);
    }
}

/// Replies that a client ignores.
pub(crate) fn bad_replies(c: &mut Vec<Case>) {
    let mut add = |name: &str, about: &str, bytes: Vec<u8>| {
        let name = format!("bad_data_plane_reply_{name}");
        refused(c, &name, Kind::DataReply, about, bytes, "ignored");
    };
    let whole = sealed(&answered(read(), DataStatus::Ok), BYTES);
    let unauthenticated = answered(read(), DataStatus::Invalid).bytes();
    let about = "INVALID with a tag of zeros: anybody could have sent it";
    add(
        "unauthenticated",
        about,
        [&unauthenticated[..], &[0; 32]].concat(),
    );
    add("request", "a request, sent back", sealed(&read(), &[]));
    add(
        "cut",
        "a byte is missing",
        whole[..whole.len() - 1].to_vec(),
    );
    let mut changed = whole.clone();
    changed[88] ^= 1;
    add("payload_changed", "the CRC finds it", changed);
    let mut changed = whole;
    changed[6] = 0x81;
    add("flag_changed", "PAYLOAD_MAC set on its way", changed);
}
