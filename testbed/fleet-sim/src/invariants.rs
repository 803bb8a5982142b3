//! What must hold whatever fails, judged by what nodes write into their journals and by what clients are answered.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    fmt::{self, Display},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fabricbios_lease::{BootTime, LeaseRecord, Placement};
use fabricbios_node::{
    journal::{Change, Key, records},
    process::clock,
};
use fabricbios_wire::{LeaseId, NodeId, RequestToken, ResourceId};

use crate::views::Held;

/// A lease that is over so long after its time is late. The machine is busy, and processes wait for their turn.
const LATE: Duration = Duration::from_secs(20);

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invariant {
    /// No two leases have a part of a resource in common.
    NothingGrantedTwice,
    /// A request has one lease at a time, at one node.
    OneLeasePerRequest,
    /// A lease goes on for longer only because its holder renews it. (A restart may end a lease earlier.)
    OnlyHoldersProlong,
    /// What is refused for good, no member could ever grant, whether it is there or not.
    ForGoodIsTrue,
    /// A lease is over at its node when its time is, whatever schedulers and etcd do.
    LeasesEnd,
    /// When all faults are over, each scheduler tells the leases that the nodes have, and knows all members.
    ViewsAgree,
    /// No scheduler and no node ends by itself.
    NobodyCrashes,
    /// Leases are granted, renewed and freed, whatever fails.
    ClientsAreServed,
}

impl Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What all nodes together must keep, and what was broken.
#[derive(Debug, Default)]
pub(crate) struct Invariants {
    /// Where the lease of each request is.
    requests: Mutex<HashMap<AskedBy, Granted>>,
    broken: Mutex<Vec<String>>,
}

/// The node and the lease of a request.
#[derive(Debug)]
struct Granted {
    node: u32,
    lease_id: LeaseId,
    is_over: bool,
}

/// A tenant, and the token of its request.
type AskedBy = (Arc<str>, RequestToken);

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Invariants {
    pub(crate) fn breaks(&self, invariant: Invariant, why: impl Display) {
        let told = format!("{invariant}: {why}");
        println!("BROKEN {told}");
        lock(&self.broken).push(told);
    }

    pub(crate) fn broken(&self) -> Vec<String> {
        lock(&self.broken).clone()
    }

    fn is_for(&self, node: u32, record: &LeaseRecord) {
        let Some(requested) = record.requested else {
            return;
        };
        let here = Granted {
            node,
            lease_id: record.lease_id,
            is_over: record.ended.is_some(),
        };
        let asked_by = (Arc::clone(&record.tenant), requested.token);
        match lock(&self.requests).entry(asked_by) {
            Entry::Vacant(place) => drop(place.insert(here)),
            Entry::Occupied(mut place) => {
                let there = place.get();
                let is_other = (there.node, there.lease_id) != (node, record.lease_id);
                if is_other && !there.is_over && !here.is_over {
                    let what = format_args!(
                        "a request of {} has lease {} at node {} and lease {} at node {node}",
                        record.tenant, there.lease_id, there.node, record.lease_id
                    );
                    self.breaks(Invariant::OneLeasePerRequest, what);
                }
                // Of two the later one stays.
                if !is_other || there.is_over {
                    place.insert(here);
                }
            }
        }
    }
}

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
    /// Renewals that the node was asked for and that have not moved the end.
    renewals: u32,
}

impl Watched {
    pub(crate) fn new(node: u32) -> Self {
        Self {
            node,
            ..Self::default()
        }
    }

    /// A change is about to be durable.
    pub(crate) fn changes(&mut self, change: &Change, all: &Invariants) {
        let Key::Lease(id) = change.key else { return };
        let before = self.leases.remove(&id);
        if let Some(offset) = before.as_ref().and_then(|it| it.offset) {
            let resource_id = before.as_ref().map(|it| it.resource_id);
            self.taken
                .remove(&(resource_id.unwrap_or(ResourceId(0)), offset));
        }
        let Some(value) = &change.value else {
            if let Some(before) = before {
                self.is_it_late(id, &before, all);
            }
            return;
        };
        let record: LeaseRecord = match records::decode(value) {
            Ok(record) => record,
            Err(error) => panic!("node {}: lease {id}: {error:#}", self.node),
        };
        all.is_for(self.node, &record);
        let is_over = record.ended.is_some();
        let mut renewals = before.as_ref().map_or(0, |it| it.renewals);
        if let Some(before) = &before
            && !is_over
            && before.deadline < record.deadline
            // A restart may find a lease whose time is over, and ends it now.
            && record.deadline > clock::now().boot
        {
            match renewals.checked_sub(1) {
                Some(left) => renewals = left,
                None => {
                    let what = format_args!(
                        "lease {id} of node {}, from {:?} to {:?}, and nobody has renewed it",
                        self.node, before.deadline, record.deadline
                    );
                    all.breaks(Invariant::OnlyHoldersProlong, what);
                }
            }
        }
        if let Some(before) = before.filter(|_| is_over) {
            self.is_it_late(id, &before, all);
        }
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
            is_over,
            renewals,
        };
        self.leases.insert(id, live);
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

    pub(crate) fn renews(&mut self, id: LeaseId) {
        if let Some(live) = self.leases.get_mut(&id) {
            live.renewals += 1;
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
    fn is_it_late(&self, id: LeaseId, lease: &Live, all: &Invariants) {
        let grace = Duration::from_secs(lease.grace_secs.into());
        let due = (lease.deadline + grace).max(self.up_since);
        let late = due.until(clock::now().boot);
        if !lease.is_over && late > LATE {
            let what = format_args!("lease {id} of node {}, {late:?} late", self.node);
            all.breaks(Invariant::LeasesEnd, what);
        }
    }

    /// Looks for leases that should be over.
    pub(crate) fn look_for_late(&self, all: &Invariants) {
        for (id, lease) in &self.leases {
            self.is_it_late(*id, lease, all);
        }
    }

    /// The daemon starts.
    pub(crate) fn starts(&mut self) {
        self.up_since = clock::now().boot;
    }
}
