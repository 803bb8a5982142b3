//! Each side decodes what the other side encodes, and no bytes from a peer cause more than an error.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

mod common;

use fabricbios_wire::*;
use proptest::{collection::vec, prelude::*};

fn asked(message_type: MessageType) -> Header {
    let msg_type = message_type as u16;
    Header {
        flags: 0,
        msg_type,
        request_id: 7,
        nonce: 0x0102_0304_0506_0708,
        payload_len: 0,
    }
}

proptest! {
    #[test]
    fn a_request_comes_back_as_it_was(request in common::request(), id: u32, nonce: u64) {
        let frame = encode_request(id, nonce, &request);
        let (header, back) = decode_request(&frame).unwrap();
        prop_assert_eq!(&back, &request);
        prop_assert_eq!((header.request_id, header.nonce, header.flags), (id, nonce, 0));
        prop_assert_eq!(header.payload_len as usize, frame.len() - HEADER_LEN);
        prop_assert_eq!(request.check(), Ok(()));
    }

    #[test]
    fn an_answer_comes_back_as_it_was((message_type, answer) in common::answer()) {
        let header = asked(message_type);
        prop_assert_eq!(decode_answer(&header, &encode_answer(&header, &answer)).unwrap(), answer);
    }

    #[test]
    fn an_operation_of_a_session_comes_back_as_it_was_and_cut_is_an_error(
        request in common::gpu::request(), id: u32, nonce: u64,
    ) {
        let frame = encode_gpu_request(id, nonce, &request);
        let (header, back) = decode_gpu_request(&frame).unwrap();
        prop_assert_eq!(&back, &request);
        prop_assert_eq!((header.request_id, header.nonce, header.flags), (id, nonce, 0));
        for length in (0..frame.len()).step_by(1 + frame.len() / 64) {
            prop_assert!(decode_gpu_request(&frame[..length]).is_err());
            prop_assert!(decode_gpu_request(&shortened(&frame, length)).is_err());
        }
    }

    #[test]
    fn any_bytes_of_an_operation_are_read_or_refused(code in 0x0600_u16..0x0610, payload in vec(any::<u8>(), 0..200)) {
        let mut frame = encode_gpu_request(1, 2, &GpuRequest::Close);
        frame[2..4].copy_from_slice(&code.to_be_bytes());
        frame[16..20].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes());
        frame.extend(payload);
        if let Ok((header, request)) = decode_gpu_request(&frame) {
            prop_assert_eq!(encode_gpu_request(header.request_id, header.nonce, &request), frame.clone());
        }
        let asked = Header { msg_type: code, ..asked(MessageType::Ping) };
        frame[1] = REPLY;
        decode_gpu_answer(&asked, &frame).ok();
    }

    #[test]
    fn a_request_cut_anywhere_is_an_error(request in common::request()) {
        let frame = encode_request(1, 2, &request);
        for length in 0..frame.len() {
            prop_assert!(decode_request(&frame[..length]).is_err());
            prop_assert!(decode_request(&shortened(&frame, length)).is_err());
        }
    }

    #[test]
    fn an_answer_cut_anywhere_is_an_error((message_type, answer) in common::answer()) {
        let header = asked(message_type);
        let frame = encode_answer(&header, &answer);
        for length in 0..frame.len() {
            prop_assert!(decode_answer(&header, &frame[..length]).is_err());
            prop_assert!(decode_answer(&header, &shortened(&frame, length)).is_err());
        }
    }

    #[test]
    fn a_byte_too_many_is_an_error(
        request in common::request(), (message_type, answer) in common::answer(), byte: u8,
    ) {
        let frame = lengthened(&encode_request(1, 2, &request), byte);
        prop_assert_eq!(decode_request(&frame).unwrap_err().error.fault, DecodeFault::Malformed);
        let header = asked(message_type);
        let frame = lengthened(&encode_answer(&header, &answer), byte);
        let fault = decode_answer(&header, &frame).unwrap_err().error.fault;
        prop_assert_eq!(fault, DecodeFault::Malformed);
    }

    /// A damaged frame that still decodes has the same meaning when it is encoded again.
    #[test]
    fn damage_is_an_error_or_another_message(
        request in common::request(), at: prop::sample::Index, byte: u8,
    ) {
        let mut frame = encode_request(1, 2, &request);
        let at = at.index(frame.len());
        frame[at] = byte;
        if let Ok((header, read)) = decode_request(&frame) {
            let again = encode_request(header.request_id, header.nonce, &read);
            prop_assert_eq!(decode_request(&again).unwrap().1, read);
        }
    }

    #[test]
    fn a_damaged_answer_is_an_error_or_another_answer(
        (message_type, answer) in common::answer(), at: prop::sample::Index, byte: u8,
    ) {
        let header = asked(message_type);
        let mut frame = encode_answer(&header, &answer);
        let at = at.index(frame.len());
        frame[at] = byte;
        if let Ok(read) = decode_answer(&header, &frame) {
            prop_assert_eq!(decode_answer(&header, &encode_answer(&header, &read)).unwrap(), read);
        }
    }

    #[test]
    fn noise_never_panics(noise in vec(any::<u8>(), 0..400), which in 0..MessageType::ALL.len()) {
        let header = asked(MessageType::ALL[which]);
        let mut flags = [0, REPLY].into_iter();
        let [request, answer] = [(); 2].map(|()| {
            let flags = flags.next().unwrap();
            let payload_len = u32::try_from(noise.len()).unwrap();
            [&Header { flags, payload_len, ..header }.to_bytes()[..], &noise].concat()
        });
        if let Ok((header, read)) = decode_request(&request) {
            let again = encode_request(header.request_id, header.nonce, &read);
            prop_assert_eq!(decode_request(&again).unwrap().1, read);
        }
        if let Ok(read) = decode_answer(&header, &answer) {
            prop_assert_eq!(decode_answer(&header, &encode_answer(&header, &read)).unwrap(), read);
        }
        let _: (bool, bool) = (decode_request(&noise).is_ok(), decode_answer(&header, &noise).is_ok());
        let _: (bool, bool) = (decode_flat(&noise).is_ok(), decode_structured(&noise).is_ok());
    }
}

/// The first `length` bytes of a frame, with this length in its header, as a hostile peer could send them.
fn shortened(frame: &[u8], length: usize) -> Vec<u8> {
    with_true_length(frame[..length].to_vec())
}

fn lengthened(frame: &[u8], byte: u8) -> Vec<u8> {
    with_true_length([frame, &[byte]].concat())
}

fn with_true_length(mut frame: Vec<u8>) -> Vec<u8> {
    if let Some(payload) = frame.len().checked_sub(HEADER_LEN) {
        frame[16..20].copy_from_slice(&u32::try_from(payload).unwrap().to_be_bytes());
    }
    frame
}
