//! The client's queue pairs: those that a binding connects to (`TLV_RDMA_PEER`, 0x0210), those that join a live binding
//! (0x0211), and those that leave it (0x0212). LEASE_BIND has one of these tags, or asks for an attach code (0x0213).

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use super::{RDMA_PEERS_MAX, U24_MAX, tag};
use crate::{
    DecodeError, LeaseId, Request,
    tlv::{Tlv, TlvArea},
    write::Writer,
};

/// 0x0210: a client's queue pair. `u32 qpn, u32 psn, [u8; 16] gid, u16 path_mtu, u16 reserved = 0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RdmaPeer {
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// Starting send PSN, 24 bits.
    pub psn: u32,
    /// GID; IPv4 as v4-mapped for RoCE v2.
    pub gid: [u8; 16],
    /// 256, 512, 1024, 2048 or 4096; 0 leaves it to the node.
    pub path_mtu: u16,
}

impl RdmaPeer {
    /// Whether the GID can belong to one port. Kernels also accept multicast and unspecified addresses, and then wait
    /// for an answer that never comes.
    #[must_use]
    pub fn names_one_port(&self) -> bool {
        let v6 = Ipv6Addr::from(self.gid);
        let nobody = v6.is_multicast() || v6.is_unspecified() || v6.is_loopback();
        let v4_nobody = v6.to_ipv4_mapped().is_some_and(|v4| {
            v4.is_multicast() || v4.is_broadcast() || v4.is_unspecified() || v4.is_loopback()
        });
        !nobody && !v4_nobody
    }
}

/// A change of the queue pairs of a live binding. The others go on without an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
#[cfg_attr(feature = "vectors", serde(rename_all = "snake_case"))]
pub enum PeerChange {
    /// 0x0211, repeatable: queue pairs of a client that join, 1 to [`RDMA_PEERS_MAX`].
    Add(Vec<RdmaPeer>),
    /// 0x0212, repeatable: queue pairs of the node that are cut, by number (24 bits), 1 to [`RDMA_PEERS_MAX`].
    Remove(Vec<u32>),
}

pub(super) fn find(params: &TlvArea<'_>) -> Result<Vec<RdmaPeer>, DecodeError> {
    find_tagged(params, tag::RDMA_PEER)
}

fn find_tagged(params: &TlvArea<'_>, tag: u16) -> Result<Vec<RdmaPeer>, DecodeError> {
    let found = params.find_all(tag, RDMA_PEERS_MAX)?;
    found.iter().map(read).collect()
}

/// Reads the parameters of LEASE_BIND, which have one of the four tags.
pub(crate) fn read_bind(lease_id: LeaseId, params: &TlvArea<'_>) -> Result<Request, DecodeError> {
    const TAGS: [u16; 4] = [
        tag::RDMA_PEER,
        tag::RDMA_PEER_BESIDE,
        tag::RDMA_QP_LEAVES,
        tag::RDMA_ATTACH_CODE,
    ];
    let mut known = params.iter().filter(|tlv| TAGS.contains(&tlv.tag));
    let first = known.next().ok_or_else(|| params.missing(tag::RDMA_PEER))?;
    if let Some(other) = known.find(|tlv| tlv.tag != first.tag) {
        let expected = "only one of 0x0210 to 0x0213";
        return Err(other.unknown_value(0, "tag", expected, "two of them"));
    }
    let change = match first.tag {
        tag::RDMA_PEER => {
            let peers = find(params)?;
            return Ok(Request::LeaseBind { lease_id, peers });
        }
        tag::RDMA_ATTACH_CODE => {
            params.require(tag::RDMA_ATTACH_CODE, Tlv::fixed::<0>)?;
            return Ok(Request::LeaseAttach(lease_id));
        }
        tag::RDMA_PEER_BESIDE => PeerChange::Add(find_tagged(params, tag::RDMA_PEER_BESIDE)?),
        _ => {
            let leaving = params.find_all(tag::RDMA_QP_LEAVES, RDMA_PEERS_MAX)?;
            PeerChange::Remove(leaving.iter().map(read_qp_num).collect::<Result<_, _>>()?)
        }
    };
    Ok(Request::LeasePeers { lease_id, change })
}

fn read_qp_num(tlv: &Tlv<'_>) -> Result<u32, DecodeError> {
    match check_u24(tlv, 0, "qp_num", tlv.u32()?)? {
        0 => Err(tlv.unknown_value(0, "qp_num", "1 to 16777215", 0)),
        number => Ok(number),
    }
}

fn read(tlv: &Tlv<'_>) -> Result<RdmaPeer, DecodeError> {
    let value = tlv.fixed::<28>()?;
    let peer = split(&value);
    if peer.qpn == 0 {
        return Err(tlv.unknown_value(0, "qpn", "1 to 16777215", peer.qpn));
    }
    check_u24(tlv, 0, "qpn", peer.qpn)?;
    check_u24(tlv, 4, "psn", peer.psn)?;
    check_path_mtu(tlv, 24, peer.path_mtu)?;
    match &value[26..] {
        [0, 0] => Ok(peer),
        _ => Err(tlv.unknown_value(26, "reserved", "0", "something else")),
    }
}

fn split(v: &[u8; 28]) -> RdmaPeer {
    let mut gid = [0; 16];
    gid.copy_from_slice(&v[8..24]);
    RdmaPeer {
        qpn: u32::from_be_bytes([v[0], v[1], v[2], v[3]]),
        psn: u32::from_be_bytes([v[4], v[5], v[6], v[7]]),
        gid,
        path_mtu: u16::from_be_bytes([v[24], v[25]]),
    }
}

/// Checks that a queue pair number or packet sequence number fits in 24 bits; the hardware would silently cut off the
/// other bits.
pub(super) fn check_u24(
    tlv: &Tlv<'_>,
    at: usize,
    field: &'static str,
    value: u32,
) -> Result<u32, DecodeError> {
    if value <= U24_MAX {
        return Ok(value);
    }
    Err(tlv.unknown_value(at, field, "at most 16777215", value))
}

/// Checks that the path MTU is one of the five of InfiniBand, or 0 for none.
pub(super) fn check_path_mtu(tlv: &Tlv<'_>, at: usize, value: u16) -> Result<u16, DecodeError> {
    if matches!(value, 0 | 256 | 512 | 1024 | 2048 | 4096) {
        return Ok(value);
    }
    Err(tlv.unknown_value(at, "path_mtu", "0, 256, 512, 1024, 2048 or 4096", value))
}

pub(crate) fn write_peers(w: &mut Writer, peers: &[RdmaPeer]) {
    write_tagged(w, tag::RDMA_PEER, peers);
}

fn write_tagged(w: &mut Writer, tag: u16, peers: &[RdmaPeer]) {
    for peer in peers {
        w.tlv(tag, &value(peer));
    }
}

/// Writes the parameters of a LEASE_BIND beside a live binding.
pub(crate) fn write_change(w: &mut Writer, change: &PeerChange) {
    match change {
        PeerChange::Add(peers) => write_tagged(w, tag::RDMA_PEER_BESIDE, peers),
        PeerChange::Remove(numbers) => {
            for number in numbers {
                w.tlv(tag::RDMA_QP_LEAVES, &number.to_be_bytes());
            }
        }
    }
}

fn value(peer: &RdmaPeer) -> [u8; 28] {
    let mut out = [0; 28];
    out[..4].copy_from_slice(&peer.qpn.to_be_bytes());
    out[4..8].copy_from_slice(&peer.psn.to_be_bytes());
    out[8..24].copy_from_slice(&peer.gid);
    out[24..26].copy_from_slice(&peer.path_mtu.to_be_bytes());
    out
}
