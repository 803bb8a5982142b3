//! Failures from errors of the SDK, whose table has their classes and codes.

use fabricbios_client::Error;
use fabricbios_wire::LeaseError;

use super::Failure;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = match &error {
            Error::InGrace { lease_id } => {
                format!("{error} (`fabricctl lease renew {lease_id}`)")
            }
            other => other.to_string(),
        };
        let failure = Self::new(
            error.class().into(),
            error.refusal_class(),
            error.code(),
            message,
        );
        match error {
            Error::Refused(refusal) => Self {
                renewable_at_unix_ms: refusal.renewable_at_unix_ms,
                retry_after_ms: refusal.retry_after_ms,
                refused: Some(refusal.error),
                ..failure
            },
            // The code that the node would have sent.
            Error::Ended { .. } => Self {
                refused: Some(LeaseError::Expired),
                ..failure
            },
            _ => failure,
        }
    }
}
