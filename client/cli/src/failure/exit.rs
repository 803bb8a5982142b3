//! The exit status of a command that failed.

use fabricbios_wire::LeaseError;
use serde::{Deserialize, Serialize};

/// Exit statuses, with their names in JSON; `fabricctl --help` explains them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Exit {
    #[serde(rename = "failed")]
    Other = 1,
    Usage = 2,
    Refused = 3,
    NotFound = 4,
    Fenced = 5,
    Unreachable = 6,
    /// The status that shells use for this.
    NotExecutable = 126,
    NoCommand = 127,
}

impl From<LeaseError> for Exit {
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
            LeaseError::Malformed | LeaseError::Internal => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_its_exit() {
        assert_eq!(Exit::from(LeaseError::Fenced), Exit::Fenced);
        assert_eq!(Exit::from(LeaseError::Expired), Exit::NotFound);
        assert_eq!(Exit::from(LeaseError::CapacityExceeded), Exit::Refused);
        assert_eq!(Exit::from(LeaseError::Unavailable), Exit::Unreachable);
    }
}
