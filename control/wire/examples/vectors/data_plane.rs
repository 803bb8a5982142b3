//! Frames of the data plane over UDP: sealed with the key of the vectors, and judged as far as possible without a
//! lease.

use fabricbios_wire::*;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::cases::json;

/// The bytes 00 01 … 1f.
pub(crate) const KEY: [u8; 32] = {
    let mut key = [0; 32];
    let mut at = 0;
    while at < key.len() {
        #[allow(clippy::cast_possible_truncation, reason = "at most 31")]
        let byte = at as u8;
        key[at] = byte;
        at += 1;
    }
    key
};

/// CRC-32C, bit by bit. The result for no bytes is 0, which is also the value of the field.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| crc >> 1 ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 };
    let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc));
    !bytes.iter().fold(u32::MAX, byte)
}

fn tag(header: &[u8], payload: &[u8]) -> [u8; DATA_TAG_LEN] {
    // Zeros extend a key that is shorter than a block (RFC 2104 section 2).
    let mut block = [0; 64];
    block[..KEY.len()].copy_from_slice(&KEY);
    let mut mac = Hmac::<Sha256>::new(&block.into());
    mac.update(header);
    mac.update(payload);
    mac.finalize().into_bytes().into()
}

/// The part of the payload that the tag covers: all or nothing.
fn covered<'a>(header: &DataHeader, payload: &'a [u8]) -> &'a [u8] {
    if header.has_payload_mac() {
        payload
    } else {
        &[]
    }
}

/// A datagram with this header unchanged, also a wrong one, and the right tag for it.
pub(crate) fn sealed_as_told(header: &DataHeader, payload: &[u8]) -> Vec<u8> {
    let bytes = header.bytes();
    let tag = tag(&bytes, covered(header, payload));
    [&bytes[..], &tag, payload].concat()
}

/// A datagram whose checksum, length and tag are right.
pub(crate) fn sealed(header: &DataHeader, payload: &[u8]) -> Vec<u8> {
    let header = DataHeader {
        payload_crc: crc32c(payload),
        payload_len: u32::try_from(payload.len()).unwrap_or(u32::MAX),
        ..*header
    };
    sealed_as_told(&header, payload)
}

/// The decision of a server before it looks at the lease (section 2, steps 1 to 3).
pub(crate) fn request(datagram: &[u8]) -> Result<(String, Vec<u8>), &'static str> {
    let is_reply = |header: &DataHeader| header.is_reply();
    let frame = match DataFrame::parse(datagram) {
        Err(NotAFrame::Foreign) => return Err("dropped"),
        Err(NotAFrame::WrongLength(header)) if is_reply(&header) => return Err("dropped"),
        Ok(frame) if is_reply(&frame.header) => return Err("dropped"),
        Err(NotAFrame::WrongLength(_)) => return Err("unauthenticated"),
        Ok(frame) => frame,
    };
    let header = &frame.header;
    if !is_genuine(&frame) {
        return Err("unauthenticated");
    }
    let undefined = header.flags & !data_flags::PAYLOAD_MAC;
    let op = DataOp::from_byte(header.op).filter(|op| has(header.service, *op));
    let is_plain = (header.status, undefined) == (0, 0);
    if !op.is_some_and(|op| is_plain && may_be_part(header, op)) {
        return Err("INVALID");
    }
    Ok((told(&frame, None), sealed(header, frame.payload)))
}

/// Whether the service has the operation: only blocks have FLUSH.
fn has(service: DataService, op: DataOp) -> bool {
    op != DataOp::Flush || service == DataService::Block
}

/// Whether the frame may carry this part: only a READ or WRITE of blocks has parts.
fn may_be_part(header: &DataHeader, op: DataOp) -> bool {
    match header.part() {
        Ok(None) => true,
        Ok(Some(_)) => {
            header.service == DataService::Block && matches!(op, DataOp::Read | DataOp::Write)
        }
        Err(NotAPart) => false,
    }
}

/// Whether a client would accept the reply, if it had sent the request.
pub(crate) fn reply(datagram: &[u8]) -> Result<(String, Vec<u8>), &'static str> {
    let frame = DataFrame::parse(datagram).or(Err("ignored"))?;
    if !frame.header.is_reply() || !is_genuine(&frame) {
        return Err("ignored");
    }
    let is_hello = (frame.header.op, frame.header.status) == (1, 0);
    let hello = HelloReply::read(frame.payload).filter(|_| is_hello);
    Ok((told(&frame, hello), sealed(&frame.header, frame.payload)))
}

fn is_genuine(frame: &DataFrame<'_>) -> bool {
    let right = tag(frame.header_bytes, covered(&frame.header, frame.payload));
    *frame.tag == right && frame.header.payload_crc == crc32c(frame.payload)
}

/// The JSON of header, tag, payload and the content of a reply to HELLO.
fn told(frame: &DataFrame<'_>, hello: Option<HelloReply>) -> String {
    json(&(frame.header, frame.tag, frame.payload, hello))
}
