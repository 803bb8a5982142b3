//! A lease as its holder sees it: its state and the coordinates of its data plane (000, "Binding TLV Format").

use alloc::{borrow::Cow, boxed::Box, string::String, sync::Arc, vec::Vec};
use core::fmt;

use zeroize::Zeroize;

use crate::{
    CpuExecutionMode, CpuIsolationClass, CpuPartition, Enforcement, Generation,
    GpuExclusivityClass, GpuExecutionMode, KindBinding, LeaseId, LeaseIntent, RdmaBinding,
    RequestToken, ResourceId, ResourceType, Transport, names::words,
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
    /// 0x090E: the token of the request that got the lease. A node that does not know tokens sends none.
    pub request_token: Option<RequestToken>,
    /// The kind and the coordinates; parts that the lease does not have are absent.
    pub binding: Binding,
    /// 0x0C01: the tenant. Only operators receive it; a tenant sees only its own leases.
    pub tenant: Option<String>,
    /// 0x0C02 to 0x0C04: the end of the lease; absent while it lives. Shared: record, answer and log have the same.
    pub end: Option<Arc<LeaseEnd>>,
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

words! {
    /// The cause of an end. The phase is separate: a lease whose term ran out and whose cut failed has the
    /// cause `Expired` and the phase FENCED.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum EndCause: u8, "cause of an end", from_byte {
        /// The term ran out, and the grace time if there was one.
        Expired = 0, "expired";
        /// The holder freed the lease.
        Freed = 1, "freed";
        /// An operator revoked the lease.
        Revoked = 2, "revoked";
        /// The node was stopped.
        NodeStopped = 3, "node_stopped";
        /// The node was restarted, and the lease could not go on.
        NodeRestarted = 4, "node_restarted";
        /// An old key could not be proved dead, so the lease was cut.
        KeyNotRetired = 5, "key_not_retired";
        /// A failed binding left objects behind; a binding was not made in time; it was already cut when its deadline
        /// should have been extended; or the lease lost the sole hold of its part.
        BindingFailed = 6, "binding_failed";
        /// After a restart the part of the lease was gone, or belonged to another lease.
        Displaced = 7, "displaced";
    }
}

/// One step of a cut, or one check that proves the cut.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ProofStep {
    /// The name of the step, such as `dealloc_mw` or `Connect`.
    pub step: Cow<'static, str>,
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

words! {
    /// The specification's three answers to LEASE_QUERY.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LeaseStatus: u8, "lease status", from_byte {
        /// Access is open, or is being opened.
        Active = 0, "active";
        /// The term is over or the holder freed it.
        Expired = 1, "expired";
        /// The lease was taken back: by an operator, a restart or a fault.
        Revoked = 2, "revoked";
    }
}

words! {
    /// The state of a lease, finer than [`LeaseStatus`]; `state` in JSON.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum LeasePhase: u8, "lease phase", from_byte {
        /// The data plane is being made.
        Binding = 0, "binding";
        /// The lease is in use.
        Active = 1, "active";
        /// Access is cut; the contents are kept.
        Grace = 2, "grace";
        /// The lease ended at its deadline.
        Expired = 3, "expired";
        /// The lease was taken back.
        Revoked = 4, "revoked";
        /// The holder gave the lease back.
        Freed = 5, "freed";
        /// The lease ended and is not proved clean: the resource is fenced.
        Fenced = 6, "fenced";
    }
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

impl Binding {
    /// No coordinates: the lease is not bound, its kind has none, or the asker may not see them.
    #[must_use]
    pub fn plain(kind: ResourceType) -> Self {
        Self {
            dp_key: None,
            udp_endpoint: None,
            limits: None,
            kind: KindBinding::plain(kind),
        }
    }

    /// Whether there are no coordinates.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::plain(self.kind.resource_type())
    }

    /// The coordinates over RDMA, to change them.
    #[must_use]
    pub fn rdma_mut(&mut self) -> Option<&mut RdmaBinding> {
        match &mut self.kind {
            KindBinding::Mem(rdma) => rdma.as_mut(),
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
            kind: self.kind.or(other.kind),
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
