//! Which generation of which lease may still open access.
//!
//! A lease has two locks. `gate` is held while a link to a port is made, and by a cut as long as it goes
//! on; so nothing opens behind a cut, and a cut waits for one link at most. `work` keeps what makes and
//! removes the lease's objects apart, which may take seconds; a cut never wants it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_wire::{Generation, LeaseId};

use super::{Export, cut::Severed};

/// Leases of which nothing is left that are remembered, so that a straggling order for one makes nothing.
const GONE: usize = 16_384;

/// One lease.
#[derive(Debug, Default)]
pub(super) struct Slot {
    gate: Mutex<Gate>,
    work: Mutex<Option<Export>>,
}

/// What may still be done.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Of the newest export that was begun.
    begun: Option<Generation>,
    /// Up to this one nothing opens access any more.
    cut_through: Option<Generation>,
    removed: bool,
    /// Access has ended, and that is not proved yet.
    pub(super) severed: Option<Severed>,
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

impl Gate {
    /// Whether the generation may begin; the ones before it are over then.
    pub(super) fn begin(&mut self, generation: Generation) -> bool {
        let may = self.is_open(generation);
        if may {
            self.begun = Some(generation);
            self.severed = None;
        }
        may
    }

    /// Whether the generation may open access now.
    pub(super) fn is_open(&self, generation: Generation) -> bool {
        let newer = self.begun > Some(generation);
        !(newer || self.removed || self.cut_through >= Some(generation))
    }

    /// A cut begins. `Err`: the lease has moved on to this generation, which it must not touch.
    pub(super) fn begin_cut(&mut self, generation: Generation) -> Result<(), Generation> {
        self.cut_through = self.cut_through.max(Some(generation));
        match self.begun {
            Some(newer) if newer > generation => Err(newer),
            _ => Ok(()),
        }
    }
}

impl Slot {
    pub(super) fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was last exported is what it guards.
    pub(super) fn work(&self) -> MutexGuard<'_, Option<Export>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing of the lease is made any more.
    pub(super) fn begin_removal(&self) {
        self.gate().removed = true;
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

    const G1: Generation = Generation(1);
    const G2: Generation = Generation(2);

    #[test]
    fn nothing_opens_behind_a_cut_of_the_same_or_a_newer_generation() {
        let mut gate = Gate::default();
        assert!(gate.begin(G1) && gate.is_open(G1));
        assert_eq!(gate.begin_cut(G1), Ok(()));
        assert!(!gate.is_open(G1) && !gate.begin(G1));
        assert!(gate.begin(G2) && gate.is_open(G2), "renewed in grace");
        let mut early = Gate::default();
        assert_eq!(early.begin_cut(G2), Ok(()));
        assert!(!early.begin(G1) && !early.begin(G2));
    }

    #[test]
    fn an_older_order_does_not_touch_a_newer_export() {
        let mut gate = Gate::default();
        assert!(gate.begin(G2));
        assert_eq!(gate.begin_cut(G1), Err(G2));
        assert!(gate.is_open(G2) && !gate.begin(G1));
    }

    #[test]
    fn a_removed_lease_does_not_come_back_and_is_forgotten_in_the_end() {
        let slots = Slots::default();
        let first = slots.of(LeaseId(0));
        first.begin_removal();
        assert!(!slots.of(LeaseId(0)).gate().begin(G1));
        for lease in 0..GONE as u128 + 1 {
            slots.of(LeaseId(lease));
            slots.forget_later(LeaseId(lease));
        }
        assert_eq!(slots.lock().slots.len(), GONE);
    }
}
