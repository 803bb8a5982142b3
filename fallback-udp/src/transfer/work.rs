//! What a transfer is to do, and how its requests look.

use core::ops::Range;

use fabricbios_wire::{DataOp, DataStatus, HelloReply};

use super::Failure;

/// What to do. Offsets count from the start of the lease.
#[derive(Debug)]
pub enum Work<'a> {
    /// Open a session, if there is none.
    Hello,
    /// Get an answer.
    Ping,
    /// Bytes out of the lease.
    Read {
        /// Of the first byte.
        offset: u64,
        /// As many as fit. After a failure some are new and some are not.
        into: &'a mut [u8],
    },
    /// Bytes into the lease.
    Write {
        /// Of the first byte.
        offset: u64,
        /// All of it.
        from: &'a [u8],
    },
}

impl<'a> Work<'a> {
    /// What its requests cover: bytes; for PING the one request itself.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Hello => 0,
            Self::Ping => 1,
            Self::Read { into, .. } => into.len(),
            Self::Write { from, .. } => from.len(),
        }
    }

    pub(super) fn op(&self) -> DataOp {
        match self {
            Self::Hello => DataOp::Hello,
            Self::Ping => DataOp::Ping,
            Self::Read { .. } => DataOp::Read,
            Self::Write { .. } => DataOp::Write,
        }
    }

    pub(super) fn needs_session(&self) -> bool {
        !matches!(self, Self::Ping)
    }

    /// Whether the lease is such that it can be done.
    pub(super) fn is_allowed(&self, lease: &HelloReply) -> Result<(), Failure> {
        let (offset, writes) = match self {
            Self::Hello | Self::Ping => return Ok(()),
            Self::Read { offset, .. } => (*offset, false),
            Self::Write { offset, .. } => (*offset, true),
        };
        let resource_len = lease.resource_len;
        let end = offset.checked_add(self.len() as u64);
        if end.is_none_or(|end| end > resource_len) {
            return Err(Failure::OutOfRange { resource_len });
        }
        if writes && lease.read_only {
            let status = DataStatus::ReadOnly as u8;
            return Err(Failure::Refused { status });
        }
        Ok(())
    }

    /// Offset and bytes of a request for `range`.
    pub(super) fn extent(&self, range: &Range<usize>) -> (u64, u64) {
        match self {
            Self::Hello | Self::Ping => (0, 0),
            Self::Read { offset, .. } | Self::Write { offset, .. } => {
                (*offset + range.start as u64, range.len() as u64)
            }
        }
    }

    /// What a request for `range` carries.
    pub(super) fn payload(&self, range: &Range<usize>) -> &'a [u8] {
        match self {
            Self::Write { from, .. } => {
                let from: &'a [u8] = from;
                &from[range.clone()]
            }
            _ => &[],
        }
    }

    /// Takes what an OK brought for `range`, which is as long as that.
    pub(super) fn take(&mut self, range: &Range<usize>, payload: &[u8]) {
        if let Self::Read { into, .. } = self {
            into[range.clone()].copy_from_slice(payload);
        }
    }
}
