//! Block storage: the terms of a request (0x0310, 0x0311, 0x0906, 0x0907) and the NVMe-oF binding
//! (0x0301–0x0309).

mod dhchap;
mod host_id;
mod nqn;

use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use core::ops::RangeInclusive;

pub use dhchap::*;
pub use host_id::*;
pub use nqn::*;

use super::{Coordinates, Terms};
use crate::{
    Effective, Endpoint, Size, endpoint,
    names::words,
    read::Decoded,
    structured::entry,
    tlv::{Tlv, TlvArea},
    write::Writer,
};

/// The tags of the kind.
pub(crate) mod tag {
    crate::tag::tags! {
        /// [`crate::NvmeofAddress`]; may repeat.
        NVMEOF_ADDRESS = 0x0301, "NVMe-oF address";
        /// UTF-8, [`crate::Nqn`].
        NVMEOF_SUBSYSTEM = 0x0302, "subsystem NQN";
        /// `u32`.
        NVMEOF_NSID = 0x0303, "namespace id";
        /// UTF-8, [`crate::Nqn`].
        NVMEOF_HOST_NQN = 0x0304, "host NQN";
        /// `[u8; 16]`.
        NVMEOF_HOST_ID = 0x0305, "host id";
        /// ASCII, secret.
        NVMEOF_DHCHAP_SECRET = 0x0306, "DH-HMAC-CHAP secret";
        /// ASCII, secret.
        NVMEOF_DHCHAP_CTRL_SECRET = 0x0307, "DH-HMAC-CHAP controller secret";
        /// `u32`, seconds.
        NVMEOF_CTRL_LOSS = 0x0308, "controller loss time-out";
        /// `u32`.
        NVMEOF_BLOCK_BYTES = 0x0309, "block size";
        /// UTF-8, [`crate::Nqn`], of a request.
        NVMEOF_HOST = 0x0310, "host NQN asked for";
        /// `[u8; 16]`, of a request.
        NVMEOF_HOST_IDENTIFIER = 0x0311, "host id asked for";
        /// `u8`, 0 or 1.
        LEASE_READ_ONLY = 0x0906, "read-only";
        /// `u8`, 0 or 1.
        LEASE_MUTUAL_AUTH = 0x0907, "mutual authentication";
    }
}

/// Bytes of an NVMe Qualified Name (NVM Express base specification 2.0, section 4.5).
pub const NQN_BYTES_MAX: usize = 223;
/// Addresses of one NVMe-oF subsystem: more than the ports that a machine offers.
pub const NVMEOF_ADDRESSES_MAX: usize = 8;
/// Bytes of a DH-HMAC-CHAP secret's text: `DHHC-1:03:`, 64 bytes and a checksum in base64, `:`.
pub const DHCHAP_SECRET_BYTES_MAX: usize = 128;
/// Seconds for which a client's kernel may try to restore a lost NVMe-oF connection: after a cut, the
/// device must not stay much longer than the lease.
pub const NVMEOF_CTRL_LOSS_SECS_MAX: u32 = 30;

entry! {
    /// A block device or pool.
    pub struct BlockDev, "block_devs" {
        /// Bytes per block.
        block_size: u32,
        /// Capacity, bytes.
        capacity: u64,
        /// Bit 0 `BLOCK_RO`, bit 1 `BLOCK_REMOVABLE`.
        flags: u32,
        /// [`crate::health`].
        health: u32,
    }
}

/// `BLOCK_RO`, bit 0 of [`BlockDev::flags`].
pub const BLOCK_RO: u32 = 1 << 0;
/// `BLOCK_REMOVABLE`, bit 1 of [`BlockDev::flags`].
pub const BLOCK_REMOVABLE: u32 = 1 << 1;

/// The terms of a lease of block storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BlockTerms {
    /// 0x0906: the lease is read-only.
    pub read_only: bool,
    /// 0x0310: the host that will connect. Absent: the node makes a name for this lease.
    pub host_nqn: Option<Nqn>,
    /// 0x0311: the identifier of this host. Absent: the UUID of its name, or one that the node makes.
    pub host_id: Option<HostId>,
    /// 0x0907: the client also authenticates the node (bidirectional DH-HMAC-CHAP).
    pub mutual_auth: bool,
}

impl BlockTerms {
    /// Whether no term is stated.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a term belongs to NVMe-oF alone.
    #[must_use]
    pub fn names_host(&self) -> bool {
        self.host_nqn.is_some() || self.host_id.is_some() || self.mutual_auth
    }
}

words! {
    /// The transport of NVMe-oF; the numbers are those of TRTYPE in NVMe over Fabrics.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum NvmeofTransport: u8, "NVMe-oF transport", from_trtype {
        /// RDMA.
        Rdma = 1, "rdma";
        /// TCP.
        Tcp = 3, "tcp";
    }
}

/// 0x0301: `u8 trtype, [u8; 16] address, u16 service`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NvmeofAddress {
    /// The transport.
    pub transport: NvmeofTransport,
    /// Address and port.
    pub endpoint: Endpoint,
}

/// 0x0301–0x0309: how to connect to the lease's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NvmeofBinding {
    /// 0x0301, repeatable: addresses of the same subsystem, best first; at least one.
    pub addresses: Vec<NvmeofAddress>,
    /// 0x0302.
    pub subsystem: Nqn,
    /// 0x0303: neither 0 nor 0xFFFFFFFF.
    pub nsid: u32,
    /// 0x0304: the host that may connect.
    pub host_nqn: Nqn,
    /// 0x0305: the identifier of this host. A kernel refuses two names with the same identifier.
    pub host_id: HostId,
    /// 0x0306: the secret of the host.
    pub dhchap_secret: DhchapSecret,
    /// 0x0307: the secret of the node, if mutual authentication was asked for.
    pub dhchap_ctrl_secret: Option<DhchapSecret>,
    /// 0x0308: seconds for which a client's kernel tries to restore a lost connection (`--ctrl-loss-tmo`). At most 30.
    pub ctrl_loss_secs: u32,
    /// 0x0309: bytes of a block, a power of two from 512 to 65,536.
    pub block_bytes: u32,
}

impl Terms for BlockTerms {
    fn find(area: &TlvArea<'_>) -> Decoded<Self> {
        Ok(Self {
            read_only: area.flag(tag::LEASE_READ_ONLY)?,
            host_nqn: area.read(tag::NVMEOF_HOST, read_nqn)?,
            host_id: area.read(tag::NVMEOF_HOST_IDENTIFIER, read_host_id)?,
            mutual_auth: area.flag(tag::LEASE_MUTUAL_AUTH)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        if let Some(name) = &self.host_nqn {
            w.tlv(tag::NVMEOF_HOST, name.as_str().as_bytes());
        }
        w.tlv_if(tag::NVMEOF_HOST_IDENTIFIER, self.host_id.map(|id| id.0));
        write_flags(w, self.read_only, self.mutual_auth);
    }

    fn amount(bytes: u64) -> String {
        Size(bytes).to_string()
    }

    fn find_effective(area: &TlvArea<'_>, effective: &mut Effective) -> Decoded<()> {
        effective.read_only = area.flag(tag::LEASE_READ_ONLY)?;
        effective.mutual_auth = area.flag(tag::LEASE_MUTUAL_AUTH)?;
        Ok(())
    }

    fn write_effective(effective: &Effective, w: &mut Writer) {
        write_flags(w, effective.read_only, effective.mutual_auth);
    }
}

fn write_flags(w: &mut Writer, read_only: bool, mutual_auth: bool) {
    w.tlv_if(tag::LEASE_READ_ONLY, read_only.then_some([1]));
    w.tlv_if(tag::LEASE_MUTUAL_AUTH, mutual_auth.then_some([1]));
}

impl Coordinates for NvmeofBinding {
    const TAGS: RangeInclusive<u16> = tag::NVMEOF_ADDRESS..=tag::NVMEOF_BLOCK_BYTES;

    fn read(area: &TlvArea<'_>) -> Decoded<Self> {
        let addresses = area.find_all(tag::NVMEOF_ADDRESS, NVMEOF_ADDRESSES_MAX)?;
        if addresses.is_empty() {
            return Err(area.missing(tag::NVMEOF_ADDRESS));
        }
        Ok(Self {
            addresses: addresses.iter().map(read_address).collect::<Decoded<_>>()?,
            subsystem: area.require(tag::NVMEOF_SUBSYSTEM, read_nqn)?,
            nsid: area.require(tag::NVMEOF_NSID, read_nsid)?,
            host_nqn: area.require(tag::NVMEOF_HOST_NQN, read_nqn)?,
            host_id: area.require(tag::NVMEOF_HOST_ID, read_host_id)?,
            dhchap_secret: area.require(tag::NVMEOF_DHCHAP_SECRET, read_secret)?,
            dhchap_ctrl_secret: area.read(tag::NVMEOF_DHCHAP_CTRL_SECRET, read_secret)?,
            ctrl_loss_secs: area.require(tag::NVMEOF_CTRL_LOSS, read_ctrl_loss)?,
            block_bytes: area.require(tag::NVMEOF_BLOCK_BYTES, read_block_bytes)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        for address in &self.addresses {
            let mut value = [0; 19];
            value[0] = address.transport as u8;
            value[1..].copy_from_slice(&address.endpoint.bytes());
            w.tlv(tag::NVMEOF_ADDRESS, &value);
        }
        w.tlv(tag::NVMEOF_SUBSYSTEM, self.subsystem.as_str().as_bytes());
        w.tlv(tag::NVMEOF_NSID, &self.nsid.to_be_bytes());
        w.tlv(tag::NVMEOF_HOST_NQN, self.host_nqn.as_str().as_bytes());
        w.tlv(tag::NVMEOF_HOST_ID, &self.host_id.0);
        w.tlv(
            tag::NVMEOF_DHCHAP_SECRET,
            self.dhchap_secret.reveal().as_bytes(),
        );
        if let Some(secret) = &self.dhchap_ctrl_secret {
            w.tlv(tag::NVMEOF_DHCHAP_CTRL_SECRET, secret.reveal().as_bytes());
        }
        w.tlv(tag::NVMEOF_CTRL_LOSS, &self.ctrl_loss_secs.to_be_bytes());
        w.tlv(tag::NVMEOF_BLOCK_BYTES, &self.block_bytes.to_be_bytes());
    }
}

fn read_nqn(tlv: &Tlv<'_>) -> Decoded<Nqn> {
    let named = tlv.text(0, NQN_BYTES_MAX)?.parse();
    // The error does not repeat the peer's text, which may contain anything.
    named.map_err(|why: NotAnNqn| tlv.unknown_value(0, "NQN", NotAnNqn::EXPECTED, why.what()))
}

fn read_host_id(tlv: &Tlv<'_>) -> Decoded<HostId> {
    HostId::new(tlv.fixed()?)
        .ok_or_else(|| tlv.unknown_value(0, "host id", "a UUID other than zero", "zero"))
}

fn read_secret(tlv: &Tlv<'_>) -> Decoded<DhchapSecret> {
    // The error never repeats a secret.
    DhchapSecret::new(tlv.text(0, DHCHAP_SECRET_BYTES_MAX)?)
        .ok_or_else(|| tlv.unknown_value(0, "secret", "DHHC-1:…:", "something else"))
}

/// Reads the namespace id. 0 means no namespace and 0xFFFFFFFF all of them (base specification 2.0, section 3.2.1.2).
fn read_nsid(tlv: &Tlv<'_>) -> Decoded<u32> {
    match tlv.u32()? {
        nsid @ (0 | u32::MAX) => Err(tlv.unknown_value(0, "nsid", "1 to 4294967294", nsid)),
        nsid => Ok(nsid),
    }
}

fn read_ctrl_loss(tlv: &Tlv<'_>) -> Decoded<u32> {
    match tlv.u32()? {
        secs @ 0..=NVMEOF_CTRL_LOSS_SECS_MAX => Ok(secs),
        secs => Err(tlv.unknown_value(0, "seconds", "at most 30", secs)),
    }
}

fn read_block_bytes(tlv: &Tlv<'_>) -> Decoded<u32> {
    let bytes = tlv.u32()?;
    let is_size = bytes.is_power_of_two() && (512..=65_536).contains(&bytes);
    is_size
        .then_some(bytes)
        .ok_or_else(|| tlv.unknown_value(0, "size", "a power of two from 512 to 65536", bytes))
}

fn read_address(tlv: &Tlv<'_>) -> Decoded<NvmeofAddress> {
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
