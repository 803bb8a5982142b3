//! A lease as its holder sees it: its state and the coordinates of its data plane (000, "Binding TLV Format").

use alloc::{boxed::Box, string::String, vec::Vec};
use core::fmt;

use zeroize::Zeroize;

use crate::{
    CpuBinding, CpuExecutionMode, CpuIsolationClass, CpuPartition, Enforcement, Generation,
    GpuBinding, GpuExclusivityClass, GpuExecutionMode, LeaseId, LeaseIntent, NetBinding,
    NvmeofBinding, ResourceId, ResourceType, Transport,
};

/// A lease as its holder sees it: the reply to ALLOC, RENEW, QUERY, BIND and ROTATE.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct LeaseInfo {
    /// The lease (also TLV 0x0101 of the binding).
    pub lease_id: LeaseId,
    /// The resource.
    pub resource_id: ResourceId,
    /// ACTIVE, EXPIRED or REVOKED, as in the specification.
    pub status: LeaseStatus,
    /// The exact state.
    pub phase: LeasePhase,
    /// The number of bindings so far.
    pub generation: Generation,
    /// Granted capacity, in the unit of the type.
    pub capacity: u64,
    /// Wall clock of the grant, for display.
    pub granted_at_unix_ms: u64,
    /// Wall clock of the deadline.
    pub expires_at_unix_ms: u64,
    /// Wall clock from which renewal is accepted; 0 if renewal is not possible any more.
    pub renewable_at_unix_ms: u64,
    /// Wall clock until which contents are kept; 0 without grace.
    pub grace_ends_unix_ms: u64,
    /// Milliseconds of access left when the node answered, by its own clock. A client whose wall clock differs uses
    /// this.
    pub remaining_ms: u64,
    /// Classes that the node enforces for this lease.
    pub effective: Effective,
    /// 0x0901 and 0x0910: the use that the tenant stated, kept and not enforced. Boxed: few leases have one.
    pub intent: Option<Box<LeaseIntent>>,
    /// The kind and the coordinates; parts that the lease does not have are absent.
    pub binding: Binding,
    /// 0x0C01: the tenant. Only operators receive it; a tenant sees only its own leases.
    pub tenant: Option<String>,
    /// 0x0C02 to 0x0C04: the end of the lease; absent while it lives. Boxed: of a million leases most have not ended.
    pub end: Option<Box<LeaseEnd>>,
}

/// The end of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LeaseEnd {
    /// Wall clock of the proof that access has ended, or of the failure of this proof.
    pub at_unix_ms: u64,
    /// The cause.
    pub cause: EndCause,
    /// The operator who revoked the lease. Only operators receive it.
    pub by: Option<String>,
    /// The steps of the cut, in order; empty in lists and for a lease that was not cut.
    pub proof: Vec<ProofStep>,
    /// What was cleaned after the cut, how much and how, in order; empty before the part is clean, and in lists. Not on
    /// record: empty after a restart of the node.
    #[cfg_attr(feature = "serde", serde(with = "cleaning"))]
    pub cleaning: Vec<ProofStep>,
}

/// The serde form of [`LeaseEnd::cleaning`]: compact formats, such as records, leave it out.
#[cfg(feature = "serde")]
mod cleaning {
    use alloc::vec::Vec;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::ProofStep;

    pub(super) fn serialize<S: Serializer>(steps: &[ProofStep], to: S) -> Result<S::Ok, S::Error> {
        match to.is_human_readable() {
            true => steps.serialize(to),
            false => to.serialize_unit(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<ProofStep>, D::Error> {
        match from.is_human_readable() {
            true => Vec::deserialize(from),
            false => <()>::deserialize(from).map(|()| Vec::new()),
        }
    }
}

/// The cause of an end. The phase is separate: a lease whose term ran out and whose cut failed has the
/// cause `Expired` and the phase FENCED.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EndCause {
    /// The term ran out, and the grace time if there was one.
    Expired = 0,
    /// The holder freed the lease.
    Freed = 1,
    /// An operator revoked the lease.
    Revoked = 2,
    /// The node was stopped.
    NodeStopped = 3,
    /// The node was restarted, and the lease could not go on.
    NodeRestarted = 4,
    /// An old key could not be proved dead, so the lease was cut.
    KeyNotRetired = 5,
    /// A failed binding left objects behind; a binding was not made in time; it was already cut when its deadline
    /// should have been extended; or the lease lost the sole hold of its part.
    BindingFailed = 6,
    /// After a restart the part of the lease was gone, or belonged to another lease.
    Displaced = 7,
}

/// One step of a cut, or one check that proves the cut.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ProofStep {
    /// The name of the step, such as `dealloc_mw` or `Connect`.
    pub step: String,
    /// Duration, microseconds.
    pub took_us: u32,
    /// The answer to a check, or a refusal that changes nothing. Empty if the step was simply done.
    pub found: String,
}

/// Most steps in the proof of one cut.
pub const PROOF_STEPS_MAX: usize = 64;

/// Most steps of the cleaning after one lease.
pub const CLEANING_STEPS_MAX: usize = 16;

/// Longest name of a step, bytes.
pub const PROOF_STEP_BYTES_MAX: usize = 64;

/// Longest finding of a step, bytes.
pub const PROOF_FOUND_BYTES_MAX: usize = 256;

/// The specification's three answers to LEASE_QUERY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LeaseStatus {
    /// Access is open, or is being opened.
    Active = 0,
    /// The term is over or the holder freed it.
    Expired = 1,
    /// The lease was taken back: by an operator, a restart or a fault.
    Revoked = 2,
}

/// The state of a lease, finer than [`LeaseStatus`]; `state` in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LeasePhase {
    /// The data plane is being made.
    Binding = 0,
    /// The lease is in use.
    Active = 1,
    /// Access is cut; the contents are kept.
    Grace = 2,
    /// The lease ended at its deadline.
    Expired = 3,
    /// The lease was taken back.
    Revoked = 4,
    /// The holder gave the lease back.
    Freed = 5,
    /// The lease ended and is not proved clean: the resource is fenced.
    Fenced = 6,
}

/// The classes that the node enforces. A client that asked for a class and does not find it here frees the lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Effective {
    /// 0x0902.
    pub cpu_isolation: Option<CpuIsolationClass>,
    /// 0x0903.
    pub gpu_exclusivity: Option<GpuExclusivityClass>,
    /// 0x0904.
    pub transport: Option<Transport>,
    /// 0x0905.
    pub rotate_on_renew: bool,
    /// 0x0906.
    pub read_only: bool,
    /// 0x0907.
    pub mutual_auth: bool,
    /// 0x0908.
    pub cpu_execution_mode: Option<CpuExecutionMode>,
    /// 0x0909.
    pub cpu_execution_width: Option<u16>,
    /// 0x090A.
    pub cpu_partition: Option<CpuPartition>,
    /// 0x090B: whether the leased rate is enforced.
    pub net_rate: Option<Enforcement>,
    /// 0x090C.
    pub gpu_execution_mode: Option<GpuExecutionMode>,
    /// 0x090D: the compute slices that the lease has.
    pub gpu_compute_slices: Option<u16>,
}

impl LeaseInfo {
    /// The kind of the resource.
    #[must_use]
    pub fn resource_type(&self) -> ResourceType {
        self.binding.kind.resource_type()
    }
}

/// Coordinates of a lease's data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Binding {
    /// 0x0102.
    pub dp_key: Option<DpKey>,
    /// 0x0103.
    pub udp_endpoint: Option<Endpoint>,
    /// 0x0104.
    pub limits: Option<Limits>,
    /// The kind, and the coordinates that only this kind has.
    pub kind: KindBinding,
}

/// The coordinates that only one kind of resource has. The variant is the kind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum KindBinding {
    /// Memory: 0x0201–0x020C.
    Mem(Option<RdmaBinding>),
    /// Block storage: 0x0301–0x0309. Boxed: of a million leases most are of memory.
    Block(Option<Box<NvmeofBinding>>),
    /// CPU cores: 0x0601–0x0605.
    Cpu(Option<Box<CpuBinding>>),
    /// A network function: 0x0401–0x0408.
    Net(Option<Box<NetBinding>>),
    /// A GPU: 0x0501–0x0507.
    Gpu(Option<Box<GpuBinding>>),
    /// A kind without coordinates of its own; never one of the kinds above.
    Other(ResourceType),
}

impl KindBinding {
    /// The kind.
    #[must_use]
    pub fn resource_type(&self) -> ResourceType {
        match self {
            Self::Mem(_) => ResourceType::Mem,
            Self::Block(_) => ResourceType::Block,
            Self::Cpu(_) => ResourceType::Cpu,
            Self::Net(_) => ResourceType::Net,
            Self::Gpu(_) => ResourceType::Gpu,
            Self::Other(other) => *other,
        }
    }
}

impl Binding {
    /// No coordinates: the lease is not bound, its kind has none, or the asker may not see them.
    #[must_use]
    pub fn plain(kind: ResourceType) -> Self {
        Self {
            dp_key: None,
            udp_endpoint: None,
            limits: None,
            kind: match kind {
                ResourceType::Mem => KindBinding::Mem(None),
                ResourceType::Block => KindBinding::Block(None),
                ResourceType::Cpu => KindBinding::Cpu(None),
                ResourceType::Net => KindBinding::Net(None),
                ResourceType::Gpu => KindBinding::Gpu(None),
                other => KindBinding::Other(other),
            },
        }
    }

    /// Whether there are no coordinates.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::plain(self.kind.resource_type())
    }

    /// The coordinates over RDMA, if the lease is of memory and has any.
    #[must_use]
    pub fn rdma(&self) -> Option<&RdmaBinding> {
        match &self.kind {
            KindBinding::Mem(rdma) => rdma.as_ref(),
            _ => None,
        }
    }

    /// The coordinates over RDMA, to change them.
    #[must_use]
    pub fn rdma_mut(&mut self) -> Option<&mut RdmaBinding> {
        match &mut self.kind {
            KindBinding::Mem(rdma) => rdma.as_mut(),
            _ => None,
        }
    }

    /// The coordinates over NVMe-oF, if the lease is of block storage and has any.
    #[must_use]
    pub fn nvmeof(&self) -> Option<&NvmeofBinding> {
        match &self.kind {
            KindBinding::Block(nvmeof) => nvmeof.as_deref(),
            _ => None,
        }
    }

    /// The coordinates of CPU cores, if the lease has any.
    #[must_use]
    pub fn cpu(&self) -> Option<&CpuBinding> {
        match &self.kind {
            KindBinding::Cpu(cpu) => cpu.as_deref(),
            _ => None,
        }
    }

    /// The coordinates of a network function, if the lease has any.
    #[must_use]
    pub fn net(&self) -> Option<&NetBinding> {
        match &self.kind {
            KindBinding::Net(net) => net.as_deref(),
            _ => None,
        }
    }

    /// The coordinates of a GPU, if the lease has any.
    #[must_use]
    pub fn gpu(&self) -> Option<&GpuBinding> {
        match &self.kind {
            KindBinding::Gpu(gpu) => gpu.as_deref(),
            _ => None,
        }
    }

    /// Whether the lease has a key that can be changed, over any transport.
    #[must_use]
    pub fn has_key(&self) -> bool {
        let rkey = self.rdma().and_then(|rdma| rdma.rkey);
        rkey.is_some() || self.dp_key.is_some() || self.nvmeof().is_some()
    }

    /// Merges the coordinates of two paths; where both have one, that of `self` stays. Both are of one kind.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            dp_key: self.dp_key.or(other.dp_key),
            udp_endpoint: self.udp_endpoint.or(other.udp_endpoint),
            limits: self.limits.or(other.limits),
            kind: match (self.kind, other.kind) {
                (KindBinding::Mem(one), KindBinding::Mem(two)) => KindBinding::Mem(one.or(two)),
                (KindBinding::Block(one), KindBinding::Block(two)) => {
                    KindBinding::Block(one.or(two))
                }
                (KindBinding::Cpu(one), KindBinding::Cpu(two)) => KindBinding::Cpu(one.or(two)),
                (KindBinding::Net(one), KindBinding::Net(two)) => KindBinding::Net(one.or(two)),
                (KindBinding::Gpu(one), KindBinding::Gpu(two)) => KindBinding::Gpu(one.or(two)),
                (one, _) => one,
            },
        }
    }
}

/// 0x0104: the usable range of the lease, in bytes for MEM and in blocks for BLOCK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Limits {
    /// First byte or block, counted from the start of the lease.
    pub offset: u64,
    /// The number of bytes or blocks.
    pub length: u64,
}

/// 0x0103: `[u8; 16] IPv6 address, u16 port`; IPv4 as v4-mapped, never a wildcard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Endpoint {
    /// Network byte order.
    pub addr: [u8; 16],
    /// Port.
    pub port: u16,
}

/// How a node gives out RDMA access. Value of 0x0208.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RdmaStrategy {
    /// A type 2B memory window pinned to the lease's queue pair.
    Window = 0,
    /// A protection domain and memory region of the lease's own.
    Region = 1,
}

/// 0x0201–0x020C: one RC queue pair, or several, and the key to the lease's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RdmaBinding {
    /// 0x0201; absent until the client's queue pair is known.
    pub rkey: Option<u32>,
    /// 0x0202.
    pub remote_addr: u64,
    /// 0x0203.
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
    /// 0x020C, repeatable: further queue pairs over the same bytes, in the order of the client's queue pairs.
    pub further: Vec<RdmaQueuePair>,
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

/// 0x0102: the key of a lease's UDP data plane. Never printed, wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DpKey(pub [u8; 32]);

impl fmt::Debug for DpKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DpKey(..)")
    }
}

impl Drop for DpKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// One page of LEASE_LIST.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct LeasePage {
    /// In order of id; keys are left out (`binding` is empty).
    pub leases: Vec<LeaseInfo>,
    /// The last id of this page, if more follow: the request for the next page names it. `None`: no more leases.
    pub next: Option<LeaseId>,
}
