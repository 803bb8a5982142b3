//! The errors of calls, and what the caller can do about them.

use std::{io, net::SocketAddr, string::String, time::Duration};

use fabricbios_wire::{DataStatus, LeaseId};

use crate::{Broken, transfer::Failure};

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedCall {
    /// The lease.
    pub lease_id: LeaseId,
    /// Address of the server.
    pub endpoint: SocketAddr,
    /// Number of bytes of the call whose replies came; not always its first ones.
    pub confirmed: u64,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The lease has ended: expired, freed or revoked.
    #[error(
        "lease {} is over ({} bytes were confirmed); LEASE_QUERY tells why",
        .0.lease_id, .0.confirmed
    )]
    NoLease(FailedCall),
    /// The lease ended and could not be proved clean.
    #[error(
        "lease {} has ended and its memory is fenced ({} bytes were confirmed); \
         ask the node's operator, and for another lease",
        .0.lease_id, .0.confirmed
    )]
    Fenced(FailedCall),
    /// The range is not within the lease; if nothing was confirmed, nothing was done.
    #[error(
        "{length} bytes at {offset} are not within the {resource_len} bytes of lease {}",
        call.lease_id
    )]
    OutOfRange {
        /// The call.
        call: FailedCall,
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        length: u64,
        /// Bytes of the lease.
        resource_len: u64,
    },
    /// No server with the key answers.
    #[error(
        "no answer for lease {} from {} (UDP) in {:.1} s ({} bytes were confirmed): {hint}",
        call.lease_id, call.endpoint, after.as_secs_f64(), call.confirmed
    )]
    Unreachable {
        /// The call.
        call: FailedCall,
        /// Time without progress.
        after: Duration,
        /// Observations, and what to check.
        hint: String,
    },
    /// Nothing listens at the port of the server any more.
    #[error(
        "nothing listens at {} (UDP) any more; has the node's daemon ended? ({} bytes were confirmed)",
        .0.endpoint, .0.confirmed
    )]
    PortClosed(FailedCall),
    /// The lease is read-only; nothing was done.
    #[error("lease {} is read-only: ask for one without --read-only to write", .0.lease_id)]
    ReadOnly(FailedCall),
    /// The node's storage failed.
    #[error(
        "the storage of {} failed for lease {}, {length} bytes at {offset} \
         ({} bytes were confirmed); ask the node's operator",
        call.endpoint, call.lease_id, call.confirmed
    )]
    Storage {
        /// The call.
        call: FailedCall,
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        length: u64,
    },
    /// A flush found that the node's machine has rebooted since the last flush.
    #[error(
        "the machine of {} was started anew (a power cut or a reboot), and what was written to \
         lease {} before that and not flushed may be lost, though it was confirmed; write again \
         what was written since the last flush that succeeded, and flush",
        .0.endpoint, .0.lease_id
    )]
    WritesLost(FailedCall),
    /// The server refused.
    #[error(
        "{} did not do what was asked of lease {} ({} bytes were confirmed): {}",
        call.endpoint, call.lease_id, call.confirmed, status_text(*status)
    )]
    Refused {
        /// The call.
        call: FailedCall,
        /// `DataStatus` as a number.
        status: u8,
    },
    /// The server has the key and sent an invalid reply.
    #[error(
        "{} answered HELLO for lease {} with something that makes no sense; do the \
         versions match?",
        .0.endpoint, .0.lease_id
    )]
    Protocol(FailedCall),
    /// A system call of this machine failed.
    #[error("this machine cannot {what} for {}: {source}", call.endpoint)]
    Local {
        /// The call.
        call: FailedCall,
        /// The step that failed.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

impl ClientError {
    /// The call that failed.
    #[must_use]
    pub fn call(&self) -> &FailedCall {
        match self {
            Self::NoLease(call)
            | Self::Fenced(call)
            | Self::OutOfRange { call, .. }
            | Self::Unreachable { call, .. }
            | Self::PortClosed(call)
            | Self::ReadOnly(call)
            | Self::Storage { call, .. }
            | Self::WritesLost(call)
            | Self::Refused { call, .. }
            | Self::Protocol(call)
            | Self::Local { call, .. } => call,
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
        call: FailedCall,
        after: Duration,
        hint: String,
    ) -> ClientError {
        const READ_ONLY: u8 = DataStatus::ReadOnly as u8;
        const IO: u8 = DataStatus::Io as u8;
        let (offset, length) = (self.offset, self.length);
        match failure {
            Failure::NoLease => ClientError::NoLease(call),
            Failure::Fenced => ClientError::Fenced(call),
            Failure::OutOfRange { resource_len } => ClientError::OutOfRange {
                call,
                offset,
                length,
                resource_len: resource_len.saturating_mul(self.unit),
            },
            Failure::Refused { status: READ_ONLY } => ClientError::ReadOnly(call),
            Failure::Refused { status: IO } => ClientError::Storage {
                call,
                offset,
                length,
            },
            Failure::Refused { status } => ClientError::Refused { call, status },
            Failure::WritesLost => ClientError::WritesLost(call),
            Failure::Nonsense => ClientError::Protocol(call),
            Failure::Broken(Broken { invariant, detail }) => ClientError::Local {
                call,
                what: "count what was transferred",
                source: io::Error::other(std::format!(
                    "{invariant}: {detail}; this is a mistake in the client's program"
                )),
            },
            Failure::Silent { .. } => ClientError::Unreachable { call, after, hint },
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
