//! Failures to attach, keep or detach a lease.

use fabricbios_attach::AttachError;
use fabricbios_wire::RefusalClass;

use super::{Exit, Failure};

impl From<AttachError> for Failure {
    fn from(error: AttachError) -> Self {
        use AttachError as E;
        use RefusalClass::{Permanent, Policy, Transient};
        let (exit, class, code) = match &error {
            E::NotRoot => (Exit::Other, Policy, "NotRoot"),
            E::Directory { .. } | E::NoAddress | E::NoPath { .. } | E::NotBlock(_) => {
                (Exit::Usage, Permanent, "Usage")
            }
            E::Expired => (Exit::NotFound, Permanent, "Expired"),
            E::Fenced => (Exit::Fenced, Permanent, "Fenced"),
            E::Ended(_) => (Exit::NotFound, Permanent, "Ended"),
            E::Busy(_) | E::KeysChange => (Exit::Other, Transient, "Busy"),
            E::InUse { .. } => (Exit::Other, Transient, "InUse"),
            E::AttachedOtherwise { .. } => (Exit::Other, Transient, "AttachedOtherwise"),
            E::NoDriver(_) | E::NotConnected(_) => (Exit::Other, Permanent, "NotConnected"),
            E::NotAttached(_) => (Exit::NotFound, Permanent, "NotAttached"),
            E::NotDetached(_) => (Exit::Other, Transient, "NotDetached"),
            _ => (Exit::Other, Permanent, "Local"),
        };
        let failure = Self::new(exit, class, code, error.to_string());
        match error {
            E::Client(error) => error.into(),
            E::Also { error, more } => Self::from(*error).and_message(&more),
            // In the words of the daemon, if it could say why.
            E::DaemonEnded { report, .. } => Self::from_json(&report).unwrap_or(failure),
            _ => failure,
        }
    }
}
