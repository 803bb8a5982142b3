//! What a lease gives access to, and what is asked of it.

use alloc::{borrow::Cow, sync::Arc};
use core::ops::Range;

use fabricbios_wire::{DATA_PAYLOAD_MAX, DataFrame, DataHeader, DataOp, DataStatus, Part};

use crate::Share;

/// The measures of what a lease gives access to. Counts from the start of the lease, in bytes for FBMU
/// and in blocks for FBBU.
pub trait Space {
    /// How many units there are.
    fn units(&self) -> u64;

    /// Bytes of a unit.
    fn unit_bytes(&self) -> u32 {
        1
    }

    /// Whether nothing can be written.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Another number when writes that were not flushed may be lost; 0: not told.
    fn write_verifier(&self) -> u64 {
        0
    }

    /// What it has of the room for half-sent blocks; `None`: as much as sessions can have.
    fn share(&self) -> Option<&Arc<Share>> {
        None
    }
}

/// A space that does at once what is asked. Whoever calls has checked that the range is within it.
pub trait Store: Space {
    /// Copies out, from the unit `offset` on.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), StoreFailed>;

    /// Copies in, from the unit `offset` on.
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), StoreFailed>;

    /// Makes what was written durable.
    fn flush(&self) -> Result<(), StoreFailed> {
        Ok(())
    }
}

/// The storage did not do it; the store has told the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreFailed;

/// What a request in a session asks of the space.
#[derive(Clone, Debug)]
pub(crate) enum Job<'a> {
    Read(Reading),
    Write(Writing<'a>),
    Flush,
}

/// Units to read, and which of their bytes are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    pub(crate) told: Range<usize>,
}

/// Units to write, or a part of one.
#[derive(Clone, Debug)]
pub(crate) struct Writing<'a> {
    pub(crate) offset: u64,
    pub(crate) bytes: Cow<'a, [u8]>,
    /// The part, and the counter of the first one of its write.
    pub(crate) part: Option<(Part, u32)>,
}

impl<'a> Job<'a> {
    /// Reads a request. `None`: counter, lengths or part do not fit (sections 5 and 8).
    pub(crate) fn read(op: DataOp, frame: &DataFrame<'a>, space: &impl Space) -> Option<Self> {
        let header = &frame.header;
        let bytes = bytes_of(header, space).filter(|_| header.counter() != 0)?;
        let part = header.part().ok()?;
        let told = match part {
            None => 0..bytes,
            Some(part) if header.length == 1 => part.range(space.unit_bytes())?,
            Some(_) => return None,
        };
        let (offset, payload) = (header.offset, frame.payload);
        match op {
            DataOp::Read if bytes > 0 && payload.is_empty() => Some(Self::Read(Reading {
                offset,
                bytes,
                told,
            })),
            DataOp::Write if bytes > 0 && payload.len() == told.len() => {
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

    /// Whether it may be done at all.
    pub(crate) fn check(&self, header: &DataHeader, space: &impl Space) -> Result<(), DataStatus> {
        let end = header.offset.checked_add(u64::from(header.length));
        match self {
            _ if end.is_none_or(|end| end > space.units()) => Err(DataStatus::Range),
            Self::Write(_) if space.is_read_only() => Err(DataStatus::ReadOnly),
            _ => Ok(()),
        }
    }

    /// The counter of the first part of its write, where it is in parts.
    pub(crate) fn first_part(&self) -> Option<u32> {
        match self {
            Self::Write(Writing { part, .. }) => part.map(|(_, first)| first),
            _ => None,
        }
    }
}

/// `None`: there is no such counter.
fn first_counter(header: &DataHeader, part: Part) -> Option<u32> {
    let first = header.counter().checked_sub(part.index().into());
    first.filter(|first| *first > 0)
}

/// The bytes that `length` stands for, if a datagram carries so many.
fn bytes_of(header: &DataHeader, space: &impl Space) -> Option<usize> {
    let bytes = u64::from(header.length) * u64::from(space.unit_bytes());
    usize::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes <= DATA_PAYLOAD_MAX)
}
