//! The state of each lease's binding: which generation may still open access.
//!
//! Each lease has two locks. The lock of the gate is held while a port is linked, and by a cut while it unlinks: so
//! no link follows a cut, and a cut waits for one link at most. The lock `work` keeps apart the calls that make and
//! remove the objects of the lease, which may take seconds; a cut never takes it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_lease::Gate;
use fabricbios_wire::{Generation, LeaseId};

use super::Export;

/// Most leases without objects that are remembered, so that a late order for one makes nothing.
const REMEMBERED: usize = 16_384;

/// The binding of one lease.
#[derive(Debug, Default)]
pub(super) struct BindingState {
    gate: Mutex<Gate>,
    work: Mutex<Option<Export>>,
}

#[derive(Debug, Default)]
pub(super) struct BindingStates {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    states: HashMap<LeaseId, Arc<BindingState>>,
    gone: VecDeque<LeaseId>,
}

impl BindingState {
    pub(super) fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this generation gives no access any more. `false` if another thread has the lock of the gate: that
    /// thread reports the result itself.
    pub(super) fn is_closed(&self, generation: Generation) -> bool {
        let gate = self.gate.try_lock();
        gate.is_ok_and(|gate| gate.is_closed(generation))
    }

    /// Locks the last export.
    pub(super) fn work(&self) -> MutexGuard<'_, Option<Export>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BindingStates {
    /// The state of a lease, made if need be.
    pub(super) fn get_or_make(&self, lease: LeaseId) -> Arc<BindingState> {
        Arc::clone(self.lock().states.entry(lease).or_default())
    }

    /// The lease has no objects. Its state is forgotten after those of [`REMEMBERED`] others.
    pub(super) fn forget_later(&self, lease: LeaseId) {
        let mut inner = self.lock();
        if !inner.gone.contains(&lease) {
            inner.gone.push_back(lease);
        }
        if inner.gone.len() > REMEMBERED
            && let Some(oldest) = inner.gone.pop_front()
        {
            inner.states.remove(&oldest);
        }
    }

    /// The lease has objects again.
    pub(super) fn keep(&self, lease: LeaseId) {
        self.lock().gone.retain(|gone| *gone != lease);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_lease_does_not_come_back_and_is_forgotten_in_the_end() {
        let states = BindingStates::default();
        let first = states.get_or_make(LeaseId(0));
        first.gate().remove();
        assert!(!states.get_or_make(LeaseId(0)).gate().begin(Generation(1)));
        for lease in 0..REMEMBERED as u128 + 1 {
            states.get_or_make(LeaseId(lease));
            states.forget_later(LeaseId(lease));
        }
        assert_eq!(states.lock().states.len(), REMEMBERED);
    }
}
