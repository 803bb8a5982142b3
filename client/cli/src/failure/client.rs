//! Failures from errors of the SDK.

use fabricbios_client::Error;
use fabricbios_wire::{LeaseError, Refusal, RefusalClass};

use super::{Exit, Failure};

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        use RefusalClass::{Permanent, Policy, Transient};
        let refusal = match error {
            Error::Refused(refusal) => return refused(refusal),
            other => other,
        };
        let (exit, class, code) = match &refusal {
            Error::Unreachable { .. } => (Exit::Unreachable, Transient, "Unreachable"),
            Error::Usage(_) => (Exit::Usage, Permanent, "Usage"),
            Error::Identity { .. } => (Exit::Usage, Permanent, "Identity"),
            Error::IdentityRefused { .. } => (Exit::Refused, Policy, "IdentityRefused"),
            Error::UntrustedNode { .. } => (Exit::Other, Permanent, "UntrustedNode"),
            Error::FailedClosed { .. } => (Exit::Refused, Permanent, "FailedClosed"),
            Error::Ended { .. } => (Exit::NotFound, Permanent, "Ended"),
            Error::InGrace { .. } => (Exit::NotFound, Transient, "Ended"),
            Error::SessionEnded { .. } => (Exit::NotFound, Permanent, "SessionEnded"),
            Error::WritesLost(_) => (Exit::Other, Transient, "WritesLost"),
            Error::Protocol { .. } => (Exit::Other, Permanent, "Protocol"),
            _ => (Exit::Other, Permanent, "Local"),
        };
        let message = match &refusal {
            Error::InGrace { lease_id } => {
                format!("{refusal} (`fabricctl lease renew {lease_id}`)")
            }
            other => other.to_string(),
        };
        // The code that the node would have sent.
        let refused = matches!(refusal, Error::Ended { .. }).then_some(LeaseError::Expired);
        Self {
            refused,
            ..Self::new(exit, class, code, message)
        }
    }
}

fn refused(refusal: Refusal) -> Failure {
    let Refusal {
        error,
        class,
        message,
        renewable_at_unix_ms,
        retry_after_ms,
    } = refusal;
    let failure = Failure::new(error.into(), class, error.name(), message);
    Failure {
        renewable_at_unix_ms,
        retry_after_ms,
        refused: Some(error),
        ..failure
    }
}
