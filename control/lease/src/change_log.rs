//! Which leases have changed, for those who keep a copy of the list: the schedulers of the node.

use alloc::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    vec::Vec,
};
use core::ops::Bound;

use fabricbios_wire::{LeaseId, LeasePhase, ResourceId, ResourceType};

use crate::{LeaseTable, lease::Lease};

/// Changes that the log keeps: 1 MiB of ids. Whoever is further behind reads the whole list again.
const KEPT_MAX: usize = 1 << 16;

/// The place of a change in the log; it counts the changes since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPosition(u64);

/// What is told about a lease. Nothing of it opens the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseSummary {
    /// The lease.
    pub lease_id: LeaseId,
    /// The tenant.
    pub tenant: Arc<str>,
    /// The resource.
    pub resource_id: ResourceId,
    /// The type of the resource.
    pub resource_type: ResourceType,
    /// The phase that the holder sees.
    pub phase: LeasePhase,
    /// The capacity in the unit of the type.
    pub capacity: u64,
    /// When the term ends, wall clock.
    pub expires_at_unix_ms: u64,
}

/// Some changes of the list of leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// Leases that are new or have changed, as they are now.
    pub leases: Vec<LeaseSummary>,
    /// Leases that are over, and clean.
    pub gone: Vec<LeaseId>,
    /// Where the changes after these begin.
    pub next: LogPosition,
    /// Whether there are more of them already.
    pub more: bool,
}

/// The last changes: the id of the lease of each.
#[derive(Debug, Default)]
pub(crate) struct ChangeLog {
    ids: VecDeque<LeaseId>,
    /// The changes before these.
    dropped: u64,
}

impl ChangeLog {
    pub(crate) fn add(&mut self, id: LeaseId) {
        if self.ids.len() == KEPT_MAX {
            self.ids.pop_front();
            self.dropped += 1;
        }
        self.ids.push_back(id);
    }

    fn end(&self) -> LogPosition {
        LogPosition(self.dropped + self.ids.len() as u64)
    }

    /// The ids from `from` on, at most `most`. `None`: some of them are dropped.
    fn since(&self, from: LogPosition, most: usize) -> Option<impl Iterator<Item = LeaseId> + '_> {
        let skipped = usize::try_from(from.0.checked_sub(self.dropped)?).ok()?;
        Some(self.ids.iter().skip(skipped).take(most).copied())
    }
}

impl LeaseTable {
    /// The end of the log: what changes from now on is behind it.
    #[must_use]
    pub fn log_end(&self) -> LogPosition {
        self.changes.end()
    }

    /// Up to `most` changes from `from` on, each lease once. `None`: the log does not go back so far.
    #[must_use]
    pub fn changes_since(&self, from: LogPosition, most: usize) -> Option<Changes> {
        let mut taken = 0;
        let ids: BTreeSet<LeaseId> = { self.changes.since(from, most)? }
            .inspect(|_| taken += 1)
            .collect();
        let next = LogPosition(from.0 + taken);
        let mut changes = Changes {
            leases: Vec::new(),
            gone: Vec::new(),
            next,
            more: next < self.log_end(),
        };
        for id in ids {
            match self.leases.get(&id) {
                Some(lease) => changes.leases.push(lease.summary()),
                None => changes.gone.push(id),
            }
        }
        Some(changes)
    }

    /// Up to `most` leases with ids above `after`, by ascending id: those that are not over, or not clean yet.
    #[must_use]
    pub fn summaries(&self, after: LeaseId, most: usize) -> Vec<LeaseSummary> {
        let above = (Bound::Excluded(after), Bound::Unbounded);
        let leases = self.leases.range(above).take(most);
        leases.map(|(_, lease)| lease.summary()).collect()
    }
}

impl Lease {
    fn summary(&self) -> LeaseSummary {
        LeaseSummary {
            lease_id: self.id,
            tenant: self.tenant.clone(),
            resource_id: self.resource_id,
            resource_type: self.kind,
            phase: self.phase(),
            capacity: self.placement.amount(),
            expires_at_unix_ms: self.expires_at_unix_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;

    #[test]
    fn a_reader_far_behind_reads_the_whole_list() {
        let mut table = LeaseTable::new(Policy::default());
        let start = table.log_end();
        (0..KEPT_MAX as u128).for_each(|id| table.changes.add(LeaseId(id)));
        let all = table.changes_since(start, KEPT_MAX).unwrap();
        assert_eq!((all.gone.len(), all.more), (KEPT_MAX, false));
        table.changes.add(LeaseId(7));
        assert_eq!(table.changes_since(start, 1), None);
        let last = table.changes_since(all.next, KEPT_MAX).unwrap();
        assert_eq!(
            (&*last.gone, last.next),
            (&[LeaseId(7)][..], table.log_end())
        );
        // A position that this table has not reached.
        let ahead = LogPosition(last.next.0 + 1);
        assert_eq!(table.changes_since(ahead, 1).unwrap().next, ahead);
    }
}
