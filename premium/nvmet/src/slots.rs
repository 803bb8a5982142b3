//! Which generation of which lease may still open access.
//!
//! A lease has two locks. That of its gate is held while a link to a port is made, and by a cut while it
//! unlinks; so nothing opens behind a cut, and a cut waits for one link at most. `work` keeps what makes and
//! removes the lease's objects apart, which may take seconds; a cut never wants it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_lease::Gate;
use fabricbios_wire::{Generation, LeaseId};

use super::Export;

/// Leases of which nothing is left that are remembered, so that a straggling order for one makes nothing.
const GONE: usize = 16_384;

/// One lease.
#[derive(Debug, Default)]
pub(super) struct Slot {
    gate: Mutex<Gate>,
    work: Mutex<Option<Export>>,
}

#[derive(Debug, Default)]
pub(super) struct Slots {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    slots: HashMap<LeaseId, Arc<Slot>>,
    gone: VecDeque<LeaseId>,
}

impl Slot {
    pub(super) fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing of this generation gives access any more, as far as that is known without waiting: whoever has
    /// the gate now says it when it is done.
    pub(super) fn is_over(&self, generation: Generation) -> bool {
        let gate = self.gate.try_lock();
        gate.is_ok_and(|gate| gate.is_over(generation))
    }

    /// What was last exported is what it guards.
    pub(super) fn work(&self) -> MutexGuard<'_, Option<Export>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    /// The slot of a lease, made if need be.
    pub(super) fn of(&self, lease: LeaseId) -> Arc<Slot> {
        Arc::clone(self.lock().slots.entry(lease).or_default())
    }

    /// Nothing of the lease is there; what is known of it is forgotten when many others are gone, too.
    pub(super) fn forget_later(&self, lease: LeaseId) {
        let mut inner = self.lock();
        if !inner.gone.contains(&lease) {
            inner.gone.push_back(lease);
        }
        if inner.gone.len() > GONE
            && let Some(oldest) = inner.gone.pop_front()
        {
            inner.slots.remove(&oldest);
        }
    }

    /// There is something of the lease after all.
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
        let slots = Slots::default();
        let first = slots.of(LeaseId(0));
        first.gate().remove();
        assert!(!slots.of(LeaseId(0)).gate().begin(Generation(1)));
        for lease in 0..GONE as u128 + 1 {
            slots.of(LeaseId(lease));
            slots.forget_later(LeaseId(lease));
        }
        assert_eq!(slots.lock().slots.len(), GONE);
    }
}
