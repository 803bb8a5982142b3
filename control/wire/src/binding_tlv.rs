//! The TLVs of a binding: 0x0102–0x0104 and 0x0201–0x020C; 0x0301–0x0309 are in `nvmeof`, 0x0401–0x0408 in `net`,
//! 0x0501–0x0507 in `gpu`, 0x0601–0x0605 in `cpu`. If one of the RDMA tags is present, all of 0x0202–0x0208, 0x020A and
//! 0x020B must be present.

use alloc::boxed::Box;

use crate::{
    Binding, DecodeError, DpKey, Endpoint, KindBinding, Limits, PreviousKey, RDMA_PEERS_MAX,
    RdmaBinding, RdmaQueuePair, RdmaStrategy, ResourceType, cpu, endpoint, gpu, net, nvmeof,
    rdma_peer::{check_path_mtu, check_u24},
    tag,
    tlv::{Tlv, TlvArea},
    write::Writer,
};

type Read<T> = Result<T, DecodeError>;

/// Reads the coordinates of `kind`. Tags of another kind are checked, then left out like unknown tags.
pub(crate) fn read(area: &TlvArea<'_>, kind: ResourceType) -> Read<Binding> {
    Ok(Binding {
        dp_key: area.read(tag::DP_KEY, |tlv| tlv.fixed().map(DpKey))?,
        udp_endpoint: area.read(tag::UDP_ENDPOINT, read_endpoint)?,
        limits: area.read(tag::LIMITS, read_limits)?,
        kind: {
            let rdma = has_rdma(area).then(|| read_rdma(area)).transpose()?;
            let nvmeof = nvmeof::has_binding(area)
                .then(|| nvmeof::read_binding(area).map(Box::new))
                .transpose()?;
            let cpu = cpu::has_binding(area)
                .then(|| cpu::read_binding(area).map(Box::new))
                .transpose()?;
            let net = net::has_binding(area)
                .then(|| net::read_binding(area).map(Box::new))
                .transpose()?;
            let gpu = gpu::has_binding(area)
                .then(|| gpu::read_binding(area).map(Box::new))
                .transpose()?;
            match Binding::plain(kind).kind {
                KindBinding::Mem(_) => KindBinding::Mem(rdma),
                KindBinding::Block(_) => KindBinding::Block(nvmeof),
                KindBinding::Cpu(_) => KindBinding::Cpu(cpu),
                KindBinding::Net(_) => KindBinding::Net(net),
                KindBinding::Gpu(_) => KindBinding::Gpu(gpu),
                other @ KindBinding::Other(_) => other,
            }
        },
    })
}

fn has_rdma(area: &TlvArea<'_>) -> bool {
    area.iter()
        .any(|tlv| (tag::RDMA_RKEY..=tag::RDMA_QUEUE_PAIR).contains(&tlv.tag))
}

pub(crate) fn read_endpoint(tlv: &Tlv<'_>) -> Read<Endpoint> {
    Endpoint::from_bytes(tlv.fixed()?)
        .ok_or_else(|| tlv.unknown_value(0, "endpoint", endpoint::EXPECTED, "a wildcard"))
}

fn read_limits(tlv: &Tlv<'_>) -> Read<Limits> {
    let (offset, length) = split_u64(tlv.fixed()?);
    match offset.checked_add(length) {
        Some(_) => Ok(Limits { offset, length }),
        None => Err(tlv.unknown_value(8, "length", "an end that fits 64 bits", length)),
    }
}

fn split_u64(value: [u8; 16]) -> (u64, u64) {
    let both = u128::from_be_bytes(value);
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the two halves of 128 bits"
    )]
    ((both >> 64) as u64, both as u64)
}

fn read_rdma(area: &TlvArea<'_>) -> Read<RdmaBinding> {
    Ok(RdmaBinding {
        rkey: area.read(tag::RDMA_RKEY, Tlv::u32)?,
        remote_addr: area.require(tag::RDMA_REMOTE_ADDR, |t| t.fixed().map(u64::from_be_bytes))?,
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
            .find_all(tag::RDMA_QUEUE_PAIR, RDMA_PEERS_MAX - 1)?
            .iter()
            .map(read_queue_pair)
            .collect::<Read<_>>()?,
    })
}

fn read_u8(tlv: &Tlv<'_>) -> Read<u8> {
    tlv.fixed().map(u8::from_be_bytes)
}

fn read_queue_pair(tlv: &Tlv<'_>) -> Read<RdmaQueuePair> {
    let value: [u8; 12] = tlv.fixed()?;
    let word =
        |at: usize| u32::from_be_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]]);
    Ok(RdmaQueuePair {
        qp_num: check_u24(tlv, 0, "qp_num", word(0))?,
        psn: check_u24(tlv, 4, "psn", word(4))?,
        rkey: word(8),
    })
}

fn read_previous(tlv: &Tlv<'_>) -> Read<PreviousKey> {
    let [k0, k1, k2, k3, m0, m1, m2, m3] = tlv.fixed()?;
    Ok(PreviousKey {
        rkey: u32::from_be_bytes([k0, k1, k2, k3]),
        remaining_ms: u32::from_be_bytes([m0, m1, m2, m3]),
    })
}

pub(crate) fn write(w: &mut Writer, binding: &Binding) {
    if let Some(key) = &binding.dp_key {
        w.tlv(tag::DP_KEY, &key.0);
    }
    w.tlv_if(
        tag::UDP_ENDPOINT,
        binding.udp_endpoint.map(|endpoint| endpoint.bytes()),
    );
    w.tlv_if(tag::LIMITS, binding.limits.map(limits_value));
    if let Some(rdma) = binding.rdma() {
        write_rdma(w, rdma);
    }
    if let Some(nvmeof) = binding.nvmeof() {
        nvmeof::write_binding(w, nvmeof);
    }
    if let Some(net) = binding.net() {
        net::write_binding(w, net);
    }
    if let Some(gpu) = binding.gpu() {
        gpu::write_binding(w, gpu);
    }
    if let Some(cpu) = binding.cpu() {
        cpu::write_binding(w, cpu);
    }
}

fn limits_value(limits: Limits) -> [u8; 16] {
    (u128::from(limits.offset) << 64 | u128::from(limits.length)).to_be_bytes()
}

fn write_rdma(w: &mut Writer, rdma: &RdmaBinding) {
    w.tlv_if(tag::RDMA_RKEY, rdma.rkey.map(u32::to_be_bytes));
    w.tlv(tag::RDMA_REMOTE_ADDR, &rdma.remote_addr.to_be_bytes());
    w.tlv(tag::RDMA_QP_NUM, &rdma.qp_num.to_be_bytes());
    w.tlv(tag::RDMA_GID, &rdma.gid);
    w.tlv(tag::RDMA_PORT, &[rdma.port]);
    w.tlv(tag::RDMA_PSN, &rdma.psn.to_be_bytes());
    w.tlv(tag::RDMA_PATH_MTU, &rdma.path_mtu.to_be_bytes());
    w.tlv(tag::RDMA_STRATEGY, &[rdma.strategy as u8]);
    w.tlv_if(tag::RDMA_PREVIOUS_KEY, rdma.previous.map(previous_value));
    w.tlv(tag::RDMA_MAX_RD_ATOMIC, &[rdma.max_rd_atomic]);
    w.tlv(tag::RDMA_ATOMICS, &[u8::from(rdma.atomics)]);
    for further in &rdma.further {
        w.tlv(tag::RDMA_QUEUE_PAIR, &queue_pair_value(*further));
    }
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
