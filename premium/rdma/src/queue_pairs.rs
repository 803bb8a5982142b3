//! The queue pairs of leases that exist now, for the proof of a cut and for whoever tells clients of the end.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use fabricbios_wire::LeaseId;

/// See the module.
#[derive(Default)]
pub struct QueuePairs {
    live: Mutex<Live>,
    on_end: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Debug, Default)]
struct Live {
    /// By number. The kernel gives numbers out again, so each queue pair has a serial number too.
    by_number: HashMap<u32, Entry>,
    made: u64,
}

/// A queue pair of a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    lease_id: LeaseId,
    serial: u64,
}

impl QueuePairs {
    /// Calls `on_end` after the end of each queue pair, on the thread that ends it: it must return at once. Only the first
    /// one is taken.
    pub fn on_end(&self, on_end: impl Fn() + Send + Sync + 'static) {
        self.on_end.set(Box::new(on_end)).ok();
    }

    /// The serial number of the lease's queue pair that has this number now.
    pub fn serial(&self, number: u32, lease_id: LeaseId) -> Option<u64> {
        let entry = self.lock().by_number.get(&number).copied();
        let entry = entry.filter(|it| it.lease_id == lease_id);
        entry.map(|it| it.serial)
    }

    /// Whether this queue pair still exists.
    pub fn has(&self, number: u32, serial: u64) -> bool {
        let live = self.lock();
        let entry = live.by_number.get(&number);
        entry.is_some_and(|it| it.serial == serial)
    }

    /// Whether a queue pair of some lease has this number now.
    pub(crate) fn has_number(&self, number: u32) -> bool {
        self.lock().by_number.contains_key(&number)
    }

    pub(crate) fn add(&self, number: u32, lease_id: LeaseId) {
        let mut live = self.lock();
        live.made += 1;
        let serial = live.made;
        live.by_number.insert(number, Entry { lease_id, serial });
    }

    pub(crate) fn remove(&self, number: u32) -> Option<Entry> {
        self.lock().by_number.remove(&number)
    }

    /// Puts back a queue pair that could not be destroyed.
    pub(crate) fn put_back(&self, number: u32, removed: Option<Entry>) {
        if let Some(entry) = removed {
            self.lock().by_number.insert(number, entry);
        }
    }

    pub(crate) fn tell_end(&self) {
        if let Some(on_end) = self.on_end.get() {
            on_end();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for QueuePairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueuePairs").field(&self.lock()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_given_out_again_is_another_queue_pair() {
        let (pairs, one, other) = (QueuePairs::default(), LeaseId(1), LeaseId(2));
        pairs.add(17, one);
        let first = pairs.serial(17, one).unwrap();
        assert!(pairs.has(17, first));
        pairs.remove(17);
        assert!(!pairs.has(17, first));
        pairs.add(17, other);
        assert!(!pairs.has(17, first));
        assert_eq!(pairs.serial(17, one), None, "of another lease");
        assert!(pairs.serial(17, other).is_some());
    }

    #[test]
    fn one_that_could_not_be_destroyed_is_the_same_one() {
        let (pairs, lease_id) = (QueuePairs::default(), LeaseId(1));
        pairs.add(17, lease_id);
        let serial = pairs.serial(17, lease_id).unwrap();
        let removed = pairs.remove(17);
        pairs.put_back(17, removed);
        assert!(pairs.has(17, serial));
    }
}
