//! Asks ports for connections to subsystems, as a client does.

mod call;
mod prober;
pub(super) mod tcp;

use std::fmt;

use serde::{Deserialize, Serialize};

pub(crate) use call::AskRdma;
pub use call::ask_rdma_main;
pub(super) use prober::{CannotAsk, Prober};

use super::fabrics::Status;

/// The answer of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The status of the Connect.
    Status(Status),
    /// No process listens at the address.
    NobodyListens,
    /// This machine does not have the address, or no longer has it, so no process can listen there.
    NoSuchAddress,
    /// There was no answer, or one that cannot be understood; the reason.
    Silence(String),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "it answers with status {:#06x}", status.0),
            Self::NobodyListens => f.write_str("nobody listens there"),
            Self::NoSuchAddress => f.write_str("has no device of this machine any more"),
            Self::Silence(why) => write!(f, "it gives no answer: {why}"),
        }
    }
}
