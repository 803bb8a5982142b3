//! Who has how much of a device or partition.

use std::ops::Range;

use crate::{
    Identity, Knob, Knobs, Owner,
    table::{GRANULE, Kind, Locked, Record},
};

/// A device's or partition's part of the device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Where it begins, in bytes.
    pub start: u64,
    /// Its bytes.
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
    /// All of it.
    pub total: u64,
    /// What nobody has.
    pub free: u64,
}

/// A process that has the device open, or is said to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// What it has of the memory, in bytes.
    pub bytes: u64,
    /// Its partition.
    pub partition: Option<u32>,
}

/// Memory of a share: all of it, free, and how far allocations go.
pub(crate) fn usage(locked: &Locked<'_>, knobs: &Knobs, share: Share) -> Usage {
    let of_share = taken(locked, share);
    let taken: u64 = of_share.iter().map(|it| it.end - it.start).sum();
    let gone = taken.saturating_add(knobs.number(Knob::Foreign));
    Usage {
        total: share.bytes,
        free: share.bytes.saturating_sub(gone),
    }
}

/// Takes the first part of a share that is free and long enough: its place in the table and in the memory.
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

/// The parts of a share that somebody has or that are lost, in their order.
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

/// The processes with a context on a device or partition, and the one that the knob names.
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
