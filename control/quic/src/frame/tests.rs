//! The bytes of a stream, split at every place, whole and damaged.

use fabricbios_wire::{LeaseId, decode_answer, encode_gpu_request, encode_request};
use proptest::prelude::*;

use super::*;

fn query() -> Vec<u8> {
    encode_request(7, 8, &Request::LeaseQuery(LeaseId(9)))
}

fn header(frame: &[u8]) -> Header {
    Header::parse(frame.first_chunk().unwrap()).unwrap()
}

/// The result of a stream of these bytes, received `step` bytes at a time.
fn receive(bytes: &[u8], step: usize) -> Received {
    let mut frame = Frame::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        let wanted = frame.wants();
        assert!(wanted > 0, "a reader that wants nothing never sees the end");
        let (now, later) = rest.split_at(wanted.min(step).min(rest.len()));
        if let Some(received) = frame.push(now) {
            return received;
        }
        rest = later;
    }
    frame.end()
}

fn refusal(received: Received, to: &Header) -> Refusal {
    match received {
        Received::Answer(bytes) => decode_answer(to, &bytes).unwrap().unwrap_err(),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_request_is_understood_however_it_is_cut() {
    let bytes = query();
    for step in 1..=bytes.len() {
        let Received::Request(got, request) = receive(&bytes, step) else {
            panic!("refused at {step}")
        };
        assert_eq!(got, header(&bytes));
        assert_eq!(request, Request::LeaseQuery(LeaseId(9)));
    }
}

#[test]
fn a_ping_is_answered_here() {
    let bytes = encode_request(1, 2, &Request::Ping(42));
    let Received::Answer(answer) = receive(&bytes, 64) else {
        panic!("reached the table")
    };
    assert_eq!(
        decode_answer(&header(&bytes), &answer).unwrap(),
        Ok(Reply::Pong(42))
    );
}

#[test]
fn a_frame_cut_short_is_refused_by_its_own_number() {
    let bytes = query();
    for length in HEADER_LEN..bytes.len() {
        let refusal = refusal(receive(&bytes[..length], 64), &header(&bytes));
        assert_eq!(
            refusal.error,
            LeaseError::Malformed,
            "{length} bytes: {refusal}"
        );
    }
}

#[test]
fn less_than_a_header_is_refused_to_nobody() {
    let zero_header = Header {
        flags: 0,
        msg_type: 0,
        request_id: 0,
        nonce: 0,
        payload_len: 0,
    };
    for length in 0..HEADER_LEN {
        let refusal = refusal(receive(&query()[..length], 64), &zero_header);
        assert_eq!(refusal.error, LeaseError::Malformed);
    }
}

#[test]
fn bytes_after_the_frame_are_refused() {
    let bytes = query();
    let longer = [&bytes[..], b"x"].concat();
    for step in 1..=longer.len() {
        let refusal = refusal(receive(&longer, step), &header(&bytes));
        assert_eq!(refusal.error, LeaseError::Malformed);
    }
}

#[test]
fn an_absurd_length_is_refused_before_any_of_it_is_read() {
    let mut bytes = query();
    bytes[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
    let mut frame = Frame::default();
    assert!(frame.push(&bytes[..HEADER_LEN]).is_some());
    assert!(frame.bytes.capacity() < 1_024);
}

#[test]
fn other_versions_flags_and_messages_are_unsupported() {
    for (offset, value) in [(0, 1), (1, 0x40), (1, 0x80), (2, 0xff)] {
        let mut bytes = query();
        let asked = header(&bytes);
        bytes[offset] = value;
        let asked = Header {
            msg_type: u16::from_be_bytes([bytes[2], bytes[3]]),
            ..asked
        };
        let refusal = refusal(receive(&bytes, 64), &asked);
        assert_eq!(
            refusal.error,
            LeaseError::Unsupported,
            "byte {offset} = {value:#x}: {refusal}"
        );
    }
}

#[test]
fn other_flags_of_the_first_frame_of_a_session_are_unsupported() {
    for (code, flags) in
        (0x0601..=0x060D_u16).flat_map(|code| (1..=u8::MAX).map(move |it| (code, it)))
    {
        let mut bytes = open(0);
        bytes[1] = flags;
        bytes[2..4].copy_from_slice(&code.to_be_bytes());
        let asked = Header {
            msg_type: code,
            ..header(&open(0))
        };
        for step in [1, HEADER_LEN, bytes.len()] {
            let refusal = refusal(receive(&bytes, step), &asked);
            assert_eq!(
                refusal.error,
                LeaseError::Unsupported,
                "{code:#x}, flags {flags:#x}: {refusal}"
            );
        }
    }
}

#[test]
fn a_peer_that_is_late_is_told_so() {
    let bytes = query();
    let mut frame = Frame::default();
    frame.push(&bytes[..HEADER_LEN]);
    let answer = frame.timed_out(Duration::from_secs(3));
    let refusal = decode_answer(&header(&bytes), &answer)
        .unwrap()
        .unwrap_err();
    assert!(refusal.message.contains("3s"), "{refusal}");
}

fn open(session: u64) -> Vec<u8> {
    let lease_id = LeaseId(9);
    encode_gpu_request(7, 8, &GpuRequest::Open { lease_id, session })
}

#[test]
fn a_stream_to_a_session_is_read_to_the_end_of_its_first_frame() {
    let bytes = open(3);
    for step in 1..=bytes.len() {
        let Received::Session(first) = receive(&bytes, step) else {
            panic!("refused at {step}")
        };
        assert_eq!((&first.bytes, first.header), (&bytes, header(&bytes)));
        let (lease_id, session) = (LeaseId(9), 3);
        assert_eq!(first.open, SessionOpen { lease_id, session });
    }
    let mut frame = Frame::default();
    assert!(frame.push(&bytes[..HEADER_LEN]).is_none());
    assert_eq!(frame.wants(), bytes.len() - HEADER_LEN);
}

#[test]
fn a_stream_to_a_session_that_ends_too_early_or_names_no_lease_is_refused() {
    let bytes = open(0);
    for length in HEADER_LEN..bytes.len() {
        let refusal = refusal(receive(&bytes[..length], 64), &header(&bytes));
        assert_eq!(refusal.error, LeaseError::Malformed);
    }
    let mut of_no_lease = bytes.clone();
    of_no_lease[HEADER_LEN..HEADER_LEN + 16].fill(0);
    let refusal = refusal(receive(&of_no_lease, 64), &header(&bytes));
    assert_eq!(refusal.error, LeaseError::InvalidArgs);
}

#[test]
fn an_operation_without_a_session_is_refused_at_its_header() {
    for code in 0x0602..=0x060D_u16 {
        let mut bytes = open(0);
        bytes[2..4].copy_from_slice(&code.to_be_bytes());
        let asked = header(&bytes);
        let refusal = refusal(receive(&bytes[..HEADER_LEN], 64), &asked);
        assert_eq!(refusal.error, LeaseError::InvalidArgs);
        assert!(
            refusal.message.contains("open a session first"),
            "{refusal}"
        );
    }
}

proptest! {
    #[test]
    fn no_bytes_panic_and_none_are_kept_beyond_one_frame(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
        valid_start in any::<bool>(),
        step in 1_usize..40,
    ) {
        if valid_start && bytes.len() >= 4 {
            let start = if bytes.len().is_multiple_of(2) { query() } else { open(0) };
            bytes[..4].copy_from_slice(&start[..4]);
        }
        receive(&bytes, step);
    }
}
