//! What this process knows of leases of blocks: an entry for each that holds something, and which were
//! released, so that a call that comes late touches nobody else's bytes.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_wire::{LeaseId, Limits, NvmeofBinding, Transport};

/// Leases that are remembered as released. A call that comes later than this many releases after its own
/// has waited for hours.
const REMEMBERED: usize = 65_536;

/// Held locked while the lease's volume is made or taken away.
#[derive(Debug, Default)]
pub(super) struct Lease {
    pub(super) has_volume: bool,
    pub(super) road: Option<Transport>,
    pub(super) nvmeof: Option<Box<NvmeofBinding>>,
    pub(super) limits: Option<Limits>,
}

/// An entry.
pub(super) type Entry = Arc<Mutex<Lease>>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Lists>);

#[derive(Debug, Default)]
struct Lists {
    leases: HashMap<LeaseId, Entry>,
    released: HashSet<LeaseId>,
    in_order: VecDeque<LeaseId>,
}

impl Known {
    fn lists(&self) -> MutexGuard<'_, Lists> {
        // Nothing panics with the lock held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease's own entry, made if need be. None: it was released.
    pub(super) fn entry(&self, id: LeaseId) -> Option<Entry> {
        let mut lists = self.lists();
        let is_over = lists.released.contains(&id);
        (!is_over).then(|| Arc::clone(lists.leases.entry(id).or_default()))
    }

    /// The same, where there is one.
    pub(super) fn find(&self, id: LeaseId) -> Option<Entry> {
        self.lists().leases.get(&id).cloned()
    }

    /// A lease of an earlier run, which has its volume.
    pub(super) fn take_over(&self, id: LeaseId) {
        let lease = Lease {
            has_volume: true,
            ..Lease::default()
        };
        let entry = Arc::new(Mutex::new(lease));
        self.lists().leases.insert(id, entry);
    }

    /// Nothing of it is there, and nobody was told of it.
    pub(super) fn forget(&self, id: LeaseId) {
        self.lists().leases.remove(&id);
    }

    pub(super) fn note_released(&self, id: LeaseId) {
        let mut lists = self.lists();
        lists.leases.remove(&id);
        lists.released.insert(id);
        lists.in_order.push_back(id);
        if lists.in_order.len() > REMEMBERED
            && let Some(oldest) = lists.in_order.pop_front()
        {
            lists.released.remove(&oldest);
        }
    }
}

pub(super) fn lock(entry: &Mutex<Lease>) -> MutexGuard<'_, Lease> {
    // Its fields are notes; whoever panicked left them whole.
    entry.lock().unwrap_or_else(PoisonError::into_inner)
}
