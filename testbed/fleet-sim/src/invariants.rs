//! What must hold whatever fails, judged by what nodes write into their journals and by what clients are answered.

mod watched;

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt::{self, Display},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_lease::LeaseRecord;
use fabricbios_wire::{LeaseId, RequestToken};

pub(crate) use self::watched::{Asks, Watched};

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invariant {
    /// No two leases have a part of a resource in common.
    NothingGrantedTwice,
    /// A request has one lease at a time, at one node.
    OneLeasePerRequest,
    /// The end of a lease moves only because its holder renews or frees it. (A restart may end a lease earlier.)
    OnlyHoldersMoveEnds,
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

#[cfg(test)]
mod tests;
