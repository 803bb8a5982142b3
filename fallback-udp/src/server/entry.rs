//! One binding of a lease, shared by the threads that serve requests and those that carry out orders.
//!
//! A request holds the read lock of the keys from the check of its tag until its reply is made. A thread that ends access
//! first sets the state to Over and then takes the write lock once: after that no byte of the lease is being read or
//! written, and none will be. Forged frames hold the read lock too, but never the lock of the sessions, which
//! authentic requests pass one by one.

use std::{
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use fabricbios_lease::{BindingId, BootTime};
use fabricbios_wire::DataService;

use crate::{AccessState, Keys, Rate, ServedLease, SessionState, Space};

/// The memory or blocks of one binding.
pub(super) trait Content: Space + fmt::Debug + Send + Sync + 'static {
    /// The service.
    const SERVICE: DataService;

    /// Whether no I/O is in flight. Meaningful after the end of access.
    fn is_quiet(&self) -> bool {
        true
    }

    /// Waits until no I/O is in flight and calls `progress` whenever one has ended. `Err`: none ends any more.
    fn wait_until_quiet(&self, _progress: &dyn Fn()) -> Result<(), String> {
        Ok(())
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Entry<C> {
    /// Lease and generation of the binding.
    pub(super) binding_id: BindingId,
    keys: RwLock<Keys>,
    state: AtomicU8,
    deadline: AtomicU64,
    sessions: Mutex<SessionState>,
    rate: Rate,
    pub(super) content: C,
}

impl<C> Entry<C> {
    /// A binding without a deadline: requests get NO_LEASE until [`Entry::extend`] sets one.
    pub(super) fn new(binding_id: BindingId, keys: Keys, content: C, rate: Rate) -> Self {
        Self {
            binding_id,
            keys: RwLock::new(keys),
            state: AtomicU8::new(AccessState::Live as u8),
            deadline: AtomicU64::new(0),
            sessions: Mutex::new(SessionState::new(rate)),
            rate,
            content,
        }
    }

    /// The read lock of the keys, held while a request is served.
    pub(super) fn keys(&self) -> RwLockReadGuard<'_, Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The write lock of the keys. It waits, for microseconds, until no request is being served.
    pub(super) fn keys_alone(&self) -> RwLockWriteGuard<'_, Keys> {
        self.keys.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn extend(&self, deadline: BootTime) {
        self.deadline.store(deadline.0, Ordering::Release);
    }

    pub(super) fn set(&self, state: AccessState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Ends access. When this returns, no request of the lease is being served.
    pub(super) fn end(&self) {
        self.set(AccessState::Over);
        drop(self.keys_alone());
    }

    /// Drops the sessions of an ended lease.
    pub(super) fn shrink(&self) {
        *self.sessions() = SessionState::new(self.rate);
    }

    fn sessions(&self) -> MutexGuard<'_, SessionState> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Space> ServedLease for Entry<C> {
    type Space = C;

    fn state(&self) -> AccessState {
        match self.state.load(Ordering::Acquire) {
            live if live == AccessState::Live as u8 => AccessState::Live,
            fenced if fenced == AccessState::Fenced as u8 => AccessState::Fenced,
            _ => AccessState::Over,
        }
    }

    fn deadline(&self) -> Duration {
        Duration::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    fn space(&self) -> &C {
        &self.content
    }

    fn with_sessions<R>(&self, work: impl FnOnce(&mut SessionState) -> R) -> R {
        work(&mut self.sessions())
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
        let binding_id = BindingId {
            lease_id: LeaseId(1),
            generation: Generation(1),
            resource_id: ResourceId(1),
        };
        let keys = Keys::new(DataKey::new(&DpKey([1; 32])));
        Entry::new(binding_id, keys, (), Rate::new(1, 1))
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
            while entry.state() == AccessState::Live {
                yield_now();
            }
            // If the end does not wait it has every opportunity to come first.
            (0..1000).for_each(|_| yield_now());
            is_served.store(true, Ordering::Release);
            drop(request);
        });
    }
}
