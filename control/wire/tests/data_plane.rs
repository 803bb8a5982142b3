//! Frames of the data plane over UDP: every field is where the specification page has it, and no bytes from a peer
//! cause more than an error.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

use fabricbios_wire::*;
use proptest::{collection::vec, prelude::*, sample::select};

fn header() -> impl Strategy<Value = DataHeader> {
    let service = select(vec![DataService::Memory, DataService::Block]);
    let bytes = any::<(u8, u8, u8)>();
    let numbers = any::<(u128, u64, u64, u32, u32, u32, u32)>();
    (service, bytes, numbers).prop_map(|(service, (op, flags, status), n)| DataHeader {
        service,
        op,
        flags,
        status,
        lease_id: LeaseId(n.0),
        nonce: n.1,
        offset: n.2,
        length: n.3,
        payload_crc: n.4,
        payload_len: n.5,
        reserved: n.6,
    })
}

fn datagram(header: &DataHeader, tag: u8, payload: &[u8]) -> Vec<u8> {
    [&header.bytes()[..], &[tag; DATA_TAG_LEN], payload].concat()
}

fn with_length(header: DataHeader, payload: &[u8]) -> DataHeader {
    let payload_len = u32::try_from(payload.len()).unwrap();
    DataHeader {
        payload_len,
        ..header
    }
}

proptest! {
    #[test]
    fn a_header_comes_back_as_it_was(header in header()) {
        prop_assert_eq!(DataHeader::read(&header.bytes()), Some(header));
    }

    #[test]
    fn a_frame_comes_back_as_it_was(
        header in header(), tag: u8, payload in vec(any::<u8>(), 0..400),
    ) {
        let header = with_length(header, &payload);
        let bytes = datagram(&header, tag, &payload);
        let frame = DataFrame::parse(&bytes).unwrap();
        prop_assert_eq!(frame.header, header);
        prop_assert_eq!(frame.header_bytes, &header.bytes());
        prop_assert_eq!(frame.tag, &[tag; DATA_TAG_LEN]);
        prop_assert_eq!(frame.payload, &payload[..]);
        for length in 0..bytes.len() {
            prop_assert!(DataFrame::parse(&bytes[..length]).is_err());
        }
    }

    #[test]
    fn a_length_that_is_not_what_follows_leaves_a_header_to_answer_to(
        header in header(), payload in vec(any::<u8>(), 0..400),
    ) {
        prop_assume!(header.payload_len as usize != payload.len());
        let error = DataFrame::parse(&datagram(&header, 0, &payload)).unwrap_err();
        prop_assert_eq!(error, NotAFrame::WrongLength(header));
    }

    #[test]
    fn noise_never_panics(noise in vec(any::<u8>(), 0..400), magic: bool) {
        let mut noise = noise;
        if let (true, Some(start)) = (magic, noise.get_mut(..5)) {
            start.copy_from_slice(b"FBMU\0");
        }
        if let Ok(frame) = DataFrame::parse(&noise) {
            prop_assert_eq!(frame.payload.len(), noise.len() - DATA_OVERHEAD);
            prop_assert_eq!(&frame.header.bytes(), frame.header_bytes);
        }
        if let Some(read) = HelloReply::read(&noise) {
            prop_assert_eq!(HelloReply::read(&read.bytes()), Some(read));
        }
    }

    #[test]
    fn an_answer_repeats_what_was_asked(asked in header(), status in select(DataStatus::ALL)) {
        let answer = asked.answered(status);
        prop_assert!(answer.is_reply());
        prop_assert_eq!(answer.has_payload_mac(), asked.has_payload_mac());
        prop_assert_eq!(answer.flags & !(data_flags::REPLY | data_flags::PAYLOAD_MAC), 0);
        prop_assert_eq!(DataStatus::from_byte(answer.status), Some(status));
        prop_assert_eq!((answer.payload_crc, answer.payload_len), (0, 0));
        let place = |it: DataHeader| (it.offset, it.length, it.reserved);
        let back = |it: DataHeader| (it.service, it.op, it.lease_id, it.nonce, place(it));
        prop_assert_eq!(back(answer), back(asked));
        let nonce = u64::from(asked.session()) << 32 | u64::from(asked.counter());
        prop_assert_eq!(nonce, asked.nonce);
    }

    #[test]
    fn what_hello_says_comes_back_whatever_follows_it(
        numbers in any::<(u64, u32, u32, u32, u32, u64)>(), session in 1..=u32::MAX, unit in 1..=u32::MAX,
        window in 2..=u16::MAX, read_only: bool, padding in 0_usize..100,
    ) {
        let said = HelloReply {
            resource_len: numbers.0,
            unit,
            max_read: numbers.1,
            max_write: numbers.2,
            session,
            window,
            read_only,
            remaining_ms: numbers.3,
            datagram_max: numbers.4,
            write_verifier: numbers.5,
        };
        let payload = [&said.bytes()[..], &vec![0; padding]].concat();
        prop_assert_eq!(HelloReply::read(&payload), Some(said));
        let short = HelloReply { write_verifier: 0, ..said };
        prop_assert_eq!(HelloReply::read(&payload[..HELLO_REPLY_LEN - 1]), Some(short));
        prop_assert_eq!(HelloReply::read(&payload[..HELLO_LEN - 1]), None);
    }
}

#[test]
fn the_parts_of_a_block_are_its_bytes_in_order() {
    for (unit, count) in [(512, 2), (512, 8), (4096, 4), (4096, 64)] {
        let parts = (0..count).map(|index| Part::new(index, count).unwrap());
        let bytes: Vec<usize> = parts.flat_map(|part| part.range(unit).unwrap()).collect();
        assert!(bytes.into_iter().eq(0..unit as usize), "{unit} {count}");
    }
    assert_eq!(Part::new(0, 16).unwrap().range(512), None, "32 bytes");
    assert_eq!(Part::new(0, 64).unwrap().range(2048), None, "32 bytes");
}

#[test]
fn what_reserved_says_is_a_part_or_nothing_or_nonsense() {
    let header = |reserved| {
        let header = DataHeader::read(&block_header()).unwrap();
        DataHeader { reserved, ..header }
    };
    assert_eq!(header(0).part(), Ok(None));
    let part = Part::new(3, 4);
    assert_eq!(header(0x0003_0004).part(), Ok(part));
    assert_eq!(part.unwrap().reserved(), 0x0003_0004);
    for nonsense in [1, 3, 0x0001_0000, 0x0004_0004, 128, 0x8000_8000, u32::MAX] {
        assert_eq!(header(nonsense).part(), Err(NotAPart), "{nonsense:#x}");
    }
}

/// Each byte of the header belongs to one field, in the order of the specification page.
#[test]
fn every_field_lies_where_the_page_has_it() {
    let bytes: [u8; DATA_HEADER_LEN] = core::array::from_fn(|at| match at {
        0..4 => b"FBMU"[at],
        4 => 0,
        _ => u8::try_from(at).unwrap(),
    });
    let header = DataHeader::read(&bytes).unwrap();
    assert_eq!(header.service, DataService::Memory);
    assert_eq!((header.op, header.flags, header.status), (5, 6, 7));
    assert_eq!(header.lease_id.0, 0x0809_0a0b_0c0d_0e0f_1011_1213_1415_1617);
    assert_eq!(header.nonce, 0x1819_1a1b_1c1d_1e1f);
    assert_eq!(header.offset, 0x2021_2223_2425_2627);
    assert_eq!(header.length, 0x2829_2a2b);
    assert_eq!(header.payload_crc, 0x2c2d_2e2f);
    assert_eq!(header.payload_len, 0x3031_3233);
    assert_eq!(header.reserved, 0x3435_3637);
}

#[test]
fn other_protocols_and_versions_are_nobodys() {
    let bytes = datagram(&DataHeader::read(&block_header()).unwrap(), 0, &[]);
    assert!(DataFrame::parse(&bytes).is_ok());
    for at in 0..5 {
        for byte in (0..=0xFF).filter(|byte| *byte != bytes[at]) {
            let mut other = bytes.clone();
            other[at] = byte;
            if &other[..5] != b"FBMU\0" {
                assert_eq!(
                    DataFrame::parse(&other).unwrap_err(),
                    NotAFrame::Foreign,
                    "byte {at} = {byte:02x}"
                );
            }
        }
    }
}

fn block_header() -> [u8; DATA_HEADER_LEN] {
    let mut bytes = [0; DATA_HEADER_LEN];
    bytes[..4].copy_from_slice(b"FBBU");
    bytes
}

#[test]
fn the_longest_datagram_is_taken_and_one_byte_more_is_not() {
    for (payload, taken) in [(DATA_PAYLOAD_MAX, true), (DATA_PAYLOAD_MAX + 1, false)] {
        let payload = vec![0; payload];
        let header = with_length(DataHeader::read(&block_header()).unwrap(), &payload);
        let bytes = datagram(&header, 0, &payload);
        assert_eq!(DataFrame::parse(&bytes).is_ok(), taken, "{}", bytes.len());
    }
}

#[test]
fn a_hello_without_a_session_a_unit_or_a_window_is_of_no_use() {
    let usable = HelloReply {
        resource_len: 0,
        unit: 1,
        max_read: 1,
        max_write: 0,
        session: 1,
        window: 2,
        read_only: true,
        remaining_ms: 0,
        datagram_max: 9_216,
        write_verifier: 0,
    };
    assert_eq!(HelloReply::read(&usable.bytes()), Some(usable));
    for useless in [
        HelloReply { unit: 0, ..usable },
        HelloReply {
            session: 0,
            ..usable
        },
        HelloReply {
            window: 1,
            ..usable
        },
    ] {
        assert_eq!(HelloReply::read(&useless.bytes()), None, "{useless:?}");
    }
}
