//! Asks ports for connections to subsystems, as clients would.

mod asked;
mod rdma;
pub(super) mod tcp;

use std::fmt;

use serde::{Deserialize, Serialize};

pub(crate) use asked::AskRdma;
pub use asked::ask_rdma_main;
pub(super) use rdma::Asker;

use super::fabrics::Status;

/// What a port said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// This, to Connect.
    Status(Status),
    /// Nobody listens there.
    NobodyListens,
    /// This machine does not have that address (any more), so nobody can listen there.
    NoSuchAddress,
    /// Nothing that can be understood.
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
