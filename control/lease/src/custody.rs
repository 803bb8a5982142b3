//! The part of one store (an arena, a pool) that each lease holds, and the leases that were released.
//!
//! Invariants:
//! - **disjoint**: no two leases hold the same position.
//! - **steady**: a lease that holds a part gets no other part.
//! - **clean**: a part is free only after its lease was released or forgotten. The store calls either only when the
//!   part is clean, or if the lease never used it.
//! - **released**: a released lease holds no part. An order for it is late: another lease may have its part.
//!
//! `T` is the note that the store keeps for each lease; for a lock or a state, use a shared pointer.

use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    vec::Vec,
};
use core::fmt;

use fabricbios_wire::LeaseId;

use crate::Extent;

/// How many released leases are remembered: after this many releases no thread still has an old order.
const RELEASED: usize = 65_536;

/// See the module.
#[derive(Clone, Debug)]
pub struct Custody<T> {
    leases: BTreeMap<LeaseId, Entry<T>>,
    /// The held parts, by first position.
    held: BTreeMap<u64, (Extent, LeaseId)>,
    released: BTreeSet<LeaseId>,
    /// The released leases, oldest first.
    in_order: VecDeque<LeaseId>,
}

#[derive(Clone, Debug, Default)]
struct Entry<T> {
    note: T,
    extent: Option<Extent>,
}

/// The state of a lease in the custody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup<T> {
    /// The lease has an entry, with this note.
    Here(T),
    /// The lease was released.
    Released,
    /// Unknown, or forgotten.
    Unknown,
}

impl<T> Lookup<T> {
    /// The note of a lease that has an entry.
    pub fn here(self) -> Option<T> {
        match self {
            Self::Here(note) => Some(note),
            Self::Released | Self::Unknown => None,
        }
    }
}

/// Why a lease cannot have or clean a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFree {
    /// The lease was released before.
    Released,
    /// Another lease holds this part, which overlaps.
    HeldBy(LeaseId, Extent),
    /// The lease holds this part.
    HoldsOther(Extent),
}

impl<T> Default for Custody<T> {
    fn default() -> Self {
        Self {
            leases: BTreeMap::new(),
            held: BTreeMap::new(),
            released: BTreeSet::new(),
            in_order: VecDeque::new(),
        }
    }
}

impl<T: Clone + Default> Custody<T> {
    /// The state of a lease in the custody.
    #[must_use]
    pub fn find(&self, lease: LeaseId) -> Lookup<T> {
        match self.leases.get(&lease) {
            Some(entry) => Lookup::Here(entry.note.clone()),
            None if self.released.contains(&lease) => Lookup::Released,
            None => Lookup::Unknown,
        }
    }

    /// The note of a lease, made if needed. `None`: the lease was released.
    pub fn find_or_make(&mut self, lease: LeaseId) -> Option<T> {
        let is_over = self.released.contains(&lease);
        (!is_over).then(|| self.leases.entry(lease).or_default().note.clone())
    }

    /// Gives a part to a lease and makes the entry if needed. A repeated call is harmless.
    ///
    /// # Errors
    /// Those of [`Custody::check`]; nothing has changed then.
    pub fn claim(&mut self, lease: LeaseId, extent: Extent) -> Result<T, NotFree> {
        self.check(lease, extent)?;
        self.held.insert(extent.offset, (extent, lease));
        let entry = self.leases.entry(lease).or_default();
        entry.extent = Some(extent);
        Ok(entry.note.clone())
    }

    /// Checks that a lease may have a part, or may clean the part that it gives back.
    ///
    /// # Errors
    /// The lease was released or holds another part, or another lease holds an overlapping part.
    pub fn check(&self, lease: LeaseId, extent: Extent) -> Result<(), NotFree> {
        if self.released.contains(&lease) {
            return Err(NotFree::Released);
        }
        if let Some(other) = self.extent_of(lease).filter(|it| *it != extent) {
            return Err(NotFree::HoldsOther(other));
        }
        // Parts that do not overlap end in the order in which they start.
        let before_end = self.held.range(..extent.end()).rev();
        let mut overlapping = before_end
            .map(|(_, held)| held)
            .take_while(|(held, _)| held.overlaps(extent));
        match overlapping.find(|(_, holder)| *holder != lease) {
            Some((held, holder)) => Err(NotFree::HeldBy(*holder, *held)),
            None => Ok(()),
        }
    }

    /// The part that a lease holds.
    #[must_use]
    pub fn extent_of(&self, lease: LeaseId) -> Option<Extent> {
        self.leases.get(&lease).and_then(|entry| entry.extent)
    }

    /// All leases with an entry.
    #[must_use]
    pub fn all(&self) -> Vec<(LeaseId, T)> {
        let notes = self.leases.iter();
        notes
            .map(|(lease, entry)| (*lease, entry.note.clone()))
            .collect()
    }

    /// Removes the entry of a lease. The lease may come again.
    pub fn forget(&mut self, lease: LeaseId) {
        if let Some(Some(extent)) = self.leases.remove(&lease).map(|entry| entry.extent) {
            self.held.remove(&extent.offset);
        }
    }

    /// Marks a lease as over and its part as clean. The lease does not come again.
    pub fn release(&mut self, lease: LeaseId) {
        self.forget(lease);
        if self.released.insert(lease) {
            self.in_order.push_back(lease);
        }
        if self.in_order.len() > RELEASED
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.released.remove(&oldest);
        }
    }
}

impl fmt::Display for NotFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released => f.write_str("the lease was released before"),
            Self::HeldBy(lease, extent) => write!(f, "it overlaps {extent:?} of lease {lease}"),
            Self::HoldsOther(extent) => write!(f, "it has {extent:?}"),
        }
    }
}

#[cfg(test)]
mod tests;
