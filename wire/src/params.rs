//! What a lease is asked for: LEASE_ALLOC and the TLVs of its params blob.

use alloc::vec::Vec;

use crate::{CpuIsolationClass, GpuExclusivityClass, ResourceId, ResourceType};

/// LEASE_ALLOC (0x0200).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseAllocRequest {
    /// What kind.
    pub resource_type: ResourceType,
    /// Which one; any of the kind if absent (zero on the wire).
    pub resource_id: Option<ResourceId>,
    /// How much, in the unit of the type.
    pub capacity: u64,
    /// Term in seconds, at least 1.
    pub lease_secs: u32,
    /// Seconds after the term during which contents are kept but nobody has access.
    pub grace_secs: u32,
    /// 0x0901, advisory but validated.
    pub kv_cache_intent: Option<KvCacheIntent>,
    /// 0x0902 (002).
    pub cpu_isolation: Option<CpuIsolationClass>,
    /// 0x0903 (003).
    pub gpu_exclusivity: Option<GpuExclusivityClass>,
    /// 0x0910, repeatable; kept in order.
    pub affinities: Vec<Affinity>,
    /// 0x0904: over which road; `Auto` if absent.
    pub transport: Transport,
    /// 0x0905: the client follows key changes, so renewal rotates the key.
    pub rotate_on_renew: bool,
    /// 0x0210: the client's queue pair; may come later with LEASE_BIND.
    pub rdma_peer: Option<RdmaPeer>,
}

/// 0x0901: what a KV cache wants of memory. The sources leave the layout open; ours is 8 bytes:
/// `u8 version = 1`, `u8 tier`, `u16 reserved = 0`, `u32 block_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCacheIntent {
    /// How warm the cache is.
    pub tier: KvCacheTier,
    /// Bytes of one cache block, 0 if not stated.
    pub block_bytes: u32,
}

/// How warm a KV cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum KvCacheTier {
    /// Being decoded from.
    Hot = 0,
    /// Kept for reuse.
    Warm = 1,
    /// Kept because room was left.
    Cold = 2,
}

/// 0x0910: `category u8, strength u8, target_type u8, target_len u16, target`. The sources give the
/// layout, five categories, three strengths and category 1 = Resource; the other names are ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// What is compared: 1 resource, 2 node, 3 rack, 4 tenant, 5 data.
    pub category: u8,
    /// 1 required, 2 preferred, 3 avoid.
    pub strength: u8,
    /// How the target is written: 1 resource id (16 bytes), 2 lease id (16 bytes), 3 node id
    /// (32 bytes), 4 label (UTF-8).
    pub target_type: u8,
    /// At most 255 bytes.
    pub target: Vec<u8>,
}

/// Over which road a lease is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u8)]
pub enum Transport {
    /// The best that the node has.
    #[default]
    Auto = 0,
    /// RDMA reads and writes (MEM).
    Rdma = 1,
    /// FBMU or FBBU over UDP.
    Udp = 2,
    /// Both roads over the same bytes, cut together.
    Both = 3,
    /// NVMe-oF over TCP (BLOCK).
    NvmeTcp = 4,
    /// NVMe-oF over RDMA (BLOCK).
    NvmeRdma = 5,
}

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
