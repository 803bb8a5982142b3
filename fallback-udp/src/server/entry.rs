//! One binding of a lease, as the threads that serve and those that give orders share it.
//!
//! A request holds the keys for reading from the check of its tag until it is answered. Whoever ends
//! access first says so and then has the keys for itself once: from then on nothing of the lease is
//! being read or written, and nothing will be. Forged frames hold the keys too, but never the desk
//! that the holder's requests pass one by one.

use std::{
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use fabricbios_lease::{BootTime, Tag};
use fabricbios_wire::DataService;

use crate::{Desk, Keys, Leased, Rate, Space, Standing};

/// What a service gives access to with one binding.
pub(super) trait Content: Space + fmt::Debug + Send + Sync + 'static {
    /// The service.
    const SERVICE: DataService;

    /// Whether nothing of it is being read or written. Asked once access has ended.
    fn is_quiet(&self) -> bool {
        true
    }

    /// Waits for that, saying so by `progress` whenever something has ended. `Err`: nothing does any more.
    fn wait_until_quiet(&self, _progress: &dyn Fn()) -> Result<(), String> {
        Ok(())
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Entry<C> {
    /// The binding that it was made for.
    pub(super) tag: Tag,
    keys: RwLock<Keys>,
    standing: AtomicU8,
    deadline: AtomicU64,
    desk: Mutex<Desk>,
    rate: Rate,
    pub(super) content: C,
}

impl<C> Entry<C> {
    /// A binding without a deadline: it answers NO_LEASE until it is told one.
    pub(super) fn new(tag: Tag, keys: Keys, content: C, rate: Rate) -> Self {
        Self {
            tag,
            keys: RwLock::new(keys),
            standing: AtomicU8::new(Standing::Live as u8),
            deadline: AtomicU64::new(0),
            desk: Mutex::new(Desk::new(rate)),
            rate,
            content,
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
        *self.desk() = Desk::new(self.rate);
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Space> Leased for Entry<C> {
    type Space = C;

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

    fn space(&self) -> &C {
        &self.content
    }

    fn at_desk<R>(&self, work: impl FnOnce(&mut Desk) -> R) -> R {
        work(&mut self.desk())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::AtomicBool,
        thread::{self, yield_now},
    };

    use fabricbios_wire::{DpKey, Generation, LeaseId, ResourceId};

    use super::*;
    use crate::DataKey;

    impl Space for () {
        fn units(&self) -> u64 {
            0
        }
    }

    fn entry() -> Entry<()> {
        let tag = Tag {
            lease_id: LeaseId(1),
            generation: Generation(1),
            resource_id: ResourceId(1),
        };
        let keys = Keys::new(DataKey::new(&DpKey([1; 32])));
        Entry::new(tag, keys, (), Rate::new(1, 1))
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
}
