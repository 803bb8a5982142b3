//! Parts of orders and reports: plain data.

use alloc::{string::String, sync::Arc, vec::Vec};
use core::{fmt, time::Duration};

use fabricbios_wire::{
    Generation, LeaseId, LeaseTerms, RdmaPeer, ResourceId, ResourceType, Transport,
};
use serde::{Deserialize, Serialize};

use crate::{Placement, StepError};

/// Part of a resource: bytes of an arena, blocks of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Extent {
    /// The start within the resource.
    pub offset: u64,
    /// The length.
    pub length: u64,
}

impl Extent {
    /// First position after it.
    #[must_use]
    pub fn end(self) -> u64 {
        self.offset.saturating_add(self.length)
    }

    /// Whether the two share a position.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }
}

/// Names one binding of one lease on one resource. An order never touches a binding whose
/// generation is newer than its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BindingId {
    /// The lease.
    pub lease_id: LeaseId,
    /// The generation of the binding.
    pub generation: Generation,
    /// The resource.
    pub resource_id: ResourceId,
}

impl fmt::Display for BindingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "lease {} generation {}",
            self.lease_id, self.generation.0
        )
    }
}

/// How long the connection of a cut client stays open, so that the client learns of the cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Linger {
    /// No linger: the client freed the lease.
    None,
    /// After the key is dead, the connection stays for a few milliseconds at most, so that the next access gets an
    /// error.
    Brief,
}

/// Make the binding of a lease. An older binding works until the new one is connected. Then the older one is cut, and
/// only then the new one opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindOrder {
    /// Which binding.
    pub binding_id: BindingId,
    /// The part of the resource; scrubbed first.
    pub placement: Placement,
    /// The transport; `Auto` if the lease has none.
    pub transport: Transport,
    /// The tenant: data that a kind keeps for one tenant, such as keys of a host, is never used for another.
    pub tenant: Arc<str>,
    /// The terms as they are enforced: blocks are read-only if the resource is; memory has the current queue pairs of
    /// the client.
    pub terms: LeaseTerms,
    /// How long the contents are kept after the term.
    pub grace: Duration,
    /// An earlier run of the node bound this lease, and the lease goes on. Objects of that binding that work are kept,
    /// also while a client uses them; missing objects are made again with the same names and keys. The bytes stay in
    /// place and are not scrubbed.
    pub adopts: bool,
}

impl BindOrder {
    /// An order without a tenant and without a grace time.
    pub fn new(
        binding_id: BindingId,
        placement: impl Into<Placement>,
        transport: Transport,
    ) -> Self {
        Self {
            binding_id,
            placement: placement.into(),
            transport,
            tenant: "".into(),
            terms: LeaseTerms::plain(ResourceType::Mem),
            grace: Duration::ZERO,
            adopts: false,
        }
    }

    /// The client's queue pairs, if known. Without a queue pair an RDMA binding has no key yet.
    #[must_use]
    pub fn peers(&self) -> &[RdmaPeer] {
        self.terms.rdma_peers()
    }

    /// See [`Placement::extent`].
    #[must_use]
    pub fn extent(&self) -> Extent {
        self.placement.extent()
    }
}

/// Why a bind failed. Except for `Lost` and `Stranded`, the old binding works as before, with all its keys, and later
/// orders name it by the newer generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindError {
    /// The request cannot be met, by the client's fault (a GID that does not resolve) or because the transport is
    /// missing. Nothing is left behind.
    Refused(StepError),
    /// Something that the lease needs is missing at the moment; the client receives the reason. Nothing is left behind.
    Unavailable(StepError),
    /// The node failed. Nothing is left behind.
    Failed(StepError),
    /// A cut came first. Nothing is left behind.
    Cancelled,
    /// The node failed after the old binding was cut: the lease has no binding. Nothing is left behind.
    Lost(StepError),
    /// Something is left behind that could not be undone: the resource is fenced.
    Stranded(StepError),
}

impl BindError {
    /// The same error, after the old binding was cut.
    #[must_use]
    pub fn lost(self) -> Self {
        match self {
            Self::Refused(error) | Self::Unavailable(error) | Self::Failed(error) => {
                Self::Lost(error)
            }
            other => other,
        }
    }
}

/// The path has cut the binding already, or its lease was released: the deadline cannot be extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlreadyCut;

impl fmt::Display for AlreadyCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the path has cut the binding already")
    }
}

impl core::error::Error for AlreadyCut {}

/// The health of a resource; [`crate::Report::Condition`] reports every change. It starts as good.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// The resource works.
    #[default]
    Good,
    /// A part of the resource failed (text for people); it is leased as before, and its leases may fail.
    Degraded(String),
    /// These groups of cores ([`crate::CoreGroup::number`]) are missing at the moment (text for people): no new lease
    /// gets them. They come back by themselves. Leases that have some of them may fail.
    Partial {
        /// For people.
        why: String,
        /// The numbers of the groups, leased or not.
        missing: Vec<u32>,
    },
    /// The whole resource is missing at the moment (text for people): it gets no new leases. It comes back by itself.
    Unavailable(String),
    /// The resource failed (text for people): it is fenced, and gets no new leases until it was repaired or reset.
    Failed(String),
    /// The resource failed as in `Failed`. These leases do not have their part alone any more, and did not get it back
    /// in time: each of them that is in use ends, fenced.
    Lost {
        /// For people.
        why: String,
        /// The leases.
        leases: Vec<LeaseId>,
    },
}

impl Condition {
    /// The text for people, unless the condition is good.
    #[must_use]
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Good => None,
            Self::Degraded(why)
            | Self::Unavailable(why)
            | Self::Failed(why)
            | Self::Partial { why, .. }
            | Self::Lost { why, .. } => Some(why),
        }
    }
}
