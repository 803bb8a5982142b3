//! The operations on the blocks of a lease.

use alloc::vec::Vec;
use core::{fmt, ops::Range};

use fabricbios_wire::{DataOp, DataStatus, HelloReply};

use super::Failure;

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

/// The bytes that an operation moves. [`Place::default`]: none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// The first unit of the lease.
    pub(crate) first: u64,
    pub(crate) bytes: u64,
    writes: bool,
}

/// The units that an operation touches.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    units: Range<u64>,
    writes: bool,
}

impl Place {
    pub(super) fn reading(first: u64, into: &[u8]) -> Self {
        Self {
            first,
            bytes: into.len() as u64,
            writes: false,
        }
    }

    pub(super) fn writing(first: u64, from: &[u8]) -> Self {
        Self {
            writes: true,
            ..Self::reading(first, from)
        }
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
        if self.writes && lease.read_only {
            return Err(refused(DataStatus::ReadOnly));
        }
        Ok(Reach {
            units: self.first..end,
            writes: self.writes,
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
    /// Length of the operation in bytes; 1 for FLUSH, which is one request.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Open => 0,
            Self::Flush => 1,
            Self::Read { into, .. } => into.len(),
            Self::Write { from, .. } => from.len(),
        }
    }

    pub(super) fn op(&self) -> DataOp {
        match self {
            Self::Open => DataOp::Hello,
            Self::Flush => DataOp::Flush,
            Self::Read { .. } => DataOp::Read,
            Self::Write { .. } => DataOp::Write,
        }
    }

    /// The bytes that the operation moves.
    pub(crate) fn place(&self) -> Place {
        match self {
            Self::Open | Self::Flush => Place::default(),
            Self::Read { block, into } => Place::reading(*block, into),
            Self::Write { block, from } => Place::writing(*block, from),
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
