//! Memory.

use fabricbios_wire::*;
use proptest::{collection::vec, option, prelude::*, sample::select};

use super::numbers;

pub(super) fn terms() -> impl Strategy<Value = MemTerms> {
    vec(peer(), 0..=RDMA_PEERS_MAX).prop_map(|rdma_peers| MemTerms { rdma_peers })
}

pub(super) fn peer() -> impl Strategy<Value = RdmaPeer> {
    (1..=U24_MAX, 0..=U24_MAX, any::<[u8; 16]>(), path_mtu()).prop_map(
        |(qpn, psn, gid, path_mtu)| RdmaPeer {
            qpn,
            psn,
            gid,
            path_mtu,
        },
    )
}

pub(super) fn change() -> impl Strategy<Value = PeerChange> {
    prop_oneof![
        vec(peer(), 1..=RDMA_PEERS_MAX).prop_map(PeerChange::Add),
        vec(1..=U24_MAX, 1..=RDMA_PEERS_MAX).prop_map(PeerChange::Remove),
    ]
}

pub(super) fn coordinates() -> impl Strategy<Value = RdmaBinding> {
    let keys = (option::of(any::<u32>()), option::of(any::<(u32, u32)>()));
    let path = (any::<[u8; 16]>(), any::<u8>(), path_mtu());
    let queue = (any::<u64>(), 0..=U24_MAX, 0..=U24_MAX, any::<u8>());
    let further = vec(queue_pair(), 0..RDMA_QUEUE_PAIRS_MAX);
    let told = (option::of(any::<u32>()), option::of(attach()));
    let how = (select(RdmaStrategy::ALL), any::<bool>(), further, told);
    (keys, path, queue, how).prop_map(|(keys, path, queue, how)| {
        let (strategy, atomics, further, (prepared_rkey, attach)) = how;
        RdmaBinding {
            rkey: keys.0,
            remote_addr: queue.0,
            qp_num: queue.1,
            gid: path.0,
            port: path.1,
            psn: queue.2,
            path_mtu: path.2,
            strategy,
            previous: keys
                .1
                .map(|(rkey, remaining_ms)| PreviousKey { rkey, remaining_ms }),
            max_rd_atomic: queue.3,
            atomics,
            further,
            prepared_rkey,
            attach,
        }
    })
}

fn attach() -> impl Strategy<Value = RdmaAttach> {
    let port = 1..=u16::MAX;
    (any::<[u8; 16]>(), 1..=u128::MAX >> 32, port).prop_map(|(code, addr, port)| RdmaAttach {
        code: AttachCode(code),
        endpoint: Endpoint {
            addr: (addr << 32 | 1).to_be_bytes(),
            port,
        },
    })
}

fn queue_pair() -> impl Strategy<Value = RdmaQueuePair> {
    (0..=U24_MAX, 0..=U24_MAX, any::<u32>()).prop_map(|(qp_num, psn, rkey)| RdmaQueuePair {
        qp_num,
        psn,
        rkey,
    })
}

fn path_mtu() -> impl Strategy<Value = u16> {
    select(vec![0, 256, 512, 1024, 2048, 4096])
}

pub(super) fn entry() -> impl Strategy<Value = MemArena> {
    numbers().prop_map(
        |(resource_id, (base, len), (align, max_read, max_write, health))| MemArena {
            resource_id,
            base,
            len,
            align,
            max_read,
            max_write,
            health,
        },
    )
}
