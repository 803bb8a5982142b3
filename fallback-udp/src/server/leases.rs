//! Who is served: the bindings by lease, and for a while those that are over.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard},
    time::Duration,
};

use fabricbios_lease::Tag;
use fabricbios_wire::LeaseId;

use super::entry::Entry;
use crate::Standing;

const SHARDS: usize = 16;
/// How long a lease that is over is still answered for.
pub(super) const REMEMBERED: Duration = Duration::from_secs(11 * 60);
/// Leases that are remembered at most; the oldest are forgotten first.
const REMEMBERED_AT_MOST: usize = 65_536;

type Shard = HashMap<LeaseId, Arc<Entry>>;

#[derive(Debug, Default)]
pub(super) struct Leases {
    shards: [RwLock<Shard>; SHARDS],
    /// Those that are over, by when they were released.
    over: Mutex<VecDeque<(Duration, Arc<Entry>)>>,
}

impl Leases {
    pub(super) fn find(&self, lease: LeaseId) -> Option<Arc<Entry>> {
        let shard = self.shards[shard_of(lease)].read();
        let shard = shard.unwrap_or_else(PoisonError::into_inner);
        shard.get(&lease).cloned()
    }

    /// The binding of a tag, unless the lease has moved on to a newer one.
    pub(super) fn of(&self, tag: Tag) -> Option<Arc<Entry>> {
        let entry = self.find(tag.lease_id)?;
        (entry.tag.generation <= tag.generation).then_some(entry)
    }

    /// Serves a binding; an older one of the lease is not known any more.
    pub(super) fn serve(&self, entry: Arc<Entry>) {
        let lease = entry.tag.lease_id;
        self.shard(lease).insert(lease, entry);
    }

    /// From now on the lease is only remembered.
    pub(super) fn remember(&self, entry: Arc<Entry>, now: Duration) {
        entry.set(Standing::Over);
        entry.shrink();
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        over.push_back((now, entry));
        drop(over);
        self.forget_old(now);
    }

    /// Forgets leases that have been over for long; their keys are wiped.
    pub(super) fn forget_old(&self, now: Duration) {
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |since: Duration| now.saturating_sub(since) >= REMEMBERED;
        while over.len() > REMEMBERED_AT_MOST || over.front().is_some_and(|(at, _)| is_old(*at)) {
            let Some((_, entry)) = over.pop_front() else {
                return;
            };
            self.forget(&entry);
        }
    }

    /// Takes this binding out, and no newer one of the lease.
    fn forget(&self, entry: &Arc<Entry>) {
        let lease = entry.tag.lease_id;
        let mut shard = self.shard(lease);
        if shard.get(&lease).is_some_and(|it| Arc::ptr_eq(it, entry)) {
            shard.remove(&lease);
        }
    }

    fn shard(&self, lease: LeaseId) -> RwLockWriteGuard<'_, Shard> {
        let shard = self.shards[shard_of(lease)].write();
        shard.unwrap_or_else(PoisonError::into_inner)
    }
}

fn shard_of(lease: LeaseId) -> usize {
    #[allow(clippy::cast_possible_truncation, reason = "below 16")]
    let at = (lease.0 % SHARDS as u128) as usize;
    at
}
