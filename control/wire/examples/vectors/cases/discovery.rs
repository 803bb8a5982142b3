//! Datagrams of discovery. Certificate and signature are bytes without a meaning: a decoder does not verify them.

use fabricbios_wire::*;

use super::*;
use crate::samples;

const FABRIC: [u8; 16] = [0xF1; 16];
const CERTIFICATE: &[u8] = b"a certificate, DER";
const SIGNATURE: &[u8] = b"a signature, DER";

fn told(offer: Option<Announced>) -> Told {
    Told {
        fabric: FABRIC,
        nonce: 0,
        epoch: Epoch(0x0000_0190_0000_0001),
        sequence: 7,
        sent_unix_ms: 0x0000_0190_0000_1388,
        offer,
    }
}

fn scheduler() -> Announced {
    let entry = samples::entry(ResourceType::Scheduler, 0);
    Announced {
        lifetime_secs: 30,
        endpoint: Endpoint {
            addr: [0xFE, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xFF, 0xFE, 0, 0, 1],
            port: 5704,
        },
        has_more: false,
        entries: vec![FlatEntry {
            capacity: 0,
            available: 1,
            ..entry
        }],
    }
}

fn sealed(told: &Told, certificate: &[u8]) -> Vec<u8> {
    let unsigned = told.unsigned(certificate).unwrap_or_default();
    sealed_discovery(&unsigned, SIGNATURE).unwrap_or_default()
}

fn announce() -> Vec<u8> {
    sealed(&told(Some(scheduler())), CERTIFICATE)
}

fn solicit() -> Solicit {
    Solicit {
        fabric: FABRIC,
        nonce: NONCE,
        resource_type: ResourceType::Scheduler,
    }
}

#[rustfmt::skip] // One case a line.
pub(crate) fn datagrams(c: &mut Vec<Case>) {
    let mut case = |name: &str, about: &str, bytes: Vec<u8>| {
        let value = decode_discovery(&bytes).map_or_else(|error| error.to_string(), |it| json(&it));
        good(c, &format!("discovery_{name}"), Kind::Discovery, about, bytes, value);
    };
    case("announce", "a scheduler without HTTP", announce());
    let answer = Told { nonce: NONCE, ..told(Some(scheduler())) };
    case("announce_answer", "the answer to a SOLICIT", sealed(&answer, CERTIFICATE));
    let kinds = [ResourceType::Mem, ResourceType::Gpu, ResourceType::Unknown(0x1234)];
    let entries = kinds.iter().cycle().take(ANNOUNCED_ENTRIES_MAX);
    let entries = entries.map(|it| samples::entry(*it, resource_flags::FENCED)).collect();
    let node = Announced { has_more: true, entries, ..scheduler() };
    case("announce_more", "a node with more than twelve resources", sealed(&told(Some(node)), CERTIFICATE));
    case("withdraw", "a sender that stops", sealed(&told(None), CERTIFICATE));
    case("solicit", "who is a scheduler of this fabric?", solicit().encode());
    case("solicit_nodes", "which nodes are there?", Solicit { resource_type: Solicit::NODES, ..solicit() }.encode());
}

#[rustfmt::skip] // One case a line.
pub(crate) fn bad_datagrams(c: &mut Vec<Case>) {
    let mut case = |name: &str, about: &str, bytes: Vec<u8>, error| {
        bad(c, &format!("bad_discovery_{name}"), Kind::Discovery, about, bytes, error);
    };
    let set = |bytes: Vec<u8>, at: usize, byte: u8| {
        let mut bytes = bytes;
        if let Some(place) = bytes.get_mut(at) { *place = byte; }
        bytes
    };
    use LeaseError::{InvalidArgs, Malformed, Unsupported};
    case("magic", "another protocol", set(announce(), 0, b'X'), Unsupported);
    case("version", "a later version", set(announce(), 4, 1), Unsupported);
    case("type", "an unknown type", set(announce(), 5, 4), Unsupported);
    case("flags", "an unknown flag", set(announce(), 6, 2), Unsupported);
    case("flags_withdraw", "a WITHDRAW with MORE", set(sealed(&told(None), CERTIFICATE), 6, 1), Unsupported);
    case("reserved", "a reserved byte that is set", set(announce(), 7, 1), Unsupported);
    case("nonce", "a SOLICIT with nonce 0", Solicit { nonce: 0, ..solicit() }.encode(), InvalidArgs);
    case("padding", "a SOLICIT that does not end with zeros", set(solicit().encode(), DISCOVERY_BYTES_MAX - 1, 1), Malformed);
    case("too_long", "one byte more than 1,232", [solicit().encode(), vec![0]].concat(), Malformed);
    let never = Announced { lifetime_secs: 0, ..scheduler() };
    case("lifetime", "a lifetime of 0", sealed(&told(Some(never)), CERTIFICATE), InvalidArgs);
    let nowhere = Announced { endpoint: Endpoint { addr: [0; 16], port: 5704 }, ..scheduler() };
    case("endpoint", "a wildcard as the endpoint", sealed(&told(Some(nowhere)), CERTIFICATE), InvalidArgs);
    case("entries", "thirteen entries", set(announce(), 77, 13), Malformed);
    case("no_signature", "the bytes before the signature alone", told(None).unsigned(CERTIFICATE).unwrap_or_default(), Malformed);
    case("after_end", "a byte after the signature", [announce(), vec![0]].concat(), Malformed);
    case("empty", "no bytes", vec![], Malformed);
}
