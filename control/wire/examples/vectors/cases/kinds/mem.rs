//! Memory over RDMA.

use super::*;

pub(crate) fn cases(c: &mut Vec<Case>) {
    let plain = &samples::alloc(ResourceType::Mem);
    terms(c, plain);
    bad_terms(c);
    leases(c);
    several_queue_pairs(c);
    bad_leases(c);
}

#[rustfmt::skip] // One case a line.
fn terms(c: &mut Vec<Case>, plain: &LeaseAllocRequest) {
    let alloc = plain.clone().with_terms(memory_of(vec![peer()]));
    params(c, "rdma_peer", "a client's queue pair", &alloc);
    let alloc = plain.clone().with_terms(memory_of(peers(RDMA_PEERS_MAX)));
    params(c, "rdma_peers_8", "as many queue pairs as a request can have", &alloc);
}

#[rustfmt::skip] // One case a line.
fn bad_terms(c: &mut Vec<Case>) {
    let peer = |qpn: u32, psn: u32, mtu: u16, reserved: u8| {
        let (qpn, psn, mtu) = (qpn.to_be_bytes(), psn.to_be_bytes(), mtu.to_be_bytes());
        tlv(
            0x0210,
            &[&qpn[..], &psn, &samples::gid(9), &mtu, &[0, reserved]].concat(),
        )
    };
    bad_tlv(c, "rdma_peer_qpn_0", "queue pair 0", peer(0, 1, 1024, 0));
    bad_tlv(c, "rdma_peer_qpn_25_bits", "0x1000000", peer(0x0100_0000, 1, 1024, 0));
    bad_tlv(c, "rdma_peer_psn_25_bits", "0x1000000", peer(1, 0x0100_0000, 1024, 0));
    bad_tlv(c, "rdma_peer_mtu_1500", "not an InfiniBand MTU", peer(1, 1, 1500, 0));
    bad_tlv(c, "rdma_peer_reserved", "reserved 1", peer(1, 1, 1024, 1));
    bad_tlv(c, "rdma_peer_length_27", "27 bytes", tlv(0x0210, &peer(1, 1, 1024, 0)[4..31]));
    bad_tlv(c, "rdma_peer_9", "one more than 8", peer(1, 1, 1024, 0).repeat(9));
    let second = [peer(1, 1, 1024, 0), peer(0, 1, 1024, 0)].concat();
    bad_tlv(c, "rdma_peer_second", "the second one is queue pair 0", second);
}

#[rustfmt::skip] // One case a line.
fn leases(c: &mut Vec<Case>) {
    use MessageType as M;
    let mut waiting = samples::rdma_lease();
    waiting.binding.kind = KindBinding::Mem(Some(RdmaBinding {
        rkey: None,
        ..rdma()
    }));
    let about = "a lease whose client has not yet named its queue pair: no rkey";
    answer(c, "lease_without_rkey", about, M::LeaseAlloc, Reply::Lease(waiting));
    let mut prepared = samples::rdma_lease();
    prepared.binding.kind = KindBinding::Mem(Some(RdmaBinding {
        rkey: None,
        prepared_rkey: Some(0x8765_4321),
        strategy: RdmaStrategy::Region,
        ..rdma()
    }));
    let about = "a lease whose key is known before its client's queue pair";
    answer(c, "lease_prepared_rkey", about, M::LeaseAlloc, Reply::Lease(prepared));
    let mut attach = samples::rdma_lease();
    attach.binding.kind = KindBinding::Mem(Some(RdmaBinding {
        attach: Some(RdmaAttach {
            code: AttachCode(core::array::from_fn(|n| 0xF0 - u8::try_from(n).unwrap_or(0))),
            endpoint: Endpoint { addr: gid(7), port: 7471 },
        }),
        ..rdma()
    }));
    let about = "the answer that tells an attach code";
    answer(c, "lease_attach_code", about, M::LeaseBind, Reply::Lease(attach));
}

#[rustfmt::skip] // One case a line.
fn several_queue_pairs(c: &mut Vec<Case>) {
    let mut lease = samples::rdma_lease();
    lease.binding.kind = KindBinding::Mem(Some(RdmaBinding {
        further: further(RDMA_QUEUE_PAIRS_MAX - 1),
        ..rdma()
    }));
    let about = "a lease with as many queue pairs as it can have";
    answer(c, "lease_queue_pairs_64", about, MessageType::LeaseBind, Reply::Lease(lease));
}

#[rustfmt::skip] // One case a line.
fn bad_leases(c: &mut Vec<Case>) {
    let kind = Kind::Answer(asked(MessageType::LeaseQuery));
    let mut tag = |name: &str, about: &str, tag: u16, instead: &[u8]| {
        let bytes = damaged_lease(samples::full_lease(), tag, instead);
        bad(c, &format!("bad_answer_{name}"), kind, about, bytes, LeaseError::InvalidIntent);
    };
    for missing in [
        0x0202, 0x0203, 0x0204, 0x0205, 0x0206, 0x0207, 0x0208, 0x020A, 0x020B,
    ] {
        tag(&format!("rdma_without_{missing:04x}"), "an RDMA tag is missing", missing, &[]);
    }
    tag("qp_num_25_bits", "a queue pair number", 0x0203, &tlv(0x0203, &[1, 0, 0, 0]));
    tag("psn_25_bits", "a starting PSN", 0x0206, &tlv(0x0206, &[1, 0, 0, 0]));
    tag("path_mtu_1500", "not an InfiniBand MTU", 0x0207, &tlv(0x0207, &[5, 0xDC]));
    tag("strategy_2", "an unknown strategy", 0x0208, &tlv(0x0208, &[2]));
    tag("atomics_2", "2 for yes", 0x020B, &tlv(0x020B, &[2]));
    tag("rkey_twice", "two rkeys", 0x0201, &tlv(0x0201, &[1; 4]).repeat(2));
    let atomics = |further: &[u8]| [&tlv(0x020B, &[1]), further].concat();
    let pair = |qpn: u8, psn: u8| tlv(0x020C, &[qpn, 0, 0, 1, psn, 0, 0, 2, 0, 0, 0, 3]);
    tag("queue_pairs_65", "one more than 64 altogether", 0x020B, &atomics(&pair(0, 0).repeat(63)));
    tag("prepared_rkey_length_3", "3 bytes", 0x020B, &atomics(&tlv(0x020D, &[0; 3])));
    let attach = |length: usize, port: u8| {
        let mut value = [1; 34];
        value[32..].copy_from_slice(&[0, port]);
        atomics(&tlv(0x020E, &value[..length]))
    };
    tag("attach_length_33", "33 bytes", 0x020B, &attach(33, 1));
    tag("attach_port_0", "port 0 of an attach code", 0x020B, &attach(34, 0));
    tag("further_qp_num_25_bits", "a queue pair number", 0x020B, &atomics(&pair(1, 0)));
    tag("further_psn_25_bits", "a starting PSN", 0x020B, &atomics(&pair(0, 1)));
    tag("further_length_11", "11 bytes", 0x020B, &atomics(&tlv(0x020C, &[0; 11])));
    tag("further_length_13", "13 bytes", 0x020B, &atomics(&tlv(0x020C, &[0; 13])));
}

pub(crate) fn memory_of(rdma_peers: Vec<RdmaPeer>) -> MemTerms {
    MemTerms { rdma_peers }
}

pub(crate) fn peer() -> RdmaPeer {
    RdmaPeer {
        qpn: 0x0001_0203,
        psn: 0x00a1_b2c3,
        gid: gid(9),
        path_mtu: 1024,
    }
}

/// The first `count` queue pairs of a client; no two are alike.
pub(crate) fn peers(count: usize) -> Vec<RdmaPeer> {
    let one = |n: u32| RdmaPeer {
        qpn: peer().qpn + n,
        psn: peer().psn - n,
        ..peer()
    };
    (0..).map(one).take(count).collect()
}

/// Further queue pairs of the node, beside the first.
pub(crate) fn further(count: usize) -> Vec<RdmaQueuePair> {
    let one = |n: u32| RdmaQueuePair {
        qp_num: 0x0021_2223 + n,
        psn: 0x00d1_d2d3 - n,
        rkey: 0xe1e2_e3e4 - n,
    };
    (0..).map(one).take(count).collect()
}

pub(crate) fn rdma() -> RdmaBinding {
    RdmaBinding {
        rkey: Some(0x8765_4321),
        remote_addr: 0x7f00_1234_5000,
        qp_num: 0x0011_1213,
        gid: gid(7),
        port: 1,
        psn: 0x00c1_c2c3,
        path_mtu: 4096,
        strategy: RdmaStrategy::Window,
        previous: None,
        max_rd_atomic: 16,
        atomics: true,
        further: vec![],
        prepared_rkey: None,
        attach: None,
    }
}
