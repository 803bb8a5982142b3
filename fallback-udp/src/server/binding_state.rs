//! The binding of one lease: its phases and their order.
//!
//! ```text
//! Empty ─► Live ─► Cut ─► Releasing ─► removed
//!           │ ▲     │         │
//!           │ └─────┘         ▼
//!           └────► Failed   Dirty
//! ```
//!
//! Only a release takes long, so everything else happens under the lock; while a release waits for the storage, the
//! lock is free.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use fabricbios_lease::{Gate, Proof, StepError};
use fabricbios_wire::{DpKey, Generation};

use super::entry::{Content, Entry};

/// The binding of one lease, behind its lock.
#[derive(Debug)]
pub(super) struct BindingCell<C> {
    state: Mutex<BindingState<C>>,
    /// Held during a release; a second release of the same lease waits for the first and finds it done.
    pub(super) releasing: Mutex<()>,
}

/// The state that the lock of a [`BindingCell`] guards.
#[derive(Debug)]
pub(super) struct BindingState<C> {
    pub(super) gate: Gate,
    pub(super) phase: Phase<C>,
    /// The newest key of the live binding; a query repeats it to the client.
    pub(super) key: Option<DpKey>,
}

#[derive(Debug, Default)]
pub(super) enum Phase<C> {
    /// Never bound.
    #[default]
    Empty,
    /// In use.
    Live(Arc<Entry<C>>),
    /// Proved unreachable.
    Cut { proof: Proof, entry: Arc<Entry<C>> },
    /// Could not be proved unreachable.
    Failed {
        error: StepError,
        entry: Arc<Entry<C>>,
    },
    /// A thread is releasing the lease. After the release the gate is marked removed and the cell leaves the custody.
    Releasing(Option<Arc<Entry<C>>>),
    /// Unreachable, but the release failed.
    Dirty {
        error: StepError,
        entry: Option<Arc<Entry<C>>>,
    },
}

impl<C> Default for BindingCell<C> {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            releasing: Mutex::default(),
        }
    }
}

impl<C> Default for BindingState<C> {
    fn default() -> Self {
        Self {
            gate: Gate::default(),
            phase: Phase::Empty,
            key: None,
        }
    }
}

impl<C> BindingCell<C> {
    /// Locks the state. If a thread panicked with the lock, the phase shows how far that thread came.
    pub(super) fn lock(&self) -> MutexGuard<'_, BindingState<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state unless another thread has the lock.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, BindingState<C>>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<C> BindingState<C> {
    /// The live binding, unless the order is for an older one.
    pub(super) fn live(&self, generation: Generation) -> Option<&Arc<Entry<C>>> {
        match &self.phase {
            Phase::Live(entry) if self.gate.admits(generation) => Some(entry),
            _ => None,
        }
    }

    /// The binding that is cut and still has I/O in flight.
    pub(super) fn still_busy(&self) -> Option<Arc<Entry<C>>>
    where
        C: Content,
    {
        match &self.phase {
            Phase::Cut { entry, .. } if !entry.content.is_quiet() => Some(Arc::clone(entry)),
            _ => None,
        }
    }
}
