//! Events for the log: plain data, so that the driver decides how they are written.

use alloc::{boxed::Box, string::String};
use core::{fmt, time::Duration};

use fabricbios_wire::{
    Effective, EndCause, LeaseId, LeaseIntent, LeasePhase, Refusal, ResourceId, ResourceType,
};

use crate::{BindingId, Invariant, LeaseRecord, Placement, Proof, State, StepError};

/// The part of a request that the decision was about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The type of the resource.
    pub resource_type: ResourceType,
    /// The amount.
    pub capacity: u64,
    /// Seconds.
    pub lease_secs: u32,
    /// Classes and transport that were asked for; `None` where the default was taken.
    pub classes: Effective,
}

/// How long a cut took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutTime {
    /// From the decision to the proof.
    pub took: Duration,
    /// From the deadline to the proof, for a lease that expired.
    pub after_deadline: Option<Duration>,
}

/// One line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A lease was granted.
    Granted {
        /// The lease.
        lease_id: LeaseId,
        /// The tenant.
        tenant: String,
        /// The resource.
        resource_id: ResourceId,
        /// The request.
        wanted: Wanted,
        /// The classes that are enforced.
        effective: Effective,
        /// The use that the tenant stated.
        intent: Option<Box<LeaseIntent>>,
        /// The rule that decided.
        policy: &'static str,
    },
    /// A lease of an earlier run goes on.
    Adopted {
        /// The lease.
        lease_id: LeaseId,
        /// `Rebinding`: in use as soon as it has its new binding; `Grace`: its bytes are kept; `Cutting`: access is
        /// cut once more, then its bytes are kept or released.
        state: State,
    },
    /// The part of a lease of an earlier run is gone or belongs to another lease: the lease is over, and no part is
    /// released.
    Displaced {
        /// The lease.
        lease_id: LeaseId,
        /// The resource.
        resource_id: ResourceId,
        /// The part that it held.
        placement: Placement,
    },
    /// A request was refused.
    Refused {
        /// The tenant.
        tenant: String,
        /// The request; absent for requests about an existing lease.
        wanted: Option<Wanted>,
        /// The lease; absent for a request for a new one.
        lease_id: Option<LeaseId>,
        /// The refusal.
        refusal: Refusal,
    },
    /// A binding or key could not be made, by a fault of the node.
    NotBound {
        /// The lease.
        lease_id: LeaseId,
        /// Its resource.
        resource_id: ResourceId,
        /// Its tenant.
        tenant: String,
        /// Whether a request for a new lease was refused, and nothing but the node is at fault.
        is_new: bool,
        /// The error.
        error: StepError,
    },
    /// A cut was proved.
    Cut {
        /// The binding.
        binding_id: BindingId,
        /// Why the lease ended.
        cause: EndCause,
        /// How long it took.
        time: CutTime,
        /// The provider's proof.
        proof: Proof,
    },
    /// A lease is clean and its part is free.
    Ended {
        /// The phase after the end.
        phase: LeasePhase,
        /// Its record before the end, with cause and proof.
        record: Box<LeaseRecord>,
        /// How long its cut took; absent if it was not cut, or by an earlier run.
        cut: Option<CutTime>,
    },
    /// A lease could not be proved clean.
    Fenced {
        /// The resource.
        resource_id: ResourceId,
        /// The lease that fenced it.
        lease_id: LeaseId,
        /// The error.
        reason: StepError,
        /// Access is proved to have ended, and only the release failed.
        by_release: bool,
    },
    /// A fence was cleared.
    Unfenced {
        /// The resource.
        resource_id: ResourceId,
        /// The cause: `remediation` or `late release`.
        by: &'static str,
    },
    /// A lease has new keys, after a request or a renewal.
    Rotated {
        /// The binding.
        binding_id: BindingId,
        /// For how long the old keys still work.
        overlap: Duration,
    },
    /// A deadline could not be extended: a path did not answer in time, or has cut the binding already. In the second
    /// case the lease ends.
    NotExtended(BindingId, StepError),
    /// A key could not be retired; the lease is cut for it.
    KeyNotRetired(BindingId, StepError),
    /// An invariant of the table does not hold, which is a mistake in the program: the resource is fenced.
    Broken {
        /// The invariant.
        invariant: Invariant,
        /// The lease.
        lease_id: LeaseId,
        /// The resource.
        resource_id: ResourceId,
        /// The details.
        detail: String,
    },
    /// A report came for a binding that is not current; ignored.
    Stale(BindingId, &'static str),
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} {} for {} s",
            self.resource_type, self.capacity, self.lease_secs
        )
    }
}
