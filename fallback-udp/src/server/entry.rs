//! One binding of a lease, as the threads that serve and those that give orders share it.
//!
//! A request holds the keys for reading from the check of its tag until it is answered. Whoever ends
//! access first says so and then has the keys for itself once: from then on nothing of the lease is
//! being read or written, and nothing will be. Forged frames hold the keys too, but never the desk
//! that the holder's requests pass one by one.

use std::{
    sync::{
        Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use fabricbios_arena::Arena;
use fabricbios_lease::{BootTime, Extent, Tag};

use crate::{Desk, Keys, Leased, Rate, Standing, Store, StoreFailed};

/// See the module.
#[derive(Debug)]
pub(super) struct Entry {
    /// The binding that it was made for.
    pub(super) tag: Tag,
    keys: RwLock<Keys>,
    standing: AtomicU8,
    deadline: AtomicU64,
    desk: Mutex<Desk>,
    rate: Rate,
    bytes: Bytes,
}

/// The lease's part of the arena.
#[derive(Debug)]
pub(super) struct Bytes {
    pub(super) arena: Arc<Arena>,
    pub(super) extent: Extent,
}

impl Entry {
    /// A binding without a deadline: it answers NO_LEASE until it is told one.
    pub(super) fn new(tag: Tag, keys: Keys, bytes: Bytes, rate: Rate) -> Self {
        Self {
            tag,
            keys: RwLock::new(keys),
            standing: AtomicU8::new(Standing::Live as u8),
            deadline: AtomicU64::new(0),
            desk: Mutex::new(Desk::new(rate)),
            rate,
            bytes,
        }
    }

    /// The keys, for as long as a request is served.
    pub(super) fn keys(&self) -> RwLockReadGuard<'_, Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys, with no request being served. Waits for those that are, microseconds.
    pub(super) fn keys_alone(&self) -> RwLockWriteGuard<'_, Keys> {
        self.keys.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn extend(&self, deadline: BootTime) {
        self.deadline.store(deadline.0, Ordering::Release);
    }

    pub(super) fn set(&self, standing: Standing) {
        self.standing.store(standing as u8, Ordering::Release);
    }

    /// Ends access. When this returns no byte of the lease is being read or written any more.
    pub(super) fn end(&self) {
        self.set(Standing::Over);
        drop(self.keys_alone());
    }

    /// Forgets the sessions, for a lease that is only remembered.
    pub(super) fn shrink(&self) {
        self.at_desk(|desk| *desk = Desk::new(self.rate));
    }

    pub(super) fn extent(&self) -> Extent {
        self.bytes.extent
    }
}

impl Leased for Entry {
    type Store = Bytes;

    fn standing(&self) -> Standing {
        match self.standing.load(Ordering::Acquire) {
            live if live == Standing::Live as u8 => Standing::Live,
            fenced if fenced == Standing::Fenced as u8 => Standing::Fenced,
            _ => Standing::Over,
        }
    }

    fn deadline(&self) -> Duration {
        Duration::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    fn store(&self) -> &Bytes {
        &self.bytes
    }

    fn at_desk<R>(&self, work: impl FnOnce(&mut Desk) -> R) -> R {
        work(&mut self.desk.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Store for Bytes {
    fn units(&self) -> u64 {
        self.extent.length
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), StoreFailed> {
        let at = self.place(offset, into.len())?;
        self.arena.read(at, into).map_err(|_outside| StoreFailed)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), StoreFailed> {
        let at = self.place(offset, from.len())?;
        self.arena.write(at, from).map_err(|_outside| StoreFailed)
    }
}

impl Bytes {
    /// Where in the arena; checked here again, since next to it are somebody else's bytes.
    fn place(&self, offset: u64, length: usize) -> Result<u64, StoreFailed> {
        let end = offset.checked_add(length as u64).ok_or(StoreFailed)?;
        if end > self.extent.length {
            return Err(StoreFailed);
        }
        self.extent.offset.checked_add(offset).ok_or(StoreFailed)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::AtomicBool,
        thread::{self, yield_now},
    };

    use fabricbios_arena::Source;
    use fabricbios_wire::{DpKey, Generation, LeaseId, ResourceId};

    use super::*;
    use crate::DataKey;

    /// The second of three pages.
    fn entry() -> Entry {
        let tag = Tag {
            lease_id: LeaseId(1),
            generation: Generation(1),
            resource_id: ResourceId(1),
        };
        let arena = Arc::new(Arena::open(&Source::default(), 3 * 4096).unwrap());
        let extent = Extent {
            offset: 4096,
            length: 4096,
        };
        let keys = Keys::new(DataKey::new(&DpKey([1; 32])));
        Entry::new(tag, keys, Bytes { arena, extent }, Rate::new(1, 1))
    }

    #[test]
    fn an_end_waits_for_the_request_that_is_being_served() {
        let entry = entry();
        let is_served = AtomicBool::new(false);
        thread::scope(|threads| {
            let request = entry.keys();
            threads.spawn(|| {
                entry.end();
                assert!(is_served.load(Ordering::Acquire));
            });
            while entry.standing() == Standing::Live {
                yield_now();
            }
            // If the end does not wait it has every opportunity to come first.
            (0..1000).for_each(|_| yield_now());
            is_served.store(true, Ordering::Release);
            drop(request);
        });
    }

    #[test]
    fn bytes_of_neighbours_are_out_of_reach_whoever_asks() {
        let bytes = entry().bytes;
        assert!(bytes.write(4090, &[1; 6]).is_ok());
        for offset in [4091, 4096, u64::MAX, u64::MAX - 4096] {
            assert!(bytes.write(offset, &[1; 6]).is_err(), "{offset}");
            assert!(bytes.read(offset, &mut [0; 6]).is_err(), "{offset}");
        }
        let mut all = [0; 3 * 4096];
        bytes.arena.read(0, &mut all).unwrap();
        assert_eq!(all.iter().filter(|byte| **byte == 1).count(), 6);
    }
}
