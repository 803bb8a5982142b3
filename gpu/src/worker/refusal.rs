//! Refusals of the worker.

use std::fmt::Display;

use fabricbios_wire::{LeaseError, Refusal, RefusalClass};

fn permanent(error: LeaseError, why: impl Display) -> Refusal {
    Refusal::new(error, RefusalClass::Permanent, why.to_string())
}

/// The request is invalid.
pub(super) fn invalid(why: impl Display) -> Refusal {
    permanent(LeaseError::InvalidArgs, why)
}

/// The handle or session does not exist.
pub(super) fn not_found(why: impl Display) -> Refusal {
    permanent(LeaseError::NotFound, why)
}

/// The session is lost.
pub(super) fn lost(why: impl Display) -> Refusal {
    permanent(LeaseError::Unavailable, why)
}

/// A fault of the node.
pub(super) fn internal(why: impl Display) -> Refusal {
    permanent(LeaseError::Internal, why)
}

/// All slots or handles of a sort are in use; this may change.
pub(super) fn busy(why: impl Display) -> Refusal {
    Refusal::new(
        LeaseError::ResourceBusy,
        RefusalClass::Transient,
        why.to_string(),
    )
}

/// The request exceeds a limit: for ever, or (`is_ever_possible`) only while so much is in use.
pub(super) fn exceeded(is_ever_possible: bool, why: impl Display) -> Refusal {
    let class = if is_ever_possible {
        RefusalClass::Transient
    } else {
        RefusalClass::Permanent
    };
    Refusal::new(LeaseError::CapacityExceeded, class, why.to_string())
}
