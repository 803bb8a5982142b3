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

use fabricbios_lease::StepError;
use fabricbios_wire::{DpKey, Generation};

use super::entry::Entry;

/// One lease.
#[derive(Debug, Default)]
pub(super) struct Slot {
    life: Mutex<Life>,
    /// Held while a release is under way; another one waits for it and finds it done.
    pub(super) releasing: Mutex<()>,
}

/// What the lock guards.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// Of the newest order that bound or rotated.
    pub(super) generation: Option<Generation>,
    /// Bindings up to this one must not open access any more.
    pub(super) cut_through: Option<Generation>,
    pub(super) state: State,
    /// The newest key of the binding in use, to be told again.
    pub(super) key: Option<DpKey>,
}

#[derive(Debug, Default)]
pub(super) enum State {
    /// Never bound.
    #[default]
    Empty,
    /// In use.
    Live(Arc<Entry>),
    /// Proven unreachable.
    Cut { proof: String, entry: Arc<Entry> },
    /// Could not be proven unreachable.
    Failed { error: StepError, entry: Arc<Entry> },
    /// A thread is scrubbing.
    Releasing(Option<Arc<Entry>>),
    /// Unreachable, but could not be scrubbed.
    Dirty {
        error: StepError,
        entry: Option<Arc<Entry>>,
    },
    /// Released; the slot is on its way out of the table.
    Gone,
}

impl Slot {
    /// The lock. A thread that panicked with it left a state that says how far it was.
    pub(super) fn lock(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Life {
    /// Whether the lease has a binding, or had one, that is newer.
    pub(super) fn is_past(&self, generation: Generation) -> bool {
        self.generation > Some(generation)
    }

    /// Whether a cut has come for this binding.
    pub(super) fn is_cut(&self, generation: Generation) -> bool {
        self.cut_through >= Some(generation)
    }

    /// The binding in use, if the order is not for an older one.
    pub(super) fn live(&self, generation: Generation) -> Option<&Arc<Entry>> {
        match &self.state {
            State::Live(entry) if !self.is_past(generation) && !self.is_cut(generation) => {
                Some(entry)
            }
            _ => None,
        }
    }
}
