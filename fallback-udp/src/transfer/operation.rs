//! The operations on the blocks of a lease.

use alloc::vec::Vec;
use core::{fmt, ops::Range};

use fabricbios_wire::{DataOp, DataStatus, HelloReply};

use super::{Failure, piece::Piece};

/// One operation, with its bytes. Blocks count from the start of the lease.
#[derive(Clone, PartialEq, Eq)]
pub enum Operation {
    /// Open a session, if there is none.
    Open,
    /// Read blocks.
    Read {
        /// The first one.
        block: u64,
        /// Room for whole blocks. After a failure only some of them may have been read.
        into: Vec<u8>,
    },
    /// Write blocks.
    Write {
        /// The first one.
        block: u64,
        /// Whole blocks. After a failure any of them may be written, each whole or not at all.
        from: Vec<u8>,
    },
    /// Makes all operations that had finished before its submission survive a power cut. [`Failure::WritesLost`]: some
    /// of them did not survive a power cut.
    Flush,
}

/// Prints no bytes of the lease.
impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("Open"),
            Self::Flush => f.write_str("Flush"),
            Self::Read { block, into } => write!(f, "Read({} bytes at block {block})", into.len()),
            Self::Write { block, from } => {
                write!(f, "Write({} bytes at block {block})", from.len())
            }
        }
    }
}

/// What an operation does, and the bytes that it moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(super) op: DataOp,
    /// The first unit of the lease.
    pub(crate) first: u64,
    pub(crate) bytes: u64,
}

/// The units that an operation touches.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    units: Range<u64>,
    writes: bool,
}

impl Place {
    pub(super) fn of(op: DataOp, first: u64, bytes: &[u8]) -> Self {
        let bytes = bytes.len() as u64;
        Self { op, first, bytes }
    }

    /// Of an operation that moves no bytes.
    pub(super) fn none(op: DataOp) -> Self {
        Self::of(op, 0, &[])
    }

    /// Length of the operation in bytes; 1 for PING and FLUSH, which are one request.
    pub(super) fn len(self) -> usize {
        match self.op {
            DataOp::Ping | DataOp::Flush => 1,
            // They are bytes of a slice.
            _ => usize::try_from(self.bytes).unwrap_or(usize::MAX),
        }
    }

    /// All of the operation with this id.
    pub(super) fn whole(self, operation: u64) -> Piece {
        Piece {
            operation,
            op: self.op,
            range: 0..self.len(),
            part: None,
        }
    }

    fn writes(self) -> bool {
        self.op == DataOp::Write
    }

    /// Checks the operation against the lease and returns the units that it touches.
    pub(super) fn reach(self, lease: &HelloReply) -> Result<Reach, Failure> {
        let unit = u64::from(lease.unit);
        if !self.bytes.is_multiple_of(unit) {
            return Err(refused(DataStatus::Invalid));
        }
        let resource_len = lease.resource_len;
        let end = self.first.checked_add(self.bytes / unit);
        let end = end.filter(|end| *end <= resource_len);
        let end = end.ok_or(Failure::OutOfRange { resource_len })?;
        if self.writes() && lease.read_only {
            return Err(refused(DataStatus::ReadOnly));
        }
        Ok(Reach {
            units: self.first..end,
            writes: self.writes(),
        })
    }

    /// First unit and number of units of a request for `range`.
    pub(super) fn extent(self, range: &Range<usize>, unit: u32) -> (u64, u64) {
        if self.bytes == 0 {
            return (0, 0);
        }
        let unit = u64::from(unit);
        let first = self.first + range.start as u64 / unit;
        (first, (range.len() as u64).div_ceil(unit))
    }
}

impl Reach {
    /// Whether one of the two operations must wait for the other.
    pub(super) fn conflicts(&self, other: &Self) -> bool {
        (self.writes || other.writes)
            && self.units.start < other.units.end
            && other.units.start < self.units.end
    }
}

impl Operation {
    /// What the operation does.
    pub(crate) fn place(&self) -> Place {
        match self {
            Self::Open => Place::none(DataOp::Hello),
            Self::Flush => Place::none(DataOp::Flush),
            Self::Read { block, into } => Place::of(DataOp::Read, *block, into),
            Self::Write { block, from } => Place::of(DataOp::Write, *block, from),
        }
    }

    /// The payload of a request for `range`.
    pub(super) fn payload(&self, range: &Range<usize>) -> &[u8] {
        match self {
            Self::Write { from, .. } => from.get(range.clone()).unwrap_or_default(),
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

fn refused(status: DataStatus) -> Failure {
    let status = status as u8;
    Failure::Refused { status }
}
