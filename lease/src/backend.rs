//! What orders and reports are made of: plain data, so that whoever carries an order out may live in another process
//! than the table.

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
    /// Where it starts within the resource.
    pub offset: u64,
    /// How long it is.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BindingId {
    /// The lease.
    pub lease_id: LeaseId,
    /// Its binding.
    pub generation: Generation,
    /// On what.
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

/// Whether a client that is cut should learn it from the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Linger {
    /// It gave the lease back and expects nothing.
    None,
    /// Once its key is dead, its next access may be answered with the error, for a few
    /// milliseconds at most, before the connection goes and nothing answers any more.
    Brief,
}

/// Make a lease's access real. Whatever binding of an older generation the lease still has goes on until the new
/// one is connected. Then it is cut, and only then does the new one open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindOrder {
    /// Which binding.
    pub binding_id: BindingId,
    /// Which part of the resource; scrubbed before.
    pub placement: Placement,
    /// Over which transport; `Auto` where the lease has none.
    pub transport: Transport,
    /// Whose it is: what a kind gives to one tenant alone, such as keys of a host, is never another's.
    pub tenant: Arc<str>,
    /// What was asked for, as it is enforced: of blocks read-only also where the resource can be nothing else, of memory
    /// with the queue pairs that the client has by now.
    pub terms: LeaseTerms,
    /// How long the contents are kept after the term.
    pub grace: Duration,
    /// An earlier run of the node bound this lease, and it goes on: what is still there of that binding
    /// and works as it should is kept as it is, also under a client that uses it; what is missing is
    /// made again with the same names and keys. Where the bytes are is known from then; they are not
    /// scrubbed.
    pub adopts: bool,
}

impl BindOrder {
    /// Of nobody in particular, and without a grace time.
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

    /// The client's queue pairs, if known. Without one an RDMA binding has no key yet.
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

/// Why there is no new binding. Unless the word is `Lost` or `Stranded`, the one before, with all its keys, is as it
/// was, and later orders name it by the newer generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BindError {
    /// The request cannot be met and nothing was left behind: the client's fault (a GID that does
    /// not resolve), or the transport is missing.
    Refused(StepError),
    /// The node could not, and nothing was left behind.
    Failed(StepError),
    /// A cut came first; nothing was left behind.
    Cancelled,
    /// The node could not, after the binding before had been cut: nothing is bound, and nothing was left behind.
    Lost(StepError),
    /// Something was left behind that could not be undone: the resource gets fenced.
    Stranded(StepError),
}

impl BindError {
    /// The same, when the binding before has been cut.
    #[must_use]
    pub fn lost(self) -> Self {
        match self {
            Self::Refused(error) | Self::Failed(error) => Self::Lost(error),
            other => other,
        }
    }
}

/// This path has cut the binding, or knows that its lease was released: there is nothing to extend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlreadyCut;

impl fmt::Display for AlreadyCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the path has cut the binding already")
    }
}

impl core::error::Error for AlreadyCut {}

/// What a backend offers, from the truth of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Of which resource.
    pub resource_id: ResourceId,
    /// In the unit of its type.
    pub capacity: u64,
    /// Granularity of stretches and amounts.
    pub align: u64,
    /// Transports that leases of it can be used over, best first. None: its leases have no transport, or
    /// cannot be had where their kind needs one.
    pub transports: Vec<Transport>,
    /// What of it an end of the process leaves.
    pub durability: Durability,
    /// What a lease fences whose release failed.
    pub fence_scope: FenceScope,
    /// How it is given out.
    pub allocation_mode: AllocationMode,
    /// Nothing of it can be written: every lease of it is read-only.
    pub read_only: bool,
}

/// What of a resource is still there when the process has ended, see
/// [`crate::LeaseTable::restore_lease`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Nothing: its leases end with the process.
    Nothing,
    /// Its bytes: leases over transports that a new process can open again are adopted by it on the same
    /// boot, and whatever no lease holds is scrubbed as a whole at start.
    Process,
    /// What was made for each lease, until the machine is rebooted: on the same boot every lease of before is
    /// adopted or ended properly, with a cut and a release of its own; after a reboot it is over.
    Boot,
    /// Its bytes and what was made of them for each lease, also across a reboot: every lease of before
    /// is adopted or ended properly, with a cut and a release of its own, and its part of the resource
    /// is nobody else's until that is done.
    Machine,
}

impl Durability {
    /// Of an arena, whose bytes are in a file of their own or end with the process.
    #[must_use]
    pub fn arena(bytes_stay: bool) -> Self {
        if bytes_stay {
            Self::Process
        } else {
            Self::Nothing
        }
    }

    /// Whether an end of the process leaves something that was made for one lease alone, so that each is
    /// cut and released by itself, a release is written down when it is done, and one that failed is tried again.
    #[must_use]
    pub fn leases_stay(self) -> bool {
        matches!(self, Self::Boot | Self::Machine)
    }
}

/// What is fenced by a release that failed. A cut that failed always fences the whole resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceScope {
    /// The part of the lease alone: it is cut, and nobody else's part is in doubt.
    Part,
    /// The whole resource.
    Whole,
}

/// How a resource is given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationMode {
    /// In stretches that never overlap: bytes of an arena, blocks of a device.
    Stretches,
    /// By amount only: files of a directory.
    Amounts,
    /// In whole units, such as CPU cores. The capacity is how many there are.
    Units {
        /// Their numbers, each once.
        numbers: Vec<u32>,
        /// So many leases may have one unit, where they share theirs.
        sharers: u32,
    },
    /// By amounts of several things at once, such as rate and virtual functions. The first is what leases are
    /// asked for in, and its capacity is that of the offer.
    Vector(Vec<Dimension>),
}

/// One of the things that a device has an amount of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dimension {
    /// What it is.
    pub name: String,
    /// How much there is.
    pub capacity: u64,
    /// How much of it a lease takes.
    pub takes: Takes,
}

/// How much of a [`Dimension`] a lease takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// What it was asked for; of the first dimension.
    Asked,
    /// So much, whatever it was asked for.
    Each(u64),
    /// As large a share as of the first dimension, rounded up.
    InProportion,
}

/// How well a resource does, as [`crate::Report::Condition`] tells whenever that changes; it begins as good.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// As it should.
    #[default]
    Good,
    /// Something of it failed, for people; leases of it may fail.
    Degraded(String),
}
