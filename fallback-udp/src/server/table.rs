//! Which leases this backend has orders for, and which bytes they hold.
//!
//! Its lock is held for look-ups only, never while a slot's lock is wanted: no lease waits here for
//! another.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_lease::Extent;
use fabricbios_wire::LeaseId;

use super::life::Slot;

/// Released leases that are remembered. An order for one of them is a straggler from before its
/// release and does nothing; this many releases later no thread still carries such an order.
const RELEASED: usize = 16_384;

#[derive(Debug)]
pub(super) struct Table<C> {
    inner: Mutex<Inner<C>>,
}

#[derive(Debug)]
struct Inner<C> {
    slots: HashMap<LeaseId, (Arc<Slot<C>>, Option<Extent>)>,
    /// What leases hold, by first byte; no two of them overlap.
    held: BTreeMap<u64, (Extent, LeaseId)>,
    released: HashSet<LeaseId>,
    released_order: VecDeque<LeaseId>,
}

/// What is known of a lease.
#[derive(Debug)]
pub(super) enum Known<C> {
    /// Bound or cut here, and not released.
    Slot(Arc<Slot<C>>),
    /// Released before.
    Released,
    /// Never heard of.
    No,
}

/// Why a lease cannot have some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotFree {
    /// This lease has some of them.
    HeldBy(LeaseId),
    /// The lease was bound to other bytes before.
    HasOthers,
}

impl<C> Default for Table<C> {
    fn default() -> Self {
        Self {
            inner: Mutex::default(),
        }
    }
}

impl<C> Default for Inner<C> {
    fn default() -> Self {
        Self {
            slots: HashMap::new(),
            held: BTreeMap::new(),
            released: HashSet::new(),
            released_order: VecDeque::new(),
        }
    }
}

impl<C> Table<C> {
    pub(super) fn find(&self, lease: LeaseId) -> Known<C> {
        let inner = self.lock();
        match inner.slots.get(&lease) {
            Some((slot, _)) => Known::Slot(Arc::clone(slot)),
            None if inner.released.contains(&lease) => Known::Released,
            None => Known::No,
        }
    }

    /// The slot of a lease, made if need be. `None`: it was released before.
    pub(super) fn find_or_make(&self, lease: LeaseId) -> Option<Arc<Slot<C>>> {
        let mut inner = self.lock();
        if inner.released.contains(&lease) {
            return None;
        }
        Some(Arc::clone(&inner.slots.entry(lease).or_default().0))
    }

    /// The slot of a lease, made if need be, which holds these bytes from now on. `None`: it was
    /// released before. `Err` says why it cannot have the bytes.
    pub(super) fn claim(
        &self,
        lease: LeaseId,
        extent: Extent,
    ) -> Result<Option<Arc<Slot<C>>>, NotFree> {
        let mut inner = self.lock();
        if inner.released.contains(&lease) {
            return Ok(None);
        }
        if let Some(other) = inner.holder_besides(lease, extent) {
            return Err(NotFree::HeldBy(other));
        }
        let (slot, held) = inner.slots.entry(lease).or_default();
        if *held.get_or_insert(extent) != extent {
            return Err(NotFree::HasOthers);
        }
        let slot = Arc::clone(slot);
        inner.held.insert(extent.offset, (extent, lease));
        Ok(Some(slot))
    }

    /// Which bytes a lease holds.
    pub(super) fn held_by(&self, lease: LeaseId) -> Option<Extent> {
        self.lock().slots.get(&lease).and_then(|(_, held)| *held)
    }

    /// Another lease that holds some of the bytes.
    pub(super) fn holder_besides(&self, lease: LeaseId, extent: Extent) -> Option<LeaseId> {
        self.lock().holder_besides(lease, extent)
    }

    /// Takes out a lease that is over.
    pub(super) fn released(&self, lease: LeaseId) {
        let mut inner = self.lock();
        if let Some((_, Some(extent))) = inner.slots.remove(&lease) {
            inner.held.remove(&extent.offset);
        }
        if inner.released.insert(lease) {
            inner.released_order.push_back(lease);
        }
        if inner.released_order.len() > RELEASED
            && let Some(oldest) = inner.released_order.pop_front()
        {
            inner.released.remove(&oldest);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<C>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> Inner<C> {
    /// Extents that do not overlap end in the order in which they start.
    fn holder_besides(&self, lease: LeaseId, extent: Extent) -> Option<LeaseId> {
        let before_end = self.held.range(..extent.end()).rev();
        before_end
            .map(|(_, held)| held)
            .take_while(|(held, _)| held.overlaps(extent))
            .find(|(_, holder)| *holder != lease)
            .map(|(_, holder)| *holder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LeaseId = LeaseId(1);
    const B: LeaseId = LeaseId(2);

    fn page(number: u64) -> Extent {
        pages(number, 1)
    }

    fn pages(first: u64, count: u64) -> Extent {
        Extent {
            offset: first * 4096,
            length: count * 4096,
        }
    }

    #[test]
    fn bytes_belong_to_one_lease_until_it_is_released() {
        let table = Table::<()>::default();
        assert!(table.claim(A, page(0)).unwrap().is_some());
        assert!(table.claim(A, page(0)).unwrap().is_some(), "again");
        assert_eq!(table.claim(A, page(1)).err(), Some(NotFree::HasOthers));
        assert_eq!(table.claim(B, page(0)).err(), Some(NotFree::HeldBy(A)));
        assert!(matches!(table.find(B), Known::No), "nothing is left of it");
        table.released(A);
        assert!(table.claim(B, page(0)).unwrap().is_some());
    }

    #[test]
    fn every_overlap_is_found_and_no_neighbour() {
        let table = Table::<()>::default();
        for (lease, extent) in [(A, pages(2, 4)), (B, pages(8, 1))] {
            assert!(table.claim(lease, extent).unwrap().is_some());
        }
        let holder = |extent| table.holder_besides(LeaseId(9), extent);
        for inside in [pages(0, 3), pages(3, 1), pages(5, 2), pages(0, 7)] {
            assert_eq!(holder(inside), Some(A), "{inside:?}");
        }
        assert_eq!(holder(pages(8, 9)), Some(B));
        for outside in [pages(0, 2), pages(6, 2), pages(9, 9)] {
            assert_eq!(holder(outside), None, "{outside:?}");
        }
        assert_eq!(table.holder_besides(B, pages(5, 4)), Some(A), "not itself");
        assert_eq!(table.holder_besides(A, pages(2, 4)), None, "its own");
        table.released(A);
        assert_eq!(holder(pages(0, 8)), None, "free again");
        assert_eq!(holder(pages(0, 9)), Some(B), "the other one is not");
    }

    #[test]
    fn a_released_lease_does_not_come_back() {
        let table = Table::<()>::default();
        assert!(table.find_or_make(A).is_some());
        table.released(A);
        assert!(table.find_or_make(A).is_none());
        assert!(table.claim(A, page(0)).unwrap().is_none());
        assert!(matches!(table.find(A), Known::Released));
    }

    #[test]
    fn what_is_remembered_of_released_leases_is_bounded() {
        let table = Table::<()>::default();
        for lease in 0..RELEASED as u128 + 10 {
            table.released(LeaseId(lease));
        }
        assert_eq!(table.lock().released.len(), RELEASED);
        assert!(matches!(table.find(LeaseId(0)), Known::No));
        assert!(matches!(table.find(LeaseId(10)), Known::Released));
    }
}
