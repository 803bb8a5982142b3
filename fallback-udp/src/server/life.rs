//! The life of one lease's binding: what may follow what.
//!
//! ```text
//! Empty ─► Live ─► Cut ─► Releasing ─► Gone
//!           │ ▲     │         │
//!           │ └─────┘         ▼
//!           └────► Failed   Dirty
//! ```
//!
//! Nothing but a release takes long, so all else happens under the lock; while a release scrubs, the
//! lock is free.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabricbios_lease::{Proof, StepError};
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
    /// Of the newest order that bound or rotated.
    pub(super) generation: Option<Generation>,
    /// Bindings up to this one must not open access any more.
    pub(super) cut_through: Option<Generation>,
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
    /// A thread is scrubbing.
    Releasing(Option<Arc<Entry<C>>>),
    /// Unreachable, but could not be scrubbed.
    Dirty {
        error: StepError,
        entry: Option<Arc<Entry<C>>>,
    },
    /// Released; the slot is on its way out of the table.
    Gone,
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
            generation: None,
            cut_through: None,
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
}

impl<C> Life<C> {
    /// Whether the lease has a binding, or had one, that is newer.
    pub(super) fn is_past(&self, generation: Generation) -> bool {
        self.generation > Some(generation)
    }

    /// Whether a cut has come for this binding.
    pub(super) fn is_cut(&self, generation: Generation) -> bool {
        self.cut_through >= Some(generation)
    }

    /// The binding in use, if the order is not for an older one.
    pub(super) fn live(&self, generation: Generation) -> Option<&Arc<Entry<C>>> {
        match &self.state {
            State::Live(entry) if !self.is_past(generation) && !self.is_cut(generation) => {
                Some(entry)
            }
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
