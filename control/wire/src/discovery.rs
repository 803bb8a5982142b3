//! The datagrams of discovery: ANNOUNCE, SOLICIT and WITHDRAW (layout ours: `docs/spec/discovery.md`; 000, "Overview", names
//! ANNOUNCE and the entry of a scheduler).
//!
//! An ANNOUNCE or WITHDRAW is made in two steps: [`Told::unsigned`], and [`sealed_discovery`] with the signature of
//! [`discovery_message`] of these bytes.

use alloc::{borrow::Cow, vec::Vec};
use core::net::{Ipv4Addr, Ipv6Addr};

use crate::{
    DecodeError, DecodeFault, Endpoint, Epoch, FLAT_ENTRY_LEN, FlatEntry, ResourceType, endpoint,
    error, flat,
    frame::wrong,
    read::{Decoded, Reader, invalid_args, too_many},
    write::Writer,
};

/// The UDP port of discovery.
pub const DISCOVERY_PORT: u16 = 5705;
/// The group over IPv4, of administrative scope (RFC 2365).
pub const DISCOVERY_GROUP_V4: Ipv4Addr = Ipv4Addr::new(239, 255, 57, 5);
/// The group over IPv6, of link-local scope, not assigned by IANA (RFC 4291 §2.7).
pub const DISCOVERY_GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xFF12, 0, 0, 0, 0, 0, 0x0FAB, 0x5705);
/// Bytes of the longest datagram: it fits the smallest MTU of IPv6, 1,280 bytes. Every SOLICIT has this length.
pub const DISCOVERY_BYTES_MAX: usize = 1_232;
/// Entries of one ANNOUNCE. Fewer fit beside a certificate with many labels.
pub const ANNOUNCED_ENTRIES_MAX: usize = 12;
/// Bytes of the certificate in an ANNOUNCE, DER.
pub const ANNOUNCED_CERTIFICATE_BYTES_MAX: usize = 1_024;
/// Bytes of a signature: ECDSA with P-256, DER.
const SIGNATURE_BYTES_MAX: usize = 72;

const MAGIC: [u8; 4] = *b"FBDC";
const VERSION: u8 = 0;
const ANNOUNCE: u8 = 1;
const SOLICIT: u8 = 2;
const WITHDRAW: u8 = 3;
/// The sender has more resources than the entries of the datagram.
const MORE: u8 = 1;
/// What is signed begins with this, so that no other signature of the key can be taken for one of discovery.
const DOMAIN: &[u8] = b"fabricBIOS discovery 0\0";

/// A datagram of discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
#[cfg_attr(feature = "vectors", serde(rename_all = "snake_case"))]
pub enum Discovery<'a> {
    /// SOLICIT.
    Solicit(Solicit),
    /// ANNOUNCE or WITHDRAW. Nothing of it is true before its certificate and its signature were verified.
    Signed(Signed<'a>),
}

/// SOLICIT: who of this fabric has resources of this type? See also [`Solicit::NODES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct Solicit {
    /// The fingerprint of the fabric.
    pub fabric: [u8; 16],
    /// Chosen by the sender, never 0. The answer repeats it, signed: so an old ANNOUNCE is no answer.
    pub nonce: u64,
    /// The type.
    pub resource_type: ResourceType,
}

/// An ANNOUNCE or WITHDRAW as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct Signed<'a> {
    /// Its content.
    pub told: Told,
    /// The certificate of the sender, DER.
    pub certificate: &'a [u8],
    /// The bytes that the signature covers: all before the signature.
    #[cfg_attr(feature = "vectors", serde(skip))]
    pub covered: &'a [u8],
    /// ECDSA with P-256 and SHA-256 over [`discovery_message`] of these, DER.
    pub signature: &'a [u8],
}

/// The content of an ANNOUNCE or WITHDRAW.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct Told {
    /// The fingerprint of the fabric.
    pub fabric: [u8; 16],
    /// That of the SOLICIT which this answers; 0: it answers none.
    pub nonce: u64,
    /// Milliseconds since the Unix epoch at which the sender started.
    pub epoch: Epoch,
    /// Counts the datagrams that the sender has signed in this epoch.
    pub sequence: u64,
    /// Milliseconds since the Unix epoch at which this was signed.
    pub sent_unix_ms: u64,
    /// What the sender offers; `None`: WITHDRAW, it stops.
    pub offer: Option<Announced>,
}

/// What an ANNOUNCE offers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct Announced {
    /// For how long this holds without another ANNOUNCE; never 0.
    pub lifetime_secs: u16,
    /// Where the sender takes connections of the control protocol (QUIC).
    pub endpoint: Endpoint,
    /// Whether the sender has more resources than `entries`.
    pub has_more: bool,
    /// Its resources. The capacity of a [`ResourceType::Scheduler`] is an HTTP port, 0 if it serves no HTTP.
    pub entries: Vec<FlatEntry>,
}

/// What the signature of an ANNOUNCE or WITHDRAW is of.
#[must_use]
pub fn discovery_message(covered: &[u8]) -> Vec<u8> {
    [DOMAIN, covered].concat()
}

impl Solicit {
    /// In the place of a type: every node, whatever it has, and no scheduler.
    pub const NODES: ResourceType = ResourceType::Unknown(0);

    /// The datagram.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = begun(SOLICIT, 0, &self.fabric, self.nonce);
        w.u16(self.resource_type.code());
        let mut bytes = w.finish(DISCOVERY_BYTES_MAX).unwrap_or_default();
        bytes.resize(DISCOVERY_BYTES_MAX, 0);
        bytes
    }
}

impl Told {
    /// The datagram without its signature; `None` if it would be too long.
    #[must_use]
    pub fn unsigned(&self, certificate: &[u8]) -> Option<Vec<u8>> {
        let (kind, flags) = match &self.offer {
            Some(offer) => (ANNOUNCE, if offer.has_more { MORE } else { 0 }),
            None => (WITHDRAW, 0),
        };
        let mut w = begun(kind, flags, &self.fabric, self.nonce);
        w.u64(self.epoch.0)
            .u64(self.sequence)
            .u64(self.sent_unix_ms);
        if let Some(offer) = &self.offer {
            w.u16(offer.lifetime_secs).raw(&offer.endpoint.bytes());
            let fits = offer.entries.len() <= ANNOUNCED_ENTRIES_MAX;
            flat::write(&mut w, fits.then_some(&*offer.entries)?);
        }
        w.bytes_at_most(certificate, ANNOUNCED_CERTIFICATE_BYTES_MAX);
        w.finish(DISCOVERY_BYTES_MAX - 4 - SIGNATURE_BYTES_MAX)
    }
}

impl Announced {
    /// How many entries fit beside a certificate of this length.
    #[must_use]
    pub fn entries_beside(certificate: usize) -> usize {
        // Header and times, lifetime and endpoint, the lengths of three parts.
        const FIXED: usize = 56 + 2 + endpoint::ENDPOINT_LEN + 2 + 4 + 4;
        let rest = DISCOVERY_BYTES_MAX - FIXED - SIGNATURE_BYTES_MAX;
        let entries = rest.saturating_sub(certificate) / FLAT_ENTRY_LEN;
        entries.min(ANNOUNCED_ENTRIES_MAX)
    }
}

/// The whole datagram of these unsigned bytes; `None` if it would be too long.
#[must_use]
pub fn sealed_discovery(unsigned: &[u8], signature: &[u8]) -> Option<Vec<u8>> {
    let mut w = Writer::new();
    w.raw(unsigned)
        .bytes_at_most(signature, SIGNATURE_BYTES_MAX);
    w.finish(DISCOVERY_BYTES_MAX)
}

fn begun(kind: u8, flags: u8, fabric: &[u8; 16], nonce: u64) -> Writer {
    let mut w = Writer::new();
    w.raw(&MAGIC).u8(VERSION).u8(kind).u8(flags).u8(0);
    w.raw(fabric).u64(nonce);
    w
}

/// Reads a datagram. The signature is not verified here.
///
/// # Errors
/// If the bytes are no datagram of discovery.
pub fn decode_discovery(datagram: &[u8]) -> Decoded<Discovery<'_>> {
    if datagram.len() > DISCOVERY_BYTES_MAX {
        return Err(too_many(0, "bytes", DISCOVERY_BYTES_MAX, datagram.len()));
    }
    let mut r = Reader::new(datagram, 0);
    if r.array("magic")? != MAGIC {
        return Err(unsupported(
            0,
            "magic",
            "FBDC",
            Cow::Borrowed("other bytes"),
        ));
    }
    zero_or(&mut r, "version", 0)?;
    let at = r.offset();
    let kind = r.u8("type")?;
    let flags = zero_or(&mut r, "flags", if kind == ANNOUNCE { MORE } else { 0 })?;
    zero_or(&mut r, "reserved", 0)?;
    let fabric = r.array("fabric")?;
    let nonce = r.u64("nonce")?;
    match kind {
        SOLICIT => solicit(r, fabric, nonce).map(Discovery::Solicit),
        ANNOUNCE | WITHDRAW => {
            let offer = (kind == ANNOUNCE).then_some(flags == MORE);
            signed(datagram, r, (fabric, nonce), offer).map(Discovery::Signed)
        }
        other => {
            let expected = "1 ANNOUNCE, 2 SOLICIT or 3 WITHDRAW";
            Err(unsupported(at, "type", expected, error::number(other)))
        }
    }
}

/// The rest of a SOLICIT is zeros.
fn solicit(mut r: Reader<'_>, fabric: [u8; 16], nonce: u64) -> Decoded<Solicit> {
    if nonce == 0 {
        let got = Cow::Borrowed("zero");
        return Err(invalid_args(24, "nonce", "a random number", got));
    }
    let resource_type = ResourceType::from_code(r.u16("resource_type")?);
    r.zeros("padding")?;
    Ok(Solicit {
        fabric,
        nonce,
        resource_type,
    })
}

/// `has_more`: of an ANNOUNCE; `None`: a WITHDRAW.
fn signed<'a>(
    datagram: &'a [u8],
    mut r: Reader<'a>,
    (fabric, nonce): ([u8; 16], u64),
    has_more: Option<bool>,
) -> Decoded<Signed<'a>> {
    let epoch = Epoch(r.u64("epoch")?);
    let sequence = r.u64("sequence")?;
    let sent_unix_ms = r.u64("sent_unix_ms")?;
    let offer = has_more.map(|has_more| offer(&mut r, has_more));
    let told = Told {
        fabric,
        nonce,
        epoch,
        sequence,
        sent_unix_ms,
        offer: offer.transpose()?,
    };
    let certificate = r.bytes(ANNOUNCED_CERTIFICATE_BYTES_MAX, "certificate")?;
    let covered = datagram.get(..r.offset()).unwrap_or_default();
    let signature = r.bytes(SIGNATURE_BYTES_MAX, "signature")?;
    r.finish()?;
    Ok(Signed {
        told,
        certificate,
        covered,
        signature,
    })
}

fn offer(r: &mut Reader<'_>, has_more: bool) -> Decoded<Announced> {
    let at = r.offset();
    let lifetime_secs = r.u16("lifetime_secs")?;
    if lifetime_secs == 0 {
        let got = Cow::Borrowed("zero");
        return Err(invalid_args(at, "lifetime_secs", "at least 1", got));
    }
    Ok(Announced {
        lifetime_secs,
        endpoint: endpoint::read(r)?,
        has_more,
        entries: flat::read_at_most(r, ANNOUNCED_ENTRIES_MAX)?,
    })
}

/// A byte without other bits than these.
fn zero_or(r: &mut Reader<'_>, field: &'static str, bits: u8) -> Decoded<u8> {
    let at = r.offset();
    match r.u8(field)? {
        byte if byte & !bits == 0 => Ok(byte),
        byte => Err(unsupported(at, field, "known bits", error::number(byte))),
    }
}

fn unsupported(
    offset: usize,
    field: &'static str,
    expected: &'static str,
    got: Cow<'static, str>,
) -> DecodeError {
    wrong(DecodeFault::Unsupported, offset, field, expected, got)
}
