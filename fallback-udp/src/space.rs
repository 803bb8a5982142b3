//! The memory or blocks of a lease, and the jobs that requests become.

use alloc::{borrow::Cow, sync::Arc};
use core::ops::Range;

use fabricbios_wire::{DATA_PAYLOAD_MAX, DataFrame, DataHeader, DataOp, DataStatus, Part};

use crate::Share;

/// The memory or blocks of a lease: size and properties. Offsets count units from the start of the lease: bytes for
/// FBMU, blocks for FBBU.
pub trait Space {
    /// Size in units.
    fn units(&self) -> u64;

    /// Size of a unit in bytes.
    fn unit_bytes(&self) -> u32 {
        1
    }

    /// Whether writes are refused.
    fn is_read_only(&self) -> bool {
        false
    }

    /// A number that changes when unflushed writes may be lost; 0: not provided.
    fn write_verifier(&self) -> u64 {
        0
    }

    /// The lease's share of the memory for half-sent blocks; `None`: limited by its sessions alone.
    fn share(&self) -> Option<&Arc<Share>> {
        None
    }
}

/// A space that does I/O at once. The caller has checked the range.
pub trait Store: Space {
    /// Copies from the unit `offset` on.
    ///
    /// # Errors
    /// The storage failed.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), StoreFailed>;

    /// Copies to the unit `offset` on.
    ///
    /// # Errors
    /// The storage failed.
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), StoreFailed>;

    /// Makes earlier writes durable.
    ///
    /// # Errors
    /// The storage failed.
    fn flush(&self) -> Result<(), StoreFailed> {
        Ok(())
    }
}

/// The storage failed; the store has logged why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreFailed;

/// The I/O of a request in a session.
#[derive(Clone, Debug)]
pub(crate) enum Job<'a> {
    Read(Reading),
    Write(Writing<'a>),
    Flush,
}

/// A read: whole units, and the range of their bytes that the reply carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    pub(crate) reply_range: Range<usize>,
}

/// A write of whole units, or of one part of a unit.
#[derive(Clone, Debug)]
pub(crate) struct Writing<'a> {
    pub(crate) offset: u64,
    pub(crate) bytes: Cow<'a, [u8]>,
    /// For a part: which one, and the counter of the first part of the same write.
    pub(crate) part: Option<(Part, u32)>,
}

impl<'a> Job<'a> {
    /// Parses a request. `None`: counter, lengths or part are not valid (sections 5 and 8).
    pub(crate) fn read(op: DataOp, frame: &DataFrame<'a>, space: &impl Space) -> Option<Self> {
        let header = &frame.header;
        let bytes = bytes_of(header, space).filter(|_| header.counter() != 0)?;
        let part = header.part().ok()?;
        let reply_range = match part {
            None => 0..bytes,
            Some(part) if header.length == 1 => part.range(space.unit_bytes())?,
            Some(_) => return None,
        };
        let (offset, payload) = (header.offset, frame.payload);
        match op {
            DataOp::Read if bytes > 0 && payload.is_empty() => Some(Self::Read(Reading {
                offset,
                bytes,
                reply_range,
            })),
            DataOp::Write if bytes > 0 && payload.len() == reply_range.len() => {
                let part = part.map(|part| first_counter(header, part).map(|it| (part, it)));
                Some(Self::Write(Writing {
                    offset,
                    bytes: Cow::Borrowed(payload),
                    part: part.map_or(Some(None), |it| it.map(Some))?,
                }))
            }
            DataOp::Flush if bytes == 0 && offset == 0 && payload.is_empty() => Some(Self::Flush),
            _ => None,
        }
    }

    /// Checks range and write permission.
    pub(crate) fn check(&self, header: &DataHeader, space: &impl Space) -> Result<(), DataStatus> {
        let end = header.offset.checked_add(u64::from(header.length));
        match self {
            _ if end.is_none_or(|end| end > space.units()) => Err(DataStatus::Range),
            Self::Write(_) if space.is_read_only() => Err(DataStatus::ReadOnly),
            _ => Ok(()),
        }
    }

    /// For a write in parts: the counter of the first part.
    pub(crate) fn first_part(&self) -> Option<u32> {
        match self {
            Self::Write(Writing { part, .. }) => part.map(|(_, first)| first),
            _ => None,
        }
    }
}

/// `None`: the counter is smaller than the index of the part.
fn first_counter(header: &DataHeader, part: Part) -> Option<u32> {
    let first = header.counter().checked_sub(part.index().into());
    first.filter(|first| *first > 0)
}

/// Length of the I/O in bytes; `None` if it does not fit a datagram.
fn bytes_of(header: &DataHeader, space: &impl Space) -> Option<usize> {
    let bytes = u64::from(header.length) * u64::from(space.unit_bytes());
    usize::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes <= DATA_PAYLOAD_MAX)
}
