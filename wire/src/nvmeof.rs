//! Block storage: what is asked for (0x0310, 0x0311, 0x0906, 0x0907) and where it is had over NVMe-oF
//! (0x0301–0x0309). Names and keys are as the NVM Express base specification 2.0 has them.

use alloc::{borrow::ToOwned, string::String, vec::Vec};
use core::{fmt, str::FromStr};

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::{
    DHCHAP_SECRET_BYTES_MAX, DecodeError, Endpoint, NQN_BYTES_MAX, NVMEOF_ADDRESSES_MAX, endpoint,
    tag,
    tlv::{Tlv, TlvArea},
    write::Writer,
};

/// An NVMe Qualified Name (base specification 2.0, section 4.5): `nqn.yyyy-mm.reverse.domain:text`. At
/// most 223 bytes; here of printable ASCII without space and `/` only, so that it is one name of a
/// directory and one word of a command line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
pub struct Nqn(String);

/// What a text lacks to be an [`Nqn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAnNqn(&'static str);

impl fmt::Display for NotAnNqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; expected nqn.yyyy-mm.reverse.domain:text or nqn.2014-08.org.nvmexpress:uuid:…",
            self.0
        )
    }
}

impl core::error::Error for NotAnNqn {}

impl Nqn {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The UUID of a name `nqn.2014-08.org.nvmexpress:uuid:…`.
    #[must_use]
    pub fn uuid(&self) -> Option<HostId> {
        self.0.strip_prefix(UUID_PREFIX)?.parse().ok()
    }
}

/// What names that are a UUID begin with (base specification 2.0, section 4.5).
pub const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

impl FromStr for Nqn {
    type Err = NotAnNqn;

    fn from_str(text: &str) -> Result<Self, NotAnNqn> {
        check(text)?;
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Nqn {
    type Error = NotAnNqn;

    fn try_from(text: String) -> Result<Self, NotAnNqn> {
        check(&text)?;
        Ok(Self(text))
    }
}

impl From<Nqn> for String {
    fn from(name: Nqn) -> Self {
        name.0
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

fn check(text: &str) -> Result<(), NotAnNqn> {
    let bytes = text.as_bytes();
    if bytes.len() > NQN_BYTES_MAX {
        return Err(NotAnNqn("it is longer than 223 bytes"));
    }
    let Some(rest) = bytes.strip_prefix(b"nqn.") else {
        return Err(NotAnNqn("it does not begin with nqn."));
    };
    if !bytes
        .iter()
        .all(|byte| byte.is_ascii_graphic() && *byte != b'/')
    {
        return Err(NotAnNqn(
            "it has a space, a slash or an unprintable character",
        ));
    }
    let is_dated = |date: &[u8]| {
        date.iter().enumerate().all(|(at, byte)| match at {
            4 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        })
    };
    match rest.split_at_checked(7) {
        Some((date, [b'.', _, ..])) if is_dated(date) => Ok(()),
        _ => Err(NotAnNqn("it has no date and domain")),
    }
}

/// A host identifier: a UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HostId(pub [u8; 16]);

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Text that is no UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAHostId;

impl fmt::Display for NotAHostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a UUID such as 3f0c5f5e-93a2-4a5b-8d7c-0c1d2e3f4a5b")
    }
}

impl core::error::Error for NotAHostId {}

impl FromStr for HostId {
    type Err = NotAHostId;

    fn from_str(text: &str) -> Result<Self, NotAHostId> {
        let bytes = text.as_bytes();
        let dashed = bytes.len() == 36 && [8, 13, 18, 23].iter().all(|&at| bytes[at] == b'-');
        let mut id = [0; 16];
        let mut digits = text
            .chars()
            .enumerate()
            .filter(|(at, _)| !matches!(at, 8 | 13 | 18 | 23))
            .map(|(_, c)| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()));
        for byte in &mut id {
            let mut digit = || digits.next().flatten().ok_or(NotAHostId);
            *byte = digit()? << 4 | digit()?;
        }
        if dashed {
            Ok(Self(id))
        } else {
            Err(NotAHostId)
        }
    }
}

/// A DH-HMAC-CHAP secret in its text form, `DHHC-1:00:…:` (base specification 2.0, section 8.13.5.8).
/// Never printed, wiped when dropped.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DhchapSecret(String);

impl DhchapSecret {
    /// A secret from its text; `None` if it has not the form, or is no single word.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let word = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=:-".contains(&byte);
        let fits = text.len() <= DHCHAP_SECRET_BYTES_MAX
            && text.starts_with("DHHC-1:")
            && text.ends_with(':')
            && text.bytes().all(word);
        fits.then(|| Self(text.to_owned()))
    }

    /// The text, for the kernel or for the command line of its owner.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for DhchapSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DhchapSecret(..)")
    }
}

/// What is asked for with a lease of block storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BlockTerms {
    /// 0x0906: nothing can be written.
    pub read_only: bool,
    /// 0x0310: the host that will connect; absent: the node mints one for this lease.
    pub host_nqn: Option<Nqn>,
    /// 0x0311: its host identifier; absent: the UUID of its name, or one that the node mints.
    pub host_id: Option<HostId>,
    /// 0x0907: the client, too, wants proof of whom it talks to (bidirectional DH-HMAC-CHAP).
    pub mutual_auth: bool,
}

impl BlockTerms {
    /// Whether nothing was asked for.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Whether there is something that only NVMe-oF has.
    #[must_use]
    pub fn names_host(&self) -> bool {
        self.host_nqn.is_some() || self.host_id.is_some() || self.mutual_auth
    }
}

/// Over what NVMe-oF goes; the numbers are those of TRTYPE in NVMe over Fabrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u8)]
pub enum NvmeofTransport {
    /// RDMA.
    Rdma = 1,
    /// TCP.
    Tcp = 3,
}

/// 0x0301: `u8 trtype, [u8; 16] address, u16 service`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NvmeofAddress {
    /// Over what.
    pub transport: NvmeofTransport,
    /// Where.
    pub endpoint: Endpoint,
}

/// 0x0301–0x0309: how to connect to the lease's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NvmeofBinding {
    /// 0x0301, repeatable: the same subsystem, best first; at least one.
    pub addresses: Vec<NvmeofAddress>,
    /// 0x0302.
    pub subsystem: Nqn,
    /// 0x0303.
    pub nsid: u32,
    /// 0x0304: who may connect.
    pub host_nqn: Nqn,
    /// 0x0305: to be given with the name: a kernel refuses two names with one identifier.
    pub host_id: HostId,
    /// 0x0306: what the host proves itself with.
    pub dhchap_secret: DhchapSecret,
    /// 0x0307: what the node proves itself with, where that was asked for.
    pub dhchap_ctrl_secret: Option<DhchapSecret>,
    /// 0x0308: for how long, at most, a client's kernel may go on trying to connect again after it lost
    /// the connection, seconds: `--ctrl-loss-tmo`.
    pub ctrl_loss_secs: u32,
    /// 0x0309: bytes of a block.
    pub block_bytes: u32,
}

type Read<T> = Result<T, DecodeError>;

pub(crate) fn find_terms(area: &TlvArea<'_>) -> Read<BlockTerms> {
    Ok(BlockTerms {
        read_only: find_read_only(area)?,
        host_nqn: area.read(tag::NVMEOF_HOST, read_nqn)?,
        host_id: area.read(tag::NVMEOF_HOST_IDENTIFIER, |tlv| tlv.fixed().map(HostId))?,
        mutual_auth: find_mutual_auth(area)?,
    })
}

/// Absent and 0 both mean no.
pub(crate) fn find_read_only(area: &TlvArea<'_>) -> Read<bool> {
    Ok(area.read(tag::LEASE_READ_ONLY, Tlv::flag)?.unwrap_or(false))
}

/// Absent and 0 both mean no.
pub(crate) fn find_mutual_auth(area: &TlvArea<'_>) -> Read<bool> {
    Ok(area
        .read(tag::LEASE_MUTUAL_AUTH, Tlv::flag)?
        .unwrap_or(false))
}

/// The tags of what is asked stand on both sides of 0x0901–0x0905; this writes those below.
pub(crate) fn write_host(w: &mut Writer, terms: &BlockTerms) {
    if let Some(name) = &terms.host_nqn {
        w.tlv(tag::NVMEOF_HOST, name.as_str().as_bytes());
    }
    w.tlv_if(tag::NVMEOF_HOST_IDENTIFIER, terms.host_id.map(|id| id.0));
}

pub(crate) fn write_classes(w: &mut Writer, read_only: bool, mutual_auth: bool) {
    w.tlv_if(tag::LEASE_READ_ONLY, read_only.then_some([1]));
    w.tlv_if(tag::LEASE_MUTUAL_AUTH, mutual_auth.then_some([1]));
}

fn read_nqn(tlv: &Tlv<'_>) -> Read<Nqn> {
    let text = tlv.text(0, NQN_BYTES_MAX)?;
    text.parse()
        .map_err(|_why: NotAnNqn| tlv.unknown_value(0, "NQN", "nqn.yyyy-mm.domain:text", text))
}

fn read_secret(tlv: &Tlv<'_>) -> Read<DhchapSecret> {
    // Its text is never repeated in an error.
    DhchapSecret::new(tlv.text(0, DHCHAP_SECRET_BYTES_MAX)?)
        .ok_or_else(|| tlv.unknown_value(0, "secret", "DHHC-1:…:", "something else"))
}

fn read_address(tlv: &Tlv<'_>) -> Read<NvmeofAddress> {
    let value: [u8; 19] = tlv.fixed()?;
    let (trtype, place) = (value[0], &value[1..]);
    let transport = NvmeofTransport::from_trtype(trtype)
        .ok_or_else(|| tlv.unknown_value(0, "trtype", "1 or 3", trtype))?;
    let mut bytes = [0; 18];
    bytes.copy_from_slice(place);
    let endpoint = Endpoint::from_bytes(bytes)
        .ok_or_else(|| tlv.unknown_value(1, "endpoint", endpoint::EXPECTED, "a wildcard"))?;
    Ok(NvmeofAddress {
        transport,
        endpoint,
    })
}

pub(crate) fn has_binding(area: &TlvArea<'_>) -> bool {
    area.iter()
        .any(|tlv| (tag::NVMEOF_ADDRESS..=tag::NVMEOF_BLOCK_BYTES).contains(&tlv.tag))
}

pub(crate) fn read_binding(area: &TlvArea<'_>) -> Read<NvmeofBinding> {
    let addresses = area.find_all(tag::NVMEOF_ADDRESS, NVMEOF_ADDRESSES_MAX)?;
    if addresses.is_empty() {
        return Err(area.missing(tag::NVMEOF_ADDRESS));
    }
    let word = |tlv: &Tlv<'_>| tlv.fixed().map(u32::from_be_bytes);
    Ok(NvmeofBinding {
        addresses: addresses.iter().map(read_address).collect::<Read<_>>()?,
        subsystem: area.require(tag::NVMEOF_SUBSYSTEM, read_nqn)?,
        nsid: area.require(tag::NVMEOF_NSID, word)?,
        host_nqn: area.require(tag::NVMEOF_HOST_NQN, read_nqn)?,
        host_id: area.require(tag::NVMEOF_HOST_ID, |tlv| tlv.fixed().map(HostId))?,
        dhchap_secret: area.require(tag::NVMEOF_DHCHAP_SECRET, read_secret)?,
        dhchap_ctrl_secret: area.read(tag::NVMEOF_DHCHAP_CTRL_SECRET, read_secret)?,
        ctrl_loss_secs: area.require(tag::NVMEOF_CTRL_LOSS, word)?,
        block_bytes: area.require(tag::NVMEOF_BLOCK_BYTES, word)?,
    })
}

pub(crate) fn write_binding(w: &mut Writer, binding: &NvmeofBinding) {
    for address in &binding.addresses {
        let mut value = [0; 19];
        value[0] = address.transport as u8;
        value[1..].copy_from_slice(&address.endpoint.bytes());
        w.tlv(tag::NVMEOF_ADDRESS, &value);
    }
    w.tlv(tag::NVMEOF_SUBSYSTEM, binding.subsystem.as_str().as_bytes());
    w.tlv(tag::NVMEOF_NSID, &binding.nsid.to_be_bytes());
    w.tlv(tag::NVMEOF_HOST_NQN, binding.host_nqn.as_str().as_bytes());
    w.tlv(tag::NVMEOF_HOST_ID, &binding.host_id.0);
    w.tlv(
        tag::NVMEOF_DHCHAP_SECRET,
        binding.dhchap_secret.reveal().as_bytes(),
    );
    if let Some(secret) = &binding.dhchap_ctrl_secret {
        w.tlv(tag::NVMEOF_DHCHAP_CTRL_SECRET, secret.reveal().as_bytes());
    }
    w.tlv(tag::NVMEOF_CTRL_LOSS, &binding.ctrl_loss_secs.to_be_bytes());
    w.tlv(tag::NVMEOF_BLOCK_BYTES, &binding.block_bytes.to_be_bytes());
}
