//! The bindings that are served, by lease, and for a while those that have ended.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard},
    time::Duration,
};

use fabricbios_lease::{BindingId, StepError};
use fabricbios_wire::LeaseId;

use super::entry::Entry;
use crate::{AccessState, Broken, Invariant, ServedLease as _, Space};

const SHARDS: usize = 16;
/// How long the server still answers for a lease that has ended.
pub(super) const REMEMBERED: Duration = Duration::from_secs(11 * 60);
/// Most ended leases that are remembered; the oldest are forgotten first.
const REMEMBERED_AT_MOST: usize = 65_536;
/// Most of them that are forgotten under one lock.
const FORGOTTEN_AT_ONCE: usize = 64;

type Shard<C> = HashMap<LeaseId, Arc<Entry<C>>>;

#[derive(Debug)]
pub(super) struct Leases<C> {
    shards: [RwLock<Shard<C>>; SHARDS],
    /// The ended bindings, by time of release.
    over: Mutex<VecDeque<(Duration, Arc<Entry<C>>)>>,
}

impl<C> Default for Leases<C> {
    fn default() -> Self {
        Self {
            shards: Default::default(),
            over: Mutex::default(),
        }
    }
}

impl<C: Space> Leases<C> {
    pub(super) fn find(&self, lease: LeaseId) -> Option<Arc<Entry<C>>> {
        let shard = self.shards[shard_of(lease)].read();
        let shard = shard.unwrap_or_else(PoisonError::into_inner);
        shard.get(&lease).cloned()
    }

    /// The entry of this binding, unless the lease has moved on to a newer one.
    pub(super) fn of(&self, binding_id: BindingId) -> Option<Arc<Entry<C>>> {
        let entry = self.find(binding_id.lease_id)?;
        (entry.binding_id.generation <= binding_id.generation).then_some(entry)
    }

    /// Calls `look` with every binding.
    pub(super) fn for_each(&self, look: impl Fn(&Entry<C>)) {
        for shard in &self.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            shard.values().for_each(|entry| look(entry));
        }
    }

    /// Serves a binding. It replaces an older one of the lease, whose access has ended.
    pub(super) fn serve(&self, entry: Arc<Entry<C>>) -> Result<(), StepError> {
        let lease = entry.binding_id.lease_id;
        let mut shard = self.shard(lease);
        if let Some(older) = shard.get(&lease)
            && !(older.keys().is_closed()
                && older.binding_id.generation < entry.binding_id.generation)
        {
            let (invariant, detail) = (
                Invariant::Generations,
                "a binding that has not ended, or is not older, was to be replaced",
            );
            older.broken(Broken { invariant, detail });
            return Err(older.failed(Broken { invariant, detail }));
        }
        shard.insert(lease, entry);
        Ok(())
    }

    /// Keeps the entry of an ended lease for a while, so that its client is answered with NO_LEASE.
    pub(super) fn remember(&self, entry: Arc<Entry<C>>, now: Duration) {
        entry.set(AccessState::Over);
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        over.push_back((now, entry));
        drop(over);
        self.forget_some(now);
    }

    /// Forgets the leases that ended long ago; their keys are wiped.
    pub(super) fn forget_old(&self, now: Duration) {
        while self.forget_some(now) {}
    }

    /// Forgets some of them, so that whoever ends a lease meanwhile does not wait for all. Returns whether there are more.
    fn forget_some(&self, now: Duration) -> bool {
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |since: Duration| now.saturating_sub(since) >= REMEMBERED;
        for _ in 0..FORGOTTEN_AT_ONCE {
            let first_is_old = over.front().is_some_and(|(at, _)| is_old(*at));
            if !first_is_old && over.len() <= REMEMBERED_AT_MOST {
                return false;
            }
            if let Some((_, entry)) = over.pop_front() {
                self.forget(&entry);
            }
        }
        true
    }

    /// Removes this binding, but not a newer one of the lease.
    fn forget(&self, entry: &Arc<Entry<C>>) {
        let lease = entry.binding_id.lease_id;
        let mut shard = self.shard(lease);
        if shard.get(&lease).is_some_and(|it| Arc::ptr_eq(it, entry)) {
            shard.remove(&lease);
        }
    }

    fn shard(&self, lease: LeaseId) -> RwLockWriteGuard<'_, Shard<C>> {
        let shard = self.shards[shard_of(lease)].write();
        shard.unwrap_or_else(PoisonError::into_inner)
    }
}

fn shard_of(lease: LeaseId) -> usize {
    #[allow(clippy::cast_possible_truncation, reason = "below 16")]
    let at = (lease.0 % SHARDS as u128) as usize;
    at
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use fabricbios_wire::{DpKey, Generation, ResourceId};

    use super::super::entry::SessionLimits;
    use super::*;
    use crate::{DataKey, Keys, ServedLease};

    const START: Duration = Duration::from_secs(1000);

    static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys::new(DataKey::new(&DpKey([1; 32]))));

    fn binding_id(lease: u128, generation: u32) -> BindingId {
        BindingId {
            lease_id: LeaseId(lease),
            generation: Generation(generation),
            resource_id: ResourceId(1),
        }
    }

    fn entry(lease: u128, generation: u32) -> Arc<Entry<()>> {
        let binding_id = binding_id(lease, generation);
        Arc::new(Entry::new(
            binding_id,
            KEYS.clone(),
            (),
            SessionLimits::few(),
        ))
    }

    fn over(leases: &Leases<()>, lease: u128, at: Duration) {
        let entry = entry(lease, 1);
        leases.serve(Arc::clone(&entry)).unwrap();
        entry.end();
        leases.remember(entry, at);
    }

    #[test]
    fn a_lease_that_is_over_is_remembered_for_ten_minutes_at_least() {
        let leases = Leases::default();
        over(&leases, 1, START);
        leases.forget_old(START + Duration::from_secs(600));
        let entry = leases.find(LeaseId(1)).unwrap();
        assert_eq!(entry.state(), AccessState::Over);
        leases.forget_old(START + REMEMBERED);
        assert!(leases.find(LeaseId(1)).is_none());
    }

    #[test]
    fn no_more_are_remembered_than_there_is_room_for() {
        let leases = Leases::default();
        let all = REMEMBERED_AT_MOST as u128 + 10;
        for lease in 0..all {
            over(&leases, lease, START);
        }
        assert!(leases.find(LeaseId(9)).is_none());
        assert!(leases.find(LeaseId(10)).is_some());
        assert!(leases.find(LeaseId(all - 1)).is_some());
    }

    #[test]
    fn what_is_forgotten_is_the_old_binding_and_not_a_newer_one() {
        let leases = Leases::default();
        over(&leases, 1, START);
        leases.serve(entry(1, 2)).unwrap();
        leases.forget_old(START + REMEMBERED);
        assert_eq!(
            leases.find(LeaseId(1)).unwrap().binding_id,
            binding_id(1, 2)
        );
    }

    #[test]
    fn an_order_finds_no_binding_that_is_newer_than_itself() {
        let leases = Leases::default();
        leases.serve(entry(1, 2)).unwrap();
        assert!(leases.of(binding_id(1, 1)).is_none());
        assert!(leases.of(binding_id(1, 2)).is_some());
        assert!(leases.of(binding_id(1, 3)).is_some());
    }
}
