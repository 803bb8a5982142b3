//! Which leases this backend knows, and which bytes they hold.
//!
//! Its lock is held for look-ups only, never while a slot's lock is wanted: no lease waits here
//! for another.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_lease::Extent;
use fabricbios_wire::LeaseId;

use super::{parts::Parts, slot::Slot};

/// Released leases that are remembered. An order for one of them is a straggler from before its
/// release and does nothing; this many releases later no thread still carries such an order.
const RELEASED: usize = 16_384;

#[derive(Debug, Default)]
pub(super) struct Table {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    slots: HashMap<LeaseId, Entry>,
    /// What leases hold, by first byte; no two of them overlap.
    held: BTreeMap<u64, (Extent, LeaseId)>,
    released: HashSet<LeaseId>,
    released_order: VecDeque<LeaseId>,
}

#[derive(Debug)]
struct Entry {
    slot: Arc<Slot<Parts>>,
    extent: Option<Extent>,
}

/// What is known of a lease.
pub(super) enum Known {
    /// Bound or cut here, and not released.
    Slot(Arc<Slot<Parts>>),
    /// Released before.
    Released,
    /// Never heard of.
    No,
}

impl Table {
    pub(super) fn find(&self, lease: LeaseId) -> Known {
        let inner = self.lock();
        match inner.slots.get(&lease) {
            Some(entry) => Known::Slot(Arc::clone(&entry.slot)),
            None if inner.released.contains(&lease) => Known::Released,
            None => Known::No,
        }
    }

    /// The slot of a lease, made if need be.
    pub(super) fn find_or_make(&self, lease: LeaseId) -> Known {
        let mut inner = self.lock();
        if !inner.slots.contains_key(&lease) && inner.released.contains(&lease) {
            return Known::Released;
        }
        let new = || Entry {
            slot: Arc::new(Slot::new()),
            extent: None,
        };
        Known::Slot(Arc::clone(
            &inner.slots.entry(lease).or_insert_with(new).slot,
        ))
    }

    /// Notes which bytes a lease holds; `Err` names another one that holds some of them.
    pub(super) fn claim(&self, lease: LeaseId, extent: Extent) -> Result<(), LeaseId> {
        let mut inner = self.lock();
        inner.holder_besides(lease, extent).map_or(Ok(()), Err)?;
        inner.give_up(lease);
        if let Some(entry) = inner.slots.get_mut(&lease) {
            entry.extent = Some(extent);
            inner.held.insert(extent.offset, (extent, lease));
        }
        Ok(())
    }

    /// Another lease that holds some of the bytes.
    pub(super) fn holder_besides(&self, lease: LeaseId, extent: Extent) -> Option<LeaseId> {
        self.lock().holder_besides(lease, extent)
    }

    /// Takes out the slot of a lease whose bind came to nothing.
    pub(super) fn forget(&self, lease: LeaseId) {
        let mut inner = self.lock();
        inner.give_up(lease);
        inner.slots.remove(&lease);
    }

    /// Takes out a lease that is over.
    pub(super) fn released(&self, lease: LeaseId) {
        let mut inner = self.lock();
        inner.give_up(lease);
        inner.slots.remove(&lease);
        if inner.released.insert(lease) {
            inner.released_order.push_back(lease);
        }
        if inner.released_order.len() > RELEASED
            && let Some(oldest) = inner.released_order.pop_front()
        {
            inner.released.remove(&oldest);
        }
    }

    pub(super) fn all(&self) -> Vec<(LeaseId, Arc<Slot<Parts>>)> {
        let inner = self.lock();
        inner
            .slots
            .iter()
            .map(|(lease, entry)| (*lease, Arc::clone(&entry.slot)))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Extents that do not overlap end in the order in which they start.
    fn holder_besides(&self, lease: LeaseId, extent: Extent) -> Option<LeaseId> {
        let before_end = self.held.range(..extent.end()).rev();
        before_end
            .map(|(_, held)| held)
            .take_while(|(held, _)| held.overlaps(extent))
            .find(|(_, holder)| *holder != lease)
            .map(|(_, holder)| *holder)
    }

    fn give_up(&mut self, lease: LeaseId) {
        if let Some(extent) = self
            .slots
            .get_mut(&lease)
            .and_then(|entry| entry.extent.take())
        {
            self.held.remove(&extent.offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LeaseId = LeaseId(1);
    const B: LeaseId = LeaseId(2);

    fn page(number: u64) -> Extent {
        Extent {
            offset: number * 4096,
            length: 4096,
        }
    }

    #[test]
    fn bytes_belong_to_one_lease_until_it_is_released() {
        let table = Table::default();
        for lease in [A, B] {
            assert!(matches!(table.find_or_make(lease), Known::Slot(_)));
        }
        assert_eq!(table.claim(A, page(0)), Ok(()));
        assert_eq!(table.claim(A, page(0)), Ok(()), "again for the same lease");
        assert_eq!(table.claim(B, page(0)), Err(A));
        assert_eq!(table.claim(B, page(1)), Ok(()));
        table.released(A);
        assert_eq!(table.claim(B, page(0)), Ok(()));
    }

    #[test]
    fn every_overlap_is_found_and_no_neighbour() {
        let table = Table::default();
        let pages = |first: u64, count: u64| Extent {
            offset: first * 4096,
            length: count * 4096,
        };
        for (lease, extent) in [(A, pages(2, 4)), (B, pages(8, 1))] {
            table.find_or_make(lease);
            assert_eq!(table.claim(lease, extent), Ok(()));
        }
        let holder = |extent| table.holder_besides(LeaseId(9), extent);
        for inside in [pages(0, 3), pages(3, 1), pages(5, 2), pages(0, 7)] {
            assert_eq!(holder(inside), Some(A), "{inside:?}");
        }
        assert_eq!(holder(pages(0, 9)), Some(B));
        for outside in [pages(0, 2), pages(6, 2), pages(9, 9)] {
            assert_eq!(holder(outside), None, "{outside:?}");
        }
        assert_eq!(table.holder_besides(A, pages(2, 4)), None, "its own");
        assert_eq!(table.claim(A, pages(0, 1)), Ok(()), "it moves");
        assert_eq!(holder(pages(2, 4)), None);
    }

    #[test]
    fn a_released_lease_does_not_come_back() {
        let table = Table::default();
        assert!(matches!(table.find(A), Known::No));
        table.find_or_make(A);
        table.released(A);
        assert!(matches!(table.find_or_make(A), Known::Released));
        assert!(matches!(table.find(A), Known::Released));
    }

    #[test]
    fn what_is_remembered_of_released_leases_is_bounded() {
        let table = Table::default();
        for lease in 0..RELEASED as u128 + 10 {
            table.released(LeaseId(lease));
        }
        assert_eq!(table.lock().released.len(), RELEASED);
        assert!(matches!(table.find(LeaseId(0)), Known::No));
        assert!(matches!(table.find(LeaseId(10)), Known::Released));
    }
}
