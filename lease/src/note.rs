//! What happened, for the log: plain data, so that the driver decides how it is written.

use alloc::string::String;
use core::{fmt, time::Duration};

use fabricbios_wire::{
    Effective, EndCause, LeaseId, LeasePhase, Refusal, ResourceId, ResourceType,
};

use crate::{BindingId, Invariant, Placement, Proof, State, StepError};

/// What a request wanted, as far as the decision was about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Of which kind.
    pub resource_type: ResourceType,
    /// How much.
    pub capacity: u64,
    /// Seconds.
    pub lease_secs: u32,
    /// Classes and transport that were asked for; `None` where the default was taken.
    pub classes: Effective,
}

/// One line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A lease was granted.
    Granted {
        /// Which.
        lease_id: LeaseId,
        /// To whom.
        tenant: String,
        /// On what.
        resource_id: ResourceId,
        /// What was asked.
        wanted: Wanted,
        /// What is enforced.
        effective: Effective,
        /// The rule that decided.
        policy: &'static str,
    },
    /// A lease of an earlier run goes on.
    Adopted {
        /// Which.
        lease_id: LeaseId,
        /// `Rebinding`: in use as soon as it has its new binding; `Grace`: its bytes are kept;
        /// `Cutting`: what may be left of its access is taken away, then its bytes are kept or released.
        state: State,
    },
    /// What a lease of an earlier run held is not there or is somebody else's: it is over, and nothing
    /// is released.
    Displaced {
        /// Which.
        lease_id: LeaseId,
        /// Of which resource.
        resource_id: ResourceId,
        /// What it held.
        placement: Placement,
    },
    /// A request was refused.
    Refused {
        /// Whose.
        tenant: String,
        /// What was asked; absent for requests about an existing lease.
        wanted: Option<Wanted>,
        /// About which lease; absent for a new one.
        lease_id: Option<LeaseId>,
        /// Why, and which policy said so.
        refusal: Refusal,
    },
    /// A binding or key could not be made, by the node's own fault.
    NotBound {
        /// For which lease.
        lease_id: LeaseId,
        /// What failed.
        error: StepError,
    },
    /// Access was taken away and that was proved.
    Cut {
        /// Which binding.
        binding_id: BindingId,
        /// Why the lease ended.
        cause: EndCause,
        /// From the decision to the proof.
        took: Duration,
        /// From the lease's deadline to the proof, for a lease that ran out.
        after_deadline: Option<Duration>,
        /// The backend's proof.
        proof: Proof,
    },
    /// Clean, returned.
    Ended {
        /// Which.
        lease_id: LeaseId,
        /// How.
        phase: LeasePhase,
    },
    /// Not proved clean.
    Fenced {
        /// Which resource.
        resource_id: ResourceId,
        /// Which lease left it so.
        lease_id: LeaseId,
        /// What failed.
        reason: StepError,
    },
    /// A fence was cleared, and by what.
    Unfenced {
        /// Which resource.
        resource_id: ResourceId,
        /// `remediation` or `late release`.
        by: &'static str,
    },
    /// A lease has other keys, by a request or a renewal.
    Rotated {
        /// Which binding.
        binding_id: BindingId,
        /// For how long the keys before go on working.
        overlap: Duration,
    },
    /// A deadline could not be extended: a path did not answer, or has cut the binding, whose lease ends for that.
    NotExtended(BindingId, StepError),
    /// A key could not be retired; the lease is cut for it.
    KeyNotRetired(BindingId, StepError),
    /// An invariant of the table does not hold, which is a mistake in the program: the resource is fenced for it.
    Broken {
        /// Which invariant.
        invariant: Invariant,
        /// Of which lease.
        lease_id: LeaseId,
        /// Of which resource.
        resource_id: ResourceId,
        /// What was found.
        detail: String,
    },
    /// A report came for something that is over.
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
