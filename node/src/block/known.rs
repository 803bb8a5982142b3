//! What this process knows of a lease of blocks, as long as it holds something.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabricbios_lease::Custody;
use fabricbios_wire::{Limits, NvmeofBinding, Transport};

use super::BlockBackend;

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

impl BlockBackend {
    /// Which leases have an entry and which were released. Held for a look-up, never while an entry's lock
    /// is wanted.
    pub(super) fn custody(&self) -> MutexGuard<'_, Custody<Entry>> {
        // Nothing panics with the lock held.
        self.custody.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn lock(entry: &Mutex<Lease>) -> MutexGuard<'_, Lease> {
    // Its fields are notes; whoever panicked left them whole.
    entry.lock().unwrap_or_else(PoisonError::into_inner)
}
