//! The exit status of a command that failed.

use fabricbios_client::ErrorClass;
use serde::{Deserialize, Serialize};

/// Exit statuses, with their names in JSON; `fabricctl --help` explains them. Up to `Unreachable` they are the classes of
/// the SDK.
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

impl From<ErrorClass> for Exit {
    fn from(class: ErrorClass) -> Self {
        match class {
            ErrorClass::Failed => Self::Other,
            ErrorClass::Usage => Self::Usage,
            ErrorClass::Refused => Self::Refused,
            ErrorClass::NotFound => Self::NotFound,
            ErrorClass::Fenced => Self::Fenced,
            ErrorClass::Unreachable => Self::Unreachable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_of_the_sdk_has_the_same_name_and_number() {
        for class in ErrorClass::ALL {
            let exit = Exit::from(class);
            assert_eq!(exit as u8, class.exit_status());
            assert_eq!(serde_json::to_value(exit).unwrap(), class.name());
        }
    }
}
