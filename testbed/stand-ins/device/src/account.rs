//! The use of a device or partition by processes.

use std::ops::Range;

use crate::{
    Identity, Knob, Knobs, Owner,
    table::{GRANULE, Kind, Locked, Record},
};

/// The part of the device's memory that belongs to a device or partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Offset of the first byte.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Share {
    pub(crate) fn of(identity: &Identity, partitions: u32, memory_bytes: u64) -> Self {
        let Some(number) = identity.partition else {
            return Self {
                start: 0,
                bytes: memory_bytes,
            };
        };
        let bytes = memory_bytes / u64::from(partitions.max(1)) / GRANULE * GRANULE;
        Self {
            start: bytes * u64::from(number),
            bytes,
        }
    }

    fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes
    }
}

/// Memory of a device or partition, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// All memory.
    pub total: u64,
    /// Memory that no process has.
    pub free: u64,
}

/// A process that has the device open, or that a knob names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Memory of the process in bytes.
    pub bytes: u64,
    /// The partition of the process.
    pub partition: Option<u32>,
}

/// Total and free memory of a share.
pub(crate) fn usage(locked: &Locked<'_>, knobs: &Knobs, share: Share) -> Usage {
    let of_share = taken(locked, share);
    let taken: u64 = of_share.iter().map(|it| it.end - it.start).sum();
    let gone = taken.saturating_add(knobs.number(Knob::Foreign));
    Usage {
        total: share.bytes,
        free: share.bytes.saturating_sub(gone),
    }
}

/// Allocates the first free part of a share that is long enough; returns its index in the table and its offset in the
/// memory.
pub(crate) fn allocate(
    locked: &Locked<'_>,
    knobs: &Knobs,
    (share, partition): (Share, Option<u32>),
    (owner, bytes): (Owner, u64),
) -> Option<(usize, u64)> {
    let bytes = bytes.checked_next_multiple_of(GRANULE)?;
    let kept = knobs
        .number(Knob::Foreign)
        .saturating_add(knobs.number(Knob::ShortScrub));
    let end = share.range().end - kept.checked_next_multiple_of(GRANULE)?.min(share.bytes);
    let mut offset = share.start;
    for range in taken(locked, share) {
        if offset.checked_add(bytes)? <= range.start {
            break;
        }
        offset = offset.max(range.end);
    }
    if offset.checked_add(bytes)? > end {
        return None;
    }
    let record = Record {
        kind: Kind::Allocation,
        owner,
        partition,
        offset,
        bytes,
    };
    Some((locked.insert(record)?, offset))
}

/// The parts of a share that a process has or that are lost, in order.
fn taken(locked: &Locked<'_>, share: Share) -> Vec<Range<u64>> {
    let limits = share.range();
    let records = locked.records().map(|(_, it)| it);
    let memory = records.filter(|it| it.kind != Kind::Context);
    let within = memory.map(|it| {
        let end = it.offset.saturating_add(it.bytes).min(limits.end);
        it.offset.max(limits.start)..end
    });
    let mut ranges: Vec<_> = within.filter(|it| it.start < it.end).collect();
    ranges.sort_by_key(|it| it.start);
    ranges
}

/// The processes with a context on a device or partition, and the process that the knob names.
pub(crate) fn processes(locked: &Locked<'_>, knobs: &Knobs, identity: &Identity) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let on_it = |it: &Record| identity.partition.is_none() || it.partition == identity.partition;
    for (_, record) in locked.records().filter(|(_, it)| on_it(it)) {
        let (pid, partition) = (record.owner.pid, record.partition);
        let bytes = match record.kind {
            Kind::Context => 0,
            Kind::Allocation => record.bytes,
            Kind::Lost | Kind::Lingering => continue,
        };
        match found
            .iter_mut()
            .find(|it| (it.pid, it.partition) == (pid, partition))
        {
            Some(process) => process.bytes += bytes,
            None => found.push(Process {
                pid,
                bytes,
                partition,
            }),
        }
    }
    let busy = knobs.text(Knob::Busy);
    let mut busy = busy.split_whitespace().map(str::parse);
    if let Some(Ok(pid)) = busy.next()
        && let Ok(pid) = u32::try_from(pid)
    {
        found.push(Process {
            pid,
            bytes: busy.next().and_then(Result::ok).unwrap_or(0_u64),
            partition: identity.partition,
        });
    }
    found
}
