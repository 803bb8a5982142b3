//! The leases of one node, watched as its journal is written.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fabricbios_lease::{BootTime, LeaseRecord, Placement};
use fabricbios_node::journal::{Change, Key, records};
use fabricbios_wire::{LeaseId, NodeId, ResourceId};

use super::{Invariant, Invariants};
use crate::views::Held;

/// A lease that is over so long after its time is late. The machine is busy, and processes wait for their turn.
const LATE: Duration = Duration::from_secs(20);

/// The leases of one node, as its journal has them.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    node: u32,
    leases: BTreeMap<LeaseId, Live>,
    /// When its daemon was started last.
    up_since: BootTime,
    /// By resource and start: the end, and whose it is.
    taken: BTreeMap<(ResourceId, u64), (u64, LeaseId)>,
}

#[derive(Debug)]
struct Live {
    resource_id: ResourceId,
    tenant: Arc<str>,
    capacity: u64,
    /// The start of its part.
    offset: Option<u64>,
    deadline: BootTime,
    grace_secs: u32,
    is_over: bool,
    /// Renewals that its holder has asked for and that have not moved the end.
    renewals: u32,
    /// Its holder has asked for its end.
    is_freed: bool,
    /// The daemon was started after the last record.
    is_found: bool,
}

impl Live {
    /// Its end, with the time for which its contents are kept.
    fn end(&self) -> BootTime {
        self.deadline + Duration::from_secs(self.grace_secs.into())
    }
}

/// What a holder asks of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    Renewal,
    End,
}

impl Watched {
    pub(crate) fn new(node: u32) -> Self {
        Self {
            node,
            ..Self::default()
        }
    }

    /// A change is about to be durable.
    pub(crate) fn changes(&mut self, change: &Change, now: BootTime, all: &Invariants) {
        let Key::Lease(id) = change.key else { return };
        let record = change
            .value
            .as_ref()
            .map(|value| match records::decode(value) {
                Ok(record) => record,
                Err(error) => panic!("node {}: lease {id}: {error:#}", self.node),
            });
        self.becomes(id, record, now, all);
    }

    /// The journal has this record of the lease now, or none.
    pub(super) fn becomes(
        &mut self,
        id: LeaseId,
        record: Option<LeaseRecord>,
        now: BootTime,
        all: &Invariants,
    ) {
        let before = self.leases.remove(&id);
        if let Some(before) = &before
            && let Some(offset) = before.offset
        {
            self.taken.remove(&(before.resource_id, offset));
        }
        let lives = record.as_ref().filter(|it| it.ended.is_none());
        let mut renewals = before.as_ref().map_or(0, |it| it.renewals);
        match (&before, lives) {
            (Some(before), Some(record)) => {
                let is_renewed = self.goes_on(id, before, record, now, all);
                renewals -= u32::from(is_renewed);
            }
            (Some(before), None) => self.ends(id, before, now, all),
            (None, _) => {}
        }
        let Some(record) = record else { return };
        all.is_for(self.node, &record);
        let offset = match &record.placement {
            Some(Placement::Stretch(extent)) => {
                self.takes(id, record.resource_id, (extent.offset, extent.end()), all);
                Some(extent.offset)
            }
            _ => None,
        };
        let live = Live {
            resource_id: record.resource_id,
            tenant: record.tenant,
            capacity: record.capacity,
            offset,
            deadline: record.deadline,
            grace_secs: record.grace_secs,
            is_over: record.ended.is_some(),
            renewals,
            is_freed: before.is_some_and(|it| it.is_freed),
            is_found: false,
        };
        self.leases.insert(id, live);
    }

    /// A lease has a record again, with which it lives. Returns whether a renewal has moved its end.
    fn goes_on(
        &self,
        id: LeaseId,
        before: &Live,
        record: &LeaseRecord,
        now: BootTime,
        all: &Invariants,
    ) -> bool {
        let (was, is) = (before.deadline, record.deadline);
        // A start may end a lease earlier, and ends one now whose time is over.
        let by_start = before.is_found && (is < was || is <= now);
        if !before.is_over && (was == is || by_start) {
            return false;
        }
        let is_renewed = !before.is_over && before.renewals > 0;
        if !is_renewed {
            let what = format_args!(
                "lease {id} of node {}, from {was:?} to {is:?}, and its holder has not renewed it; over before: {}",
                self.node, before.is_over
            );
            all.breaks(Invariant::OnlyHoldersMoveEnds, what);
        }
        is_renewed
    }

    /// A lease is over, or its record is gone.
    fn ends(&self, id: LeaseId, before: &Live, now: BootTime, all: &Invariants) {
        self.is_it_late(id, before, now, all);
        let may_end = before.is_over || before.is_freed || before.is_found;
        if !may_end && now < before.end() {
            let early = now.until(before.end());
            let what = format_args!(
                "lease {id} of node {} ends {early:?} early, and its holder has not freed it",
                self.node
            );
            all.breaks(Invariant::OnlyHoldersMoveEnds, what);
        }
    }

    fn takes(&mut self, id: LeaseId, of: ResourceId, (from, to): (u64, u64), all: &Invariants) {
        let before = self.taken.range((of, 0)..(of, to)).next_back();
        if let Some((_, (end, other))) = before
            && *end > from
        {
            let what = format_args!(
                "lease {id} of node {} has a part of lease {other}, on resource {of}; over: {:?}",
                self.node,
                self.leases.get(other).map(|it| it.is_over)
            );
            all.breaks(Invariant::NothingGrantedTwice, what);
        }
        self.taken.insert((of, from), (to, id));
    }

    /// A request about a lease reaches the node. Only its holder's counts.
    pub(crate) fn is_asked(&mut self, id: LeaseId, tenant: &str, asks: Asks) {
        if let Some(live) = self.leases.get_mut(&id)
            && *live.tenant == *tenant
        {
            match asks {
                Asks::Renewal => live.renewals += 1,
                Asks::End => live.is_freed = true,
            }
        }
    }

    /// Those that have a part, in order of their ids.
    pub(crate) fn leases(&self) -> Vec<Held> {
        let held = self.leases.iter().filter(|(_, it)| it.offset.is_some());
        let held = held.map(|(id, it)| Held {
            lease_id: *id,
            node_id: NodeId([0; 32]),
            resource_id: it.resource_id,
            tenant: it.tenant.to_string(),
            capacity: it.capacity,
        });
        held.collect()
    }

    /// Whether a lease that is over now, or is not yet, should have been for a while.
    fn is_it_late(&self, id: LeaseId, lease: &Live, now: BootTime, all: &Invariants) {
        let late = lease.end().max(self.up_since).until(now);
        if !lease.is_over && late > LATE {
            let what = format_args!("lease {id} of node {}, {late:?} late", self.node);
            all.breaks(Invariant::LeasesEnd, what);
        }
    }

    /// Looks for leases that should be over.
    pub(crate) fn look_for_late(&self, now: BootTime, all: &Invariants) {
        for (id, lease) in &self.leases {
            self.is_it_late(*id, lease, now, all);
        }
    }

    /// The daemon starts.
    pub(crate) fn starts(&mut self, now: BootTime) {
        self.up_since = now;
        self.leases.values_mut().for_each(|it| it.is_found = true);
    }
}
