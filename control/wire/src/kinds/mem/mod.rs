//! Leases of memory: the queue pairs of the client (0x0210), and the coordinates over RDMA (0x0201–0x020E). If one of
//! these is present, all of 0x0202–0x0208, 0x020A and 0x020B must be. 0x0211 and 0x0212 change the queue pairs of a live
//! binding, and 0x0213 asks for an attach code.

mod attach;
mod peer;

use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use core::ops::RangeInclusive;

pub(crate) use attach::write_question;
pub use attach::{AttachCode, RdmaAttach};
pub use peer::{PeerChange, RdmaPeer};
use peer::{check_path_mtu, check_u24};
pub(crate) use peer::{read_bind, write_change, write_peers};

use super::{Coordinates, Terms};
use crate::{
    Size,
    names::words,
    read::Decoded,
    structured::entry,
    tlv::{Tlv, TlvArea},
    write::Writer,
};

/// The tags of the kind.
pub(crate) mod tag {
    crate::tag::tags! {
        /// `u32`.
        RDMA_RKEY = 0x0201, "rkey";
        /// `u64`.
        RDMA_REMOTE_ADDR = 0x0202, "remote address";
        /// `u32`, 24 bits used.
        RDMA_QP_NUM = 0x0203, "queue pair number";
        /// `[u8; 16]`.
        RDMA_GID = 0x0204, "GID";
        /// `u8`.
        RDMA_PORT = 0x0205, "RDMA port";
        /// `u32`, 24 bits used.
        RDMA_PSN = 0x0206, "starting PSN";
        /// `u16`.
        RDMA_PATH_MTU = 0x0207, "path MTU";
        /// `u8`, [`crate::RdmaStrategy`].
        RDMA_STRATEGY = 0x0208, "RDMA strategy";
        /// `u32, u32`.
        RDMA_PREVIOUS_KEY = 0x0209, "previous rkey";
        /// `u8`.
        RDMA_MAX_RD_ATOMIC = 0x020A, "reads and atomics at once";
        /// `u8`, 0 or 1.
        RDMA_ATOMICS = 0x020B, "atomics allowed";
        /// [`crate::RdmaQueuePair`]; may repeat.
        RDMA_QUEUE_PAIR = 0x020C, "further queue pair";
        /// `u32`.
        RDMA_PREPARED_RKEY = 0x020D, "prepared rkey";
        /// [`crate::RdmaAttach`].
        RDMA_ATTACH = 0x020E, "attach code";
        /// [`crate::RdmaPeer`]; may repeat.
        RDMA_PEER = 0x0210, "RDMA peer";
        /// [`crate::RdmaPeer`]; may repeat.
        RDMA_PEER_BESIDE = 0x0211, "RDMA peer beside the others";
        /// `u32`, 24 bits used; may repeat.
        RDMA_QP_LEAVES = 0x0212, "queue pair that leaves";
        /// Empty.
        RDMA_ATTACH_CODE = 0x0213, "question for an attach code";
    }
}

/// Most queue pairs of clients in one request.
pub const RDMA_PEERS_MAX: usize = 8;
/// Most queue pairs of one lease, of all its clients together: each has verbs objects of its own to take down in time.
pub const RDMA_QUEUE_PAIRS_MAX: usize = 64;
/// Largest queue pair number and packet sequence number: both have 24 bits in InfiniBand.
pub const U24_MAX: u32 = 0x00FF_FFFF;

entry! {
    /// A memory arena.
    pub struct MemArena, "mem_arenas" {
        /// Base address within the node; 0 if each lease has an address of its own.
        base: u64,
        /// Length, bytes.
        len: u64,
        /// Granularity of leases, bytes.
        align: u32,
        /// Most bytes in one read.
        max_read: u32,
        /// Most bytes in one write.
        max_write: u32,
        /// [`crate::health`].
        health: u32,
    }
}

/// The terms of a lease of memory: the queue pairs of the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemTerms {
    /// 0x0210, repeatable: the client's queue pairs; may come later with LEASE_BIND.
    pub rdma_peers: Vec<RdmaPeer>,
}

impl Terms for MemTerms {
    fn find(params: &TlvArea<'_>) -> Decoded<Self> {
        peer::find(params).map(|rdma_peers| Self { rdma_peers })
    }

    fn write(&self, w: &mut Writer) {
        write_peers(w, &self.rdma_peers);
    }

    fn amount(bytes: u64) -> String {
        Size(bytes).to_string()
    }
}

words! {
    /// How a node gives out RDMA access. Value of 0x0208.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RdmaStrategy: u8, "RDMA strategy", from_byte {
        /// A type 2B memory window pinned to the lease's queue pair.
        Window = 0, "window";
        /// A protection domain and memory region of the lease's own.
        Region = 1, "region";
    }
}

/// 0x0201–0x020E: one RC queue pair, or several, and the key to the lease's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RdmaBinding {
    /// 0x0201; absent until the client's queue pair is known.
    pub rkey: Option<u32>,
    /// 0x0202.
    pub remote_addr: u64,
    /// 0x0203; 0 while the lease has no queue pair, because each has left.
    pub qp_num: u32,
    /// 0x0204.
    pub gid: [u8; 16],
    /// 0x0205.
    pub port: u8,
    /// 0x0206: the node's starting send PSN.
    pub psn: u32,
    /// 0x0207, bytes.
    pub path_mtu: u16,
    /// 0x0208.
    pub strategy: RdmaStrategy,
    /// 0x0209: after a rotation with overlap, the old key, until it is retired.
    pub previous: Option<PreviousKey>,
    /// 0x020A: largest number of RDMA reads and atomics that the node answers at once.
    pub max_rd_atomic: u8,
    /// 0x020B: whether the key allows atomics.
    pub atomics: bool,
    /// 0x020C, repeatable: further queue pairs over the same bytes, in the order in which the clients' queue pairs came.
    pub further: Vec<RdmaQueuePair>,
    /// 0x020D: the key that the next queue pair of a client gets, if it is known before. It gives no access until then.
    pub prepared_rkey: Option<u32>,
    /// 0x020E: only in the answer to a LEASE_BIND that asked for it.
    pub attach: Option<RdmaAttach>,
}

/// 0x020C: `u32 qp_num, u32 psn, u32 rkey`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RdmaQueuePair {
    /// The node's queue pair.
    pub qp_num: u32,
    /// The node's starting send PSN.
    pub psn: u32,
    /// The key to the lease's bytes for this queue pair.
    pub rkey: u32,
}

/// 0x0209: `u32 rkey, u32 milliseconds` for which the key still works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PreviousKey {
    /// The old key.
    pub rkey: u32,
    /// Milliseconds for which the key still works, from the answer on.
    pub remaining_ms: u32,
}

impl Coordinates for RdmaBinding {
    const TAGS: RangeInclusive<u16> = tag::RDMA_RKEY..=tag::RDMA_ATTACH;

    fn read(area: &TlvArea<'_>) -> Decoded<Self> {
        Ok(Self {
            rkey: area.read(tag::RDMA_RKEY, Tlv::u32)?,
            remote_addr: area
                .require(tag::RDMA_REMOTE_ADDR, |t| t.fixed().map(u64::from_be_bytes))?,
            qp_num: area.require(tag::RDMA_QP_NUM, |t| check_u24(t, 0, "qp_num", t.u32()?))?,
            gid: area.require(tag::RDMA_GID, Tlv::fixed)?,
            port: area.require(tag::RDMA_PORT, read_u8)?,
            psn: area.require(tag::RDMA_PSN, |t| check_u24(t, 0, "psn", t.u32()?))?,
            path_mtu: area.require(tag::RDMA_PATH_MTU, |t| {
                check_path_mtu(t, 0, u16::from_be_bytes(t.fixed()?))
            })?,
            strategy: area.require(tag::RDMA_STRATEGY, |t| {
                t.byte_of("strategy", "0 or 1", RdmaStrategy::from_byte)
            })?,
            previous: area.read(tag::RDMA_PREVIOUS_KEY, read_previous)?,
            max_rd_atomic: area.require(tag::RDMA_MAX_RD_ATOMIC, read_u8)?,
            atomics: area.require(tag::RDMA_ATOMICS, Tlv::flag)?,
            further: area
                .find_all(tag::RDMA_QUEUE_PAIR, RDMA_QUEUE_PAIRS_MAX - 1)?
                .iter()
                .map(read_queue_pair)
                .collect::<Decoded<_>>()?,
            prepared_rkey: area.read(tag::RDMA_PREPARED_RKEY, Tlv::u32)?,
            attach: area.read(tag::RDMA_ATTACH, attach::read)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.tlv_if(tag::RDMA_RKEY, self.rkey.map(u32::to_be_bytes));
        w.tlv(tag::RDMA_REMOTE_ADDR, &self.remote_addr.to_be_bytes());
        w.tlv(tag::RDMA_QP_NUM, &self.qp_num.to_be_bytes());
        w.tlv(tag::RDMA_GID, &self.gid);
        w.tlv(tag::RDMA_PORT, &[self.port]);
        w.tlv(tag::RDMA_PSN, &self.psn.to_be_bytes());
        w.tlv(tag::RDMA_PATH_MTU, &self.path_mtu.to_be_bytes());
        w.tlv(tag::RDMA_STRATEGY, &[self.strategy as u8]);
        w.tlv_if(tag::RDMA_PREVIOUS_KEY, self.previous.map(previous_value));
        w.tlv(tag::RDMA_MAX_RD_ATOMIC, &[self.max_rd_atomic]);
        w.tlv(tag::RDMA_ATOMICS, &[u8::from(self.atomics)]);
        for further in &self.further {
            w.tlv(tag::RDMA_QUEUE_PAIR, &queue_pair_value(*further));
        }
        let prepared = self.prepared_rkey.map(u32::to_be_bytes);
        w.tlv_if(tag::RDMA_PREPARED_RKEY, prepared);
        attach::write(w, self.attach.as_ref());
    }
}

fn read_u8(tlv: &Tlv<'_>) -> Decoded<u8> {
    tlv.fixed().map(u8::from_be_bytes)
}

fn read_queue_pair(tlv: &Tlv<'_>) -> Decoded<RdmaQueuePair> {
    let value: [u8; 12] = tlv.fixed()?;
    let word =
        |at: usize| u32::from_be_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]]);
    Ok(RdmaQueuePair {
        qp_num: check_u24(tlv, 0, "qp_num", word(0))?,
        psn: check_u24(tlv, 4, "psn", word(4))?,
        rkey: word(8),
    })
}

fn read_previous(tlv: &Tlv<'_>) -> Decoded<PreviousKey> {
    let [k0, k1, k2, k3, m0, m1, m2, m3] = tlv.fixed()?;
    Ok(PreviousKey {
        rkey: u32::from_be_bytes([k0, k1, k2, k3]),
        remaining_ms: u32::from_be_bytes([m0, m1, m2, m3]),
    })
}

fn queue_pair_value(further: RdmaQueuePair) -> [u8; 12] {
    let mut out = [0; 12];
    out[0..4].copy_from_slice(&further.qp_num.to_be_bytes());
    out[4..8].copy_from_slice(&further.psn.to_be_bytes());
    out[8..12].copy_from_slice(&further.rkey.to_be_bytes());
    out
}

fn previous_value(previous: PreviousKey) -> [u8; 8] {
    (u64::from(previous.rkey) << 32 | u64::from(previous.remaining_ms)).to_be_bytes()
}
