//! The errors of calls, and what the caller can do about them.

use std::{io, net::SocketAddr, string::String, time::Duration};

use fabricbios_wire::{DataStatus, LeaseId};

use super::Coordinates;
use crate::{Broken, transfer::Failure};

/// Why a call failed. `confirmed` is the number of bytes of the call whose replies came; they are not always its first
/// ones.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The lease has ended: expired, freed or revoked.
    #[error("lease {lease_id} is over ({confirmed} bytes were confirmed); LEASE_QUERY tells why")]
    NoLease {
        /// The lease.
        lease_id: LeaseId,
        /// See above.
        confirmed: u64,
    },
    /// The lease ended and could not be proved clean.
    #[error(
        "lease {lease_id} has ended and its memory is fenced ({confirmed} bytes were confirmed); \
         ask the node's operator, and for another lease"
    )]
    Fenced {
        /// The lease.
        lease_id: LeaseId,
        /// See above.
        confirmed: u64,
    },
    /// The range is not within the lease; if nothing was confirmed, nothing was done.
    #[error(
        "{length} bytes at {offset} are not within the {resource_len} bytes of lease {lease_id}"
    )]
    OutOfRange {
        /// The lease.
        lease_id: LeaseId,
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        length: u64,
        /// Bytes of the lease.
        resource_len: u64,
        /// See above.
        confirmed: u64,
    },
    /// No server with the key answers.
    #[error(
        "no answer for lease {lease_id} from {endpoint} (UDP) in {:.1} s ({confirmed} bytes were \
         confirmed): {hint}",
        after.as_secs_f64()
    )]
    Unreachable {
        /// The lease.
        lease_id: LeaseId,
        /// Address of the server.
        endpoint: SocketAddr,
        /// Time without progress.
        after: Duration,
        /// Observations, and what to check.
        hint: String,
        /// See above.
        confirmed: u64,
    },
    /// Nothing listens at the port of the server any more.
    #[error(
        "nothing listens at {endpoint} (UDP) any more; has the node's daemon ended? ({confirmed} bytes were confirmed)"
    )]
    PortClosed {
        /// The lease.
        lease_id: LeaseId,
        /// Address of the server.
        endpoint: SocketAddr,
        /// See above.
        confirmed: u64,
    },
    /// The lease is read-only; nothing was done.
    #[error("lease {lease_id} is read-only: ask for one without --read-only to write")]
    ReadOnly {
        /// The lease.
        lease_id: LeaseId,
        /// See above.
        confirmed: u64,
    },
    /// The node's storage failed.
    #[error(
        "the storage of {endpoint} failed for lease {lease_id}, {length} bytes at {offset} \
         ({confirmed} bytes were confirmed); ask the node's operator"
    )]
    Storage {
        /// The lease.
        lease_id: LeaseId,
        /// Address of the server.
        endpoint: SocketAddr,
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        length: u64,
        /// See above.
        confirmed: u64,
    },
    /// A flush found that the node's machine has rebooted since the last flush.
    #[error(
        "the machine of {endpoint} was started anew (a power cut or a reboot), and what was written to \
         lease {lease_id} before that and not flushed may be lost, though it was confirmed; write again \
         what was written since the last flush that succeeded, and flush"
    )]
    WritesLost {
        /// The lease.
        lease_id: LeaseId,
        /// Address of the server.
        endpoint: SocketAddr,
        /// See above: 0.
        confirmed: u64,
    },
    /// The server refused.
    #[error(
        "{endpoint} did not do what was asked of lease {lease_id} ({confirmed} bytes were \
         confirmed): {}",
        status_text(*status)
    )]
    Refused {
        /// The lease.
        lease_id: LeaseId,
        /// Address of the server.
        endpoint: SocketAddr,
        /// `DataStatus` as a number.
        status: u8,
        /// See above.
        confirmed: u64,
    },
    /// The server has the key and sent an invalid reply.
    #[error(
        "{endpoint} answered HELLO for lease {lease_id} with something that makes no sense; do the \
         versions match?"
    )]
    Protocol {
        /// The lease.
        lease_id: LeaseId,
        /// Address of the server.
        endpoint: SocketAddr,
        /// See above.
        confirmed: u64,
    },
    /// A system call of this machine failed.
    #[error("this machine cannot {what} for {endpoint}: {source}")]
    Local {
        /// The step that failed.
        what: &'static str,
        /// Address of the server.
        endpoint: SocketAddr,
        /// The error of the system.
        source: io::Error,
        /// See above.
        confirmed: u64,
    },
}

impl ClientError {
    /// Number of bytes of the call whose replies came; not always its first ones.
    #[must_use]
    pub fn confirmed(&self) -> u64 {
        match self {
            Self::NoLease { confirmed, .. }
            | Self::Fenced { confirmed, .. }
            | Self::OutOfRange { confirmed, .. }
            | Self::Unreachable { confirmed, .. }
            | Self::PortClosed { confirmed, .. }
            | Self::ReadOnly { confirmed, .. }
            | Self::Storage { confirmed, .. }
            | Self::WritesLost { confirmed, .. }
            | Self::Refused { confirmed, .. }
            | Self::Protocol { confirmed, .. }
            | Self::Local { confirmed, .. } => *confirmed,
        }
    }
}

/// The range of a failed call, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Failed {
    pub(super) offset: u64,
    pub(super) length: u64,
    /// Size of a unit in bytes.
    pub(super) unit: u64,
    pub(super) confirmed: u64,
}

impl Failed {
    pub(super) fn because(
        self,
        failure: Failure,
        whom: &Coordinates,
        after: Duration,
        hint: String,
    ) -> ClientError {
        const READ_ONLY: u8 = DataStatus::ReadOnly as u8;
        const IO: u8 = DataStatus::Io as u8;
        let Self {
            offset,
            length,
            unit,
            confirmed,
        } = self;
        let (lease_id, endpoint) = (whom.lease_id, whom.endpoint);
        match failure {
            Failure::NoLease => ClientError::NoLease {
                lease_id,
                confirmed,
            },
            Failure::Fenced => ClientError::Fenced {
                lease_id,
                confirmed,
            },
            Failure::OutOfRange { resource_len } => ClientError::OutOfRange {
                lease_id,
                offset,
                length,
                resource_len: resource_len.saturating_mul(unit),
                confirmed,
            },
            Failure::Refused { status: READ_ONLY } => ClientError::ReadOnly {
                lease_id,
                confirmed,
            },
            Failure::Refused { status: IO } => ClientError::Storage {
                lease_id,
                endpoint,
                offset,
                length,
                confirmed,
            },
            Failure::Refused { status } => ClientError::Refused {
                lease_id,
                endpoint,
                status,
                confirmed,
            },
            Failure::WritesLost => ClientError::WritesLost {
                lease_id,
                endpoint,
                confirmed,
            },
            Failure::Nonsense => ClientError::Protocol {
                lease_id,
                endpoint,
                confirmed,
            },
            Failure::Broken(Broken { invariant, detail }) => ClientError::Local {
                what: "count what was transferred",
                endpoint,
                source: io::Error::other(std::format!(
                    "{invariant}: {detail}; this is a mistake in the client's program"
                )),
                confirmed,
            },
            Failure::Silent { .. } => ClientError::Unreachable {
                lease_id,
                endpoint,
                after,
                hint,
                confirmed,
            },
        }
    }
}

/// The text of a status that has no error of its own.
fn status_text(status: u8) -> String {
    let known = [
        (
            DataStatus::Invalid,
            "INVALID: it does not understand the request; do the versions match?",
        ),
        (
            DataStatus::Replay,
            "REPLAY: the sessions are confused; does a NAT change this machine's address?",
        ),
        (
            DataStatus::TooOld,
            "TOO_OLD: every session is closed at once; do too many programs use the lease?",
        ),
        (
            DataStatus::Busy,
            "BUSY: too many requests or sessions; try again later",
        ),
    ];
    let text = known.iter().find(|(known, _)| *known as u8 == status);
    text.map_or_else(
        || std::format!("status {status}, which this client does not know; do the versions match?"),
        |(_, text)| (*text).into(),
    )
}
