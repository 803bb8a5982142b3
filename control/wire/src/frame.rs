//! The control frame: a header of 20 bytes, then the payload of one request or one reply (layout
//! ours; the sources name the fields). Streams carry whole frames: there are no fragments.

use alloc::{borrow::Cow, format, vec::Vec};

use crate::{
    Answer, DecodeError, DecodeFault, GpuMessageType, LeaseError, MAX_PAYLOAD, MessageType,
    Refusal, RefusalClass, Rejected, Request, error, read::Reader, reply, request, write::Writer,
};

/// Bytes of a header.
pub const HEADER_LEN: usize = 20;
/// The only version.
pub const VERSION: u8 = 0;
/// The ALPN of the QUIC handshake.
pub const ALPN: &[u8] = b"fabricbios/0";
/// The flag of a reply. Every other bit is refused: CONTINUED, FINAL and FRAG_V2 of the published
/// protocol belong to datagrams, SIGNED to discovery; mutually authenticated streams need
/// neither.
pub const REPLY: u8 = 0x80;

/// `u8 version, u8 flags, u16 msg_type, u32 request_id, u64 nonce, u32 payload_len`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Header {
    /// 0 in a request, [`REPLY`] in a reply.
    pub flags: u8,
    /// A [`MessageType`], not checked here: a reply to an unknown type repeats the number.
    pub msg_type: u16,
    /// Chosen by the client, repeated by the node.
    pub request_id: u32,
    /// Chosen by the client, repeated by the node.
    pub nonce: u64,
    /// Bytes after the header.
    pub payload_len: u32,
}

impl Header {
    /// Reads and checks a header. A reader may then allocate `payload_len` bytes: at most [`MAX_PAYLOAD`].
    ///
    /// # Errors
    /// If version, flags or length are not valid.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self, Rejected> {
        let header = Self::split(bytes);
        match header.check(bytes[0]) {
            Ok(()) => Ok(header),
            Err(error) => Err(Rejected {
                header: Some(header),
                error,
            }),
        }
    }

    fn split(b: &[u8; HEADER_LEN]) -> Self {
        Self {
            flags: b[1],
            msg_type: u16::from_be_bytes([b[2], b[3]]),
            request_id: u32::from_be_bytes([b[4], b[5], b[6], b[7]]),
            nonce: u64::from_be_bytes([b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]]),
            payload_len: u32::from_be_bytes([b[16], b[17], b[18], b[19]]),
        }
    }

    fn check(&self, version: u8) -> Result<(), DecodeError> {
        use DecodeFault::{Malformed, Unsupported};
        if version != VERSION {
            return Err(wrong(
                Unsupported,
                0,
                "version",
                "0",
                error::number(version),
            ));
        }
        if self.flags & !REPLY != 0 {
            let got = Cow::Owned(format!("0x{:02x}", self.flags));
            return Err(wrong(
                Unsupported,
                1,
                "flags",
                "0x00, or 0x80 in a reply",
                got,
            ));
        }
        if self.payload_len() > MAX_PAYLOAD {
            let got = error::number(self.payload_len);
            return Err(wrong(Malformed, 16, "payload_len", "at most 65536", got));
        }
        Ok(())
    }

    fn payload_len(&self) -> usize {
        usize::try_from(self.payload_len).unwrap_or(usize::MAX)
    }

    /// The header as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0] = VERSION;
        out[1] = self.flags;
        out[2..4].copy_from_slice(&self.msg_type.to_be_bytes());
        out[4..8].copy_from_slice(&self.request_id.to_be_bytes());
        out[8..16].copy_from_slice(&self.nonce.to_be_bytes());
        out[16..20].copy_from_slice(&self.payload_len.to_be_bytes());
        out
    }
}

/// A request as a frame. A request that is too long for its length fields becomes a frame without
/// payload, which every node refuses; [`Request::check`] finds this beforehand.
#[must_use]
pub fn encode_request(request_id: u32, nonce: u64, request: &Request) -> Vec<u8> {
    let mut w = frame_writer();
    request::write(&mut w, request);
    let msg_type = request.message_type() as u16;
    let header = Header {
        flags: 0,
        msg_type,
        request_id,
        nonce,
        payload_len: 0,
    };
    seal(header, w).unwrap_or_else(|| header.to_bytes().to_vec())
}

/// The reply to `to`. An answer that does not fit a frame, or is not one to this message type,
/// becomes a refusal `Internal`, so that the client knows of the node's fault. The frame can hold a
/// data-plane key: the caller wipes the frame after sending.
#[must_use]
pub fn encode_answer(to: &Header, answer: &Answer) -> Vec<u8> {
    let header = Header {
        flags: REPLY,
        payload_len: 0,
        ..*to
    };
    if !reply::fits(MessageType::from_code(to.msg_type), answer) {
        return seal_refusal(
            header,
            "the node made an answer of another kind than was asked for",
        );
    }
    let mut w = frame_writer();
    reply::write(&mut w, answer);
    seal(header, w).unwrap_or_else(|| {
        seal_refusal(
            header,
            "the answer has more parts or bytes than fit one frame",
        )
    })
}

fn seal_refusal(header: Header, message: &str) -> Vec<u8> {
    let refusal = Refusal::new(LeaseError::Internal, RefusalClass::Permanent, message);
    let mut w = frame_writer();
    reply::write(&mut w, &Err(refusal));
    seal(header, w).unwrap_or_else(|| header.to_bytes().to_vec())
}

/// A writer with room for the header. A payload, which can hold a key, then needs no copy.
pub(crate) fn frame_writer() -> Writer {
    let mut w = Writer::new();
    w.raw(&[0; HEADER_LEN]);
    w
}

pub(crate) fn seal(header: Header, w: Writer) -> Option<Vec<u8>> {
    let mut frame = w.finish(HEADER_LEN + MAX_PAYLOAD)?;
    let payload_len = u32::try_from(frame.len() - HEADER_LEN).ok()?;
    frame[..HEADER_LEN].copy_from_slice(
        &Header {
            payload_len,
            ..header
        }
        .to_bytes(),
    );
    Some(frame)
}

/// Reads a whole request.
///
/// # Errors
/// If the frame is no valid request.
pub fn decode_request(frame: &[u8]) -> Result<(Header, Request), Rejected> {
    let (header, payload) = split_frame(frame)?;
    let rejected = |error| Rejected {
        header: Some(header),
        error,
    };
    if header.flags != 0 {
        let got = Cow::Borrowed("0x80, a reply");
        return Err(rejected(wrong(
            DecodeFault::Unsupported,
            1,
            "flags",
            "0x00",
            got,
        )));
    }
    let message_type = message_type(&header).map_err(rejected)?;
    let mut r = Reader::new(payload, HEADER_LEN);
    let request = request::read(message_type, &mut r).map_err(rejected)?;
    r.finish().map_err(rejected)?;
    Ok((header, request))
}

/// Reads a whole reply to `asked`.
///
/// # Errors
/// If the frame is no valid reply, or answers another request.
pub fn decode_answer(asked: &Header, frame: &[u8]) -> Result<Answer, Rejected> {
    let (header, payload) = split_frame(frame)?;
    let rejected = |error| Rejected {
        header: Some(header),
        error,
    };
    check_reply(asked, &header).map_err(rejected)?;
    let mut r = Reader::new(payload, HEADER_LEN);
    // A refusal has the same form for every message type, also for one that the node does not know.
    let answer = reply::read(|| message_type(&header), &mut r).map_err(rejected)?;
    r.finish().map_err(rejected)?;
    Ok(answer)
}

pub(crate) fn split_frame(frame: &[u8]) -> Result<(Header, &[u8]), Rejected> {
    let Some((head, payload)) = frame.split_first_chunk::<HEADER_LEN>() else {
        let got = error::bytes(frame.len());
        let error = wrong(DecodeFault::Malformed, 0, "header", "20 bytes", got);
        return Err(Rejected {
            header: None,
            error,
        });
    };
    let header = Header::parse(head)?;
    if header.payload_len() != payload.len() {
        let (expected, got) = (
            error::bytes(header.payload_len()),
            error::bytes(payload.len()),
        );
        let error = wrong(DecodeFault::Malformed, HEADER_LEN, "payload", expected, got);
        return Err(Rejected {
            header: Some(header),
            error,
        });
    }
    Ok((header, payload))
}

fn message_type(header: &Header) -> Result<MessageType, DecodeError> {
    MessageType::from_code(header.msg_type).ok_or_else(|| {
        let got = Cow::Owned(format!("0x{:04x}", header.msg_type));
        let expected = match GpuMessageType::from_code(header.msg_type) {
            None => "a message of version 0",
            Some(_) => {
                "a message of version 0 (operations of a GPU session go on a stream that begins with GPU_SESSION_OPEN)"
            }
        };
        wrong(DecodeFault::Unsupported, 2, "msg_type", expected, got)
    })
}

pub(crate) fn check_reply(asked: &Header, got: &Header) -> Result<(), DecodeError> {
    let same = |offset, field, asked: u64, got: u64| {
        if asked == got {
            return Ok(());
        }
        Err(wrong(
            DecodeFault::Malformed,
            offset,
            field,
            error::number(asked),
            error::number(got),
        ))
    };
    same(1, "flags", REPLY.into(), got.flags.into())?;
    same(2, "msg_type", asked.msg_type.into(), got.msg_type.into())?;
    same(
        4,
        "request_id",
        asked.request_id.into(),
        got.request_id.into(),
    )?;
    same(8, "nonce", asked.nonce, got.nonce)
}

pub(crate) fn wrong(
    fault: DecodeFault,
    offset: usize,
    field: &'static str,
    expected: impl Into<Cow<'static, str>>,
    got: Cow<'static, str>,
) -> DecodeError {
    DecodeError {
        fault,
        offset,
        tag: None,
        field,
        expected: expected.into(),
        got,
    }
}
