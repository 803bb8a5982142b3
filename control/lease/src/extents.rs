//! Sub-allocation of one resource: which stretches are free.
//!
//! Best fit over two ordered views of the same free stretches, so that taking and giving back are O(log n). A stretch
//! is never given to two leases. Only the table gives stretches back, and only those that it took.

use alloc::collections::{BTreeMap, BTreeSet};

use crate::Extent;

/// The free stretches of a resource.
#[derive(Clone, Debug)]
pub(crate) struct Extents {
    align: u64,
    /// The most that one lease can get.
    most: u64,
    by_offset: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
    free: u64,
}

impl Extents {
    /// Everything free. `align` is not 0; a tail shorter than `align` is never used.
    pub(crate) fn new(capacity: u64, align: u64, most: u64) -> Self {
        let mut extents = Self {
            align,
            most,
            by_offset: BTreeMap::new(),
            by_length: BTreeSet::new(),
            free: 0,
        };
        extents.insert(0, capacity - capacity % align);
        extents
    }

    /// The most that one lease could get: the longest free stretch, but not more than one lease can get.
    pub(crate) fn longest(&self) -> u64 {
        let longest = self.by_length.last().map_or(0, |&(length, _)| length);
        longest.min(self.most)
    }

    /// How much is free.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Takes the length asked for, rounded up to the alignment, from the shortest stretch that is long
    /// enough.
    pub(crate) fn take(&mut self, length: u64) -> Option<Extent> {
        let reserved = rounded(length, self.align).filter(|it| *it <= self.most)?;
        let &(found, offset) = self.by_length.range((reserved, 0)..).next()?;
        self.remove(offset, found);
        self.insert(offset + reserved, found - reserved);
        Some(Extent {
            offset,
            length: reserved,
        })
    }

    /// Takes exactly these positions. `false`: they are not all free or not aligned, and nothing has changed.
    pub(crate) fn take_this(&mut self, wanted: Extent) -> bool {
        let aligned =
            wanted.offset.is_multiple_of(self.align) && wanted.length.is_multiple_of(self.align);
        if wanted.length == 0 || wanted.length > self.most || !aligned {
            return false;
        }
        let Some((&offset, &length)) = self.by_offset.range(..=wanted.offset).next_back() else {
            return false;
        };
        let end = offset + length;
        if wanted.end() > end {
            return false;
        }
        self.remove(offset, length);
        self.insert(offset, wanted.offset - offset);
        self.insert(wanted.end(), end - wanted.end());
        true
    }

    /// Gives back what was taken.
    pub(crate) fn give_back(&mut self, extent: Extent) {
        let (mut start, mut end) = (extent.offset, extent.end());
        if let Some((&before, &its)) = self.by_offset.range(..start).next_back()
            && before + its == start
        {
            self.remove(before, its);
            start = before;
        }
        if let Some(&its) = self.by_offset.get(&end) {
            self.remove(end, its);
            end += its;
        }
        self.insert(start, end - start);
    }

    fn insert(&mut self, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        self.by_offset.insert(offset, length);
        self.by_length.insert((length, offset));
        self.free += length;
    }

    fn remove(&mut self, offset: u64, length: u64) {
        self.by_offset.remove(&offset);
        self.by_length.remove(&(length, offset));
        self.free -= length;
    }
}

/// The amount, rounded up to the alignment; `None` if it is 0 or overflows.
pub(crate) fn rounded(amount: u64, align: u64) -> Option<u64> {
    let rounded = amount.checked_next_multiple_of(align);
    rounded.filter(|&rounded| rounded > 0)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_and_too_much_are_refused() {
        let mut extents = Extents::new(8192, 4096, u64::MAX);
        assert_eq!(extents.take(0), None);
        assert_eq!(extents.take(8193), None);
        assert_eq!(extents.take(u64::MAX), None, "rounding up must not wrap");
        assert_eq!(extents.longest(), 8192);
    }

    #[test]
    fn a_gap_between_two_neighbours_heals() {
        let mut extents = Extents::new(3 * 4096, 4096, u64::MAX);
        let taken: Vec<_> = (0..3).map(|_| extents.take(1).expect("room")).collect();
        assert_eq!(extents.longest(), 0);
        extents.give_back(taken[0]);
        extents.give_back(taken[2]);
        assert_eq!(extents.longest(), 4096);
        extents.give_back(taken[1]);
        assert_eq!(extents.longest(), 3 * 4096);
    }

    proptest! {
        /// No byte is taken twice, no byte is outside of the resource, and every byte is free in the end.
        #[test]
        fn handed_out_stretches_are_disjoint(steps in prop::collection::vec((any::<bool>(), 1u64..40_000), 1..200)) {
            let mut extents = Extents::new(1 << 18, 4096, u64::MAX);
            let mut held: Vec<Extent> = Vec::new();
            for (take, n) in steps {
                if take || held.is_empty() {
                    if let Some(got) = extents.take(n) {
                        prop_assert!(got.end() <= 1 << 18);
                        prop_assert!(held.iter().all(|other| !other.overlaps(got)));
                        held.push(got);
                    }
                } else {
                    let index = usize::try_from(n).unwrap() % held.len();
                    extents.give_back(held.swap_remove(index));
                }
            }
            held.drain(..).for_each(|extent| extents.give_back(extent));
            prop_assert_eq!(extents.longest(), 1 << 18);
        }
    }
}
