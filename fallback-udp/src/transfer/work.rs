//! The work of a transfer and the content of its requests.

use core::ops::Range;

use fabricbios_wire::DataOp;

use super::operation::Place;

/// The work of a transfer. Offsets count bytes from the start of the lease.
#[derive(Debug)]
pub enum Work<'a> {
    /// Open a session, if there is none.
    Hello,
    /// One PING.
    Ping,
    /// Read bytes.
    Read {
        /// Offset of the first byte.
        offset: u64,
        /// Room for the bytes. After a failure only some of them may have been read.
        into: &'a mut [u8],
    },
    /// Write bytes.
    Write {
        /// Offset of the first byte.
        offset: u64,
        /// The bytes.
        from: &'a [u8],
    },
}

impl<'a> Work<'a> {
    pub(super) fn needs_session(&self) -> bool {
        !matches!(self, Self::Ping)
    }

    /// What the work does.
    pub(crate) fn place(&self) -> Place {
        match self {
            Self::Hello => Place::none(DataOp::Hello),
            Self::Ping => Place::none(DataOp::Ping),
            Self::Read { offset, into } => Place::of(DataOp::Read, *offset, into),
            Self::Write { offset, from } => Place::of(DataOp::Write, *offset, from),
        }
    }

    /// The payload of a request for `range`.
    pub(super) fn payload(&self, range: &Range<usize>) -> &'a [u8] {
        match self {
            Self::Write { from, .. } => {
                let from: &'a [u8] = from;
                &from[range.clone()]
            }
            _ => &[],
        }
    }

    /// Stores the payload of a reply for `range`; both have the same length.
    pub(super) fn take(&mut self, range: &Range<usize>, payload: &[u8]) {
        if let Self::Read { into, .. } = self {
            into[range.clone()].copy_from_slice(payload);
        }
    }
}
