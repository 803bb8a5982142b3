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

use fabricbios_contract::{Inline, Part};
use fabricbios_lease::{BindError, BindOrder, BindingId, BootTime, StepError};
use fabricbios_wire::{Binding, DataService, ResourceId};

use super::udp_path::UdpPath;
use crate::{
    AccessState, Broken, Invariant, Keys, Rate, ReplayWindow, ServedLease, SessionState, Space,
};

/// The memory or blocks of one binding.
pub trait Content: Space + fmt::Debug + Send + Sync + Sized + 'static {
    /// The service.
    const SERVICE: DataService;

    /// The memory or blocks that bindings are parts of.
    type Source: fmt::Debug + Send + Sync;

    /// Opens the part of an order and serves it.
    ///
    /// # Errors
    /// See [`DataPath::bind`](fabricbios_contract::DataPath::bind).
    fn bind(path: &UdpPath<Self>, order: &BindOrder, part: &Part) -> Result<Binding, BindError>;

    /// See [`DataPath::inline`](fabricbios_contract::DataPath::inline).
    fn inline(source: &Self::Source, resource_id: ResourceId) -> Inline;

    /// Whether no I/O is in flight. Meaningful after the end of access.
    fn is_quiet(&self) -> bool {
        true
    }

    /// Waits until no I/O is in flight and calls `progress` whenever one has ended.
    ///
    /// # Errors
    /// No I/O ends any more.
    fn wait_until_quiet(&self, _progress: &dyn Fn()) -> Result<(), StepError> {
        Ok(())
    }

    /// Closes the storage. Access has ended and no I/O is in flight.
    ///
    /// # Errors
    /// I/O is in flight.
    fn close(&self) -> Result<(), Broken> {
        Ok(())
    }
}

/// The limits of each lease of a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionLimits {
    pub(super) rate: Rate,
    pub(super) window: ReplayWindow,
}

impl SessionLimits {
    fn sessions(self) -> SessionState {
        SessionState::new(self.rate).with_window(self.window)
    }
}

#[cfg(test)]
impl SessionLimits {
    /// Limits for leases without requests.
    pub(super) fn few() -> Self {
        Self {
            rate: Rate::new(1, 1),
            window: ReplayWindow::LONGEST,
        }
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
    /// `None`: no request has come since the binding was made or was closed. Most of what is remembered of an ended lease
    /// would be this.
    sessions: Mutex<Option<Box<SessionState>>>,
    limits: SessionLimits,
    pub(super) content: C,
    /// The invariant that failed, until an order has reported it.
    broken: Mutex<Option<Broken>>,
}

impl<C> Entry<C> {
    /// A binding without a deadline: requests get NO_LEASE until [`Entry::extend`] sets one.
    pub(super) fn new(
        binding_id: BindingId,
        keys: Keys,
        content: C,
        limits: SessionLimits,
    ) -> Self {
        Self {
            binding_id,
            keys: RwLock::new(keys),
            state: AtomicU8::new(AccessState::Live as u8),
            deadline: AtomicU64::new(0),
            sessions: Mutex::default(),
            limits,
            content,
            broken: Mutex::default(),
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
        self.keys_alone().close();
    }

    /// Whether an invariant failed and no order has reported it.
    pub(super) fn is_broken(&self) -> bool {
        self.finding().is_some()
    }

    /// Returns the failed invariant as an error, once: when the order is repeated, it proves the end itself.
    pub(super) fn check_invariants(&self) -> Result<(), StepError> {
        let broken = self.finding().take();
        broken.map_or(Ok(()), |broken| Err(self.failed(broken)))
    }

    /// The error of an invariant that failed.
    pub(super) fn failed(&self, broken: Broken) -> StepError {
        StepError::new("invariant", format_args!("{}: {broken}", self.binding_id))
    }

    fn finding(&self) -> MutexGuard<'_, Option<Broken>> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sessions(&self) -> MutexGuard<'_, Option<Box<SessionState>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Content> Entry<C> {
    /// Drops the sessions of an ended lease and closes its storage.
    pub(super) fn close(&self) -> Result<(), StepError> {
        *self.sessions() = None;
        let share = self.content.share();
        if share.is_some_and(|share| !share.adds_up(0)) {
            self.broken(Broken {
                invariant: Invariant::Room,
                detail: "an ended lease has half-sent blocks",
            });
        }
        if let Err(broken) = self.content.close() {
            self.broken(broken);
        }
        self.check_invariants()
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
        let mut sessions = self.sessions();
        work(sessions.get_or_insert_with(|| Box::new(self.limits.sessions())))
    }

    fn broken(&self, broken: Broken) {
        self.set(AccessState::Fenced);
        let BindingId {
            lease_id,
            resource_id,
            ..
        } = self.binding_id;
        let Broken { invariant, detail } = broken;
        tracing::error!(%invariant, %lease_id, %resource_id, detail, "a mistake in this program was found");
        self.finding().get_or_insert(broken);
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
        Entry::new(binding_id, keys, (), SessionLimits::few())
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
            // If `end` did not wait, it would have every opportunity to finish first.
            (0..1000).for_each(|_| yield_now());
            is_served.store(true, Ordering::Release);
            drop(request);
        });
    }
}
