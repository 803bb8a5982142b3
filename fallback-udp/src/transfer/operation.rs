//! What can be done with the blocks of a lease.

use alloc::vec::Vec;
use core::{fmt, ops::Range};

use fabricbios_wire::{DataOp, DataStatus, HelloReply};

use super::Failure;

/// One operation, with its bytes. Blocks count from the start of the lease.
#[derive(Clone, PartialEq, Eq)]
pub enum Operation {
    /// Open a session, if there is none.
    Open,
    /// Blocks out of the lease.
    Read {
        /// The first one.
        block: u64,
        /// Whole blocks. After a failure some are new and some are not.
        into: Vec<u8>,
    },
    /// Blocks into the lease.
    Write {
        /// The first one.
        block: u64,
        /// Whole blocks. After a failure any of them may be written, each whole or not at all.
        from: Vec<u8>,
    },
    /// What was finished before this was submitted survives a power cut; [`Failure::WritesLost`]: some of it
    /// did not survive one.
    Flush,
}

/// Bytes of a lease are not for logs.
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

/// The blocks that an operation touches.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    blocks: Range<u64>,
    writes: bool,
}

impl Reach {
    /// Whether one of the two must not begin before the other was answered.
    pub(super) fn conflicts(&self, other: &Self) -> bool {
        (self.writes || other.writes)
            && self.blocks.start < other.blocks.end
            && other.blocks.start < self.blocks.end
    }
}

impl Operation {
    /// What its requests cover: bytes; for FLUSH the one request itself.
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

    /// The first block, and bytes.
    #[cfg(feature = "client")]
    pub(crate) fn place(&self) -> (u64, u64) {
        match self {
            Self::Open | Self::Flush => (0, 0),
            Self::Read { block, into } => (*block, into.len() as u64),
            Self::Write { block, from } => (*block, from.len() as u64),
        }
    }

    /// What it touches, if the lease is such that it can be done. Nothing, for what waits for nothing.
    pub(super) fn reach(&self, lease: &HelloReply) -> Result<Reach, Failure> {
        let (block, bytes, writes) = match self {
            Self::Open | Self::Flush => (0, 0, false),
            Self::Read { block, into } => (*block, into.len() as u64, false),
            Self::Write { block, from } => (*block, from.len() as u64, true),
        };
        let unit = u64::from(lease.unit);
        if !bytes.is_multiple_of(unit) {
            return Err(refused(DataStatus::Invalid));
        }
        let resource_len = lease.resource_len;
        let end = block.checked_add(bytes / unit);
        let end = end.filter(|end| *end <= resource_len);
        let end = end.ok_or(Failure::OutOfRange { resource_len })?;
        if writes && lease.read_only {
            return Err(refused(DataStatus::ReadOnly));
        }
        let blocks = block..end;
        Ok(Reach { blocks, writes })
    }

    /// First block and number of blocks of a request for `range`.
    pub(super) fn extent(&self, range: &Range<usize>, unit: u32) -> (u64, u64) {
        let unit = u64::from(unit);
        match self {
            Self::Open | Self::Flush => (0, 0),
            Self::Read { block, .. } | Self::Write { block, .. } => {
                let first = block + range.start as u64 / unit;
                (first, (range.len() as u64).div_ceil(unit))
            }
        }
    }

    /// What a request for `range` carries.
    pub(super) fn payload(&self, range: &Range<usize>) -> &[u8] {
        match self {
            Self::Write { from, .. } => from.get(range.clone()).unwrap_or_default(),
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

fn refused(status: DataStatus) -> Failure {
    let status = status as u8;
    Failure::Refused { status }
}
