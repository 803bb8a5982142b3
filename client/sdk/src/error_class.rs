//! The class of an error, its code and its exit status: one table for `fabricctl` and for the Python package.

use fabricbios_wire::{LeaseError, RefusalClass};

use crate::Error;

/// What an error means for the caller. The number is the exit status of `fabricctl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// Anything else.
    Failed = 1,
    /// The arguments are wrong, or the identity file.
    Usage = 2,
    /// The node refused the request.
    Refused = 3,
    /// There is no such lease or resource, or the lease is over.
    NotFound = 4,
    /// The resource is fenced.
    Fenced = 5,
    /// The node cannot be reached, or is not available.
    Unreachable = 6,
}

impl ErrorClass {
    /// All classes.
    pub const ALL: [Self; 6] = [
        Self::Failed,
        Self::Usage,
        Self::Refused,
        Self::NotFound,
        Self::Fenced,
        Self::Unreachable,
    ];

    /// The name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::Refused => "refused",
            Self::NotFound => "not_found",
            Self::Fenced => "fenced",
            Self::Unreachable => "unreachable",
        }
    }

    /// The exit status of a program that failed with this.
    #[must_use]
    pub fn exit_status(self) -> u8 {
        self as u8
    }
}

impl From<LeaseError> for ErrorClass {
    fn from(error: LeaseError) -> Self {
        match error {
            LeaseError::InvalidIntent
            | LeaseError::InvalidArgs
            | LeaseError::CapacityExceeded
            | LeaseError::ResourceBusy
            | LeaseError::NotPermitted
            | LeaseError::RenewTooEarly
            | LeaseError::Unsupported => Self::Refused,
            LeaseError::NotFound | LeaseError::Expired | LeaseError::Revoked => Self::NotFound,
            LeaseError::Fenced => Self::Fenced,
            LeaseError::Unavailable => Self::Unreachable,
            LeaseError::Malformed | LeaseError::Internal => Self::Failed,
        }
    }
}

impl Error {
    /// The class of the error.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        self.row().0
    }

    /// Whether trying again can help.
    #[must_use]
    pub fn refusal_class(&self) -> RefusalClass {
        self.row().1
    }

    /// The code: that of the node if it refused, else one of the SDK's own.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.row().2
    }

    fn row(&self) -> (ErrorClass, RefusalClass, &'static str) {
        use ErrorClass as C;
        use RefusalClass::{Permanent, Policy, Transient};
        match self {
            Self::Refused(refusal) => (refusal.error.into(), refusal.class, refusal.error.name()),
            Self::Unreachable { .. } => (C::Unreachable, Transient, "Unreachable"),
            Self::Usage(_) => (C::Usage, Permanent, "Usage"),
            Self::Identity { .. } => (C::Usage, Permanent, "Identity"),
            Self::IdentityRefused { .. } => (C::Refused, Policy, "IdentityRefused"),
            Self::UntrustedNode { .. } => (C::Failed, Permanent, "UntrustedNode"),
            Self::FailedClosed { .. } => (C::Refused, Permanent, "FailedClosed"),
            Self::Ended { .. } => (C::NotFound, Permanent, "Ended"),
            Self::InGrace { .. } => (C::NotFound, Transient, "Ended"),
            Self::SessionEnded { .. } => (C::NotFound, Permanent, "SessionEnded"),
            Self::WritesLost(_) => (C::Failed, Transient, "WritesLost"),
            Self::Protocol { .. } => (C::Failed, Permanent, "Protocol"),
            Self::Local { .. } => (C::Failed, Permanent, "Local"),
        }
    }

    /// The lease that the error is about, if it names one.
    #[must_use]
    pub fn lease_id(&self) -> Option<fabricbios_wire::LeaseId> {
        match self {
            Self::FailedClosed { lease_id, .. }
            | Self::Ended { lease_id, .. }
            | Self::InGrace { lease_id }
            | Self::SessionEnded { lease_id, .. } => Some(*lease_id),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_its_class() {
        assert_eq!(ErrorClass::from(LeaseError::Fenced), ErrorClass::Fenced);
        assert_eq!(ErrorClass::from(LeaseError::Expired), ErrorClass::NotFound);
        assert_eq!(
            ErrorClass::from(LeaseError::CapacityExceeded),
            ErrorClass::Refused
        );
        assert_eq!(
            ErrorClass::from(LeaseError::Unavailable),
            ErrorClass::Unreachable
        );
    }
}
