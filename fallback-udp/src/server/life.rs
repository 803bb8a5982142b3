//! The life of one lease's binding: what may follow what.
//!
//! ```text
//! Empty ─► Live ─► Cut ─► Releasing ─► removed
//!           │ ▲     │         │
//!           │ └─────┘         ▼
//!           └────► Failed   Dirty
//! ```
//!
//! Nothing but a release takes long, so all else happens under the lock; while a release scrubs, the
//! lock is free.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use fabricbios_lease::{Gate, Proof, StepError};
use fabricbios_wire::{DpKey, Generation};

use super::entry::{Content, Entry};

/// One lease.
#[derive(Debug)]
pub(super) struct Slot<C> {
    life: Mutex<Life<C>>,
    /// Held while a release is under way; another one waits for it and finds it done.
    pub(super) releasing: Mutex<()>,
}

/// What the lock guards.
#[derive(Debug)]
pub(super) struct Life<C> {
    pub(super) gate: Gate,
    pub(super) state: State<C>,
    /// The newest key of the binding in use, to be told again.
    pub(super) key: Option<DpKey>,
}

#[derive(Debug, Default)]
pub(super) enum State<C> {
    /// Never bound.
    #[default]
    Empty,
    /// In use.
    Live(Arc<Entry<C>>),
    /// Proven unreachable.
    Cut { proof: Proof, entry: Arc<Entry<C>> },
    /// Could not be proven unreachable.
    Failed {
        error: StepError,
        entry: Arc<Entry<C>>,
    },
    /// A thread is scrubbing, or has: the gate says so then, and the slot is on its way out of the table.
    Releasing(Option<Arc<Entry<C>>>),
    /// Unreachable, but could not be scrubbed.
    Dirty {
        error: StepError,
        entry: Option<Arc<Entry<C>>>,
    },
}

impl<C> Default for Slot<C> {
    fn default() -> Self {
        Self {
            life: Mutex::default(),
            releasing: Mutex::default(),
        }
    }
}

impl<C> Default for Life<C> {
    fn default() -> Self {
        Self {
            gate: Gate::default(),
            state: State::Empty,
            key: None,
        }
    }
}

impl<C> Slot<C> {
    /// The lock. A thread that panicked with it left a state that says how far it was.
    pub(super) fn lock(&self) -> MutexGuard<'_, Life<C>> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, unless another thread has it.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Life<C>>> {
        match self.life.try_lock() {
            Ok(life) => Some(life),
            Err(TryLockError::Poisoned(life)) => Some(life.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<C> Life<C> {
    /// The binding in use, if the order is not for an older one.
    pub(super) fn live(&self, generation: Generation) -> Option<&Arc<Entry<C>>> {
        match &self.state {
            State::Live(entry) if self.gate.admits(generation) => Some(entry),
            _ => None,
        }
    }

    /// The binding that is cut and of which something is still under way.
    pub(super) fn still_busy(&self) -> Option<Arc<Entry<C>>>
    where
        C: Content,
    {
        match &self.state {
            State::Cut { entry, .. } if !entry.content.is_quiet() => Some(Arc::clone(entry)),
            _ => None,
        }
    }
}
