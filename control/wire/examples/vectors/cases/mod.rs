//! Every golden vector: its bytes, and their meaning or the expected refusal.

mod answers;
mod bad_answers;
mod bad_requests;
mod bad_tlvs;
mod data_frames;
mod discovery;
mod fleet;
mod fleet_leases;
mod inventories;
pub(crate) mod kinds;
mod requests;
mod tlvs;

use base16ct::lower::encode_string;
use fabricbios_wire::*;
use serde::Serialize;

/// The meaning of the bytes as JSON, for an implementation in any language.
pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| error.to_string())
}

/// A request with the header of its frame. `asked` is that header without the length.
pub(crate) fn framed(asked: Header, bytes: &[u8], request: &impl Serialize) -> String {
    let payload_len = u32::try_from(bytes.len() - HEADER_LEN).unwrap_or(u32::MAX);
    let header = Header {
        payload_len,
        ..asked
    };
    json(&(header, request))
}

/// The kind of message that the bytes of a case are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Request,
    /// A reply to this header.
    Answer(Header),
    /// An operation of a GPU session.
    GpuRequest,
    /// The answer to an operation with this header.
    GpuAnswer(Header),
    /// The params of a LEASE_ALLOC.
    Tlv,
    Flat,
    Structured,
    /// A datagram to a server of the data plane.
    DataRequest,
    /// A datagram from a server of the data plane.
    DataReply,
    /// A datagram of discovery.
    Discovery,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Answer(_) => "answer",
            Self::GpuRequest => "gpu_request",
            Self::GpuAnswer(_) => "gpu_answer",
            Self::Tlv => "tlv",
            Self::Flat => "flat",
            Self::Structured => "structured",
            Self::DataRequest => "data_request",
            Self::DataReply => "data_reply",
            Self::Discovery => "discovery",
        }
    }
}

pub(crate) struct Case {
    name: String,
    kind: Kind,
    about: String,
    bytes: Vec<u8>,
    expect: Expect,
}

impl Case {
    pub(crate) fn file_name(&self) -> String {
        format!("{}.hex", self.name)
    }

    /// The whole text of its file.
    pub(crate) fn file(&self) -> String {
        let mut out = format!("# name: {}\n# kind: {}\n", self.name, self.kind.word());
        let mut line = |key: &str, value: &str| out.push_str(&format!("# {key}: {value}\n"));
        if let Kind::Answer(asked) | Kind::GpuAnswer(asked) = self.kind {
            line("asked", &json(&asked));
        }
        line("about", &self.about);
        match &self.expect {
            Expect::Canonical(_) => line("expect", "ok"),
            Expect::Accepted(_) => line("expect", "ok, not canonical"),
            Expect::Refused(word) => line("expect", &format!("refused {word}")),
        }
        if let Expect::Canonical(value) | Expect::Accepted(value) = &self.expect {
            line("value", value);
        }
        out + &hex_lines(&self.bytes)
    }
}

enum Expect {
    /// These bytes are the only ones that an encoder makes of the value.
    Canonical(String),
    /// A decoder accepts these bytes; an encoder would write others.
    Accepted(String),
    /// The decoder refuses the bytes; the word for the refusal.
    Refused(&'static str),
}

fn hex_lines(bytes: &[u8]) -> String {
    let rows = bytes.chunks(16).map(encode_string);
    rows.map(|row| row + "\n").collect()
}

/// All cases, in no particular order.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = vec![];
    for add in [
        requests::requests,
        bad_requests::bad_headers,
        bad_requests::bad_requests,
        answers::answers,
        answers::refusals,
        bad_answers::bad_answers,
        tlvs::tlvs,
        bad_tlvs::bad_classes,
        bad_tlvs::bad_tlvs,
        inventories::inventories,
        inventories::bad_inventories,
        fleet::requests,
        fleet::bad_requests,
        fleet::answers,
        fleet::bad_redirects,
        fleet::bad_pages,
        fleet_leases::requests,
        fleet_leases::bad_requests,
        fleet_leases::answers,
        fleet_leases::bad_pages,
        kinds::cases,
        data_frames::requests,
        data_frames::bad_requests,
        data_frames::replies,
        data_frames::bad_replies,
        discovery::datagrams,
        discovery::bad_datagrams,
    ] {
        add(&mut cases);
    }
    cases
}

const REQUEST_ID: u32 = 0x0102_0304;
const NONCE: u64 = 0x1112_1314_1516_1718;

fn asked(message: MessageType) -> Header {
    asked_by(message as u16)
}

fn asked_by(msg_type: u16) -> Header {
    Header {
        flags: 0,
        msg_type,
        request_id: REQUEST_ID,
        nonce: NONCE,
        payload_len: 0,
    }
}

fn good(cases: &mut Vec<Case>, name: &str, kind: Kind, about: &str, bytes: Vec<u8>, value: String) {
    let (name, about) = (name.to_owned(), about.to_owned());
    cases.push(Case {
        name,
        kind,
        about,
        bytes,
        expect: Expect::Canonical(value),
    });
}

fn bad(
    cases: &mut Vec<Case>,
    name: &str,
    kind: Kind,
    about: &str,
    bytes: Vec<u8>,
    error: LeaseError,
) {
    refused(cases, name, kind, about, bytes, error.name());
}

fn refused(
    cases: &mut Vec<Case>,
    name: &str,
    kind: Kind,
    about: &str,
    bytes: Vec<u8>,
    word: &'static str,
) {
    let (name, about) = (name.to_owned(), about.to_owned());
    cases.push(Case {
        name,
        kind,
        about,
        bytes,
        expect: Expect::Refused(word),
    });
}

/// A frame of a header and a payload; the header has the right length.
fn frame(flags: u8, msg_type: u16, payload: &[u8]) -> Vec<u8> {
    let payload_len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let header = Header {
        flags,
        msg_type,
        request_id: REQUEST_ID,
        nonce: NONCE,
        payload_len,
    };
    [&header.to_bytes()[..], payload].concat()
}

fn tlv(tag: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    [&tag.to_be_bytes()[..], &length.to_be_bytes(), value].concat()
}
