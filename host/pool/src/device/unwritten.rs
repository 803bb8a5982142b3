//! The unwritten parts of a device. They were never leased and contain data from before the pool, so they are zeroed
//! before a lease gets them. All other parts are zeros, or belong to a lease and are wiped at its end.
//!
//! The record has only one number, so it never grows: all bytes from this offset on count as unwritten. Extents beyond
//! this offset that were zeroed are remembered in memory only; after a restart they are zeroed once more.

use std::collections::BTreeMap;

use fabricbios_lease::Extent;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unwritten {
    from: u64,
    /// Zeroed extents beyond `from`: start to end.
    touched: BTreeMap<u64, u64>,
}

impl Unwritten {
    pub(crate) fn new(from: u64) -> Self {
        Self {
            from,
            touched: BTreeMap::new(),
        }
    }

    /// All bytes before this offset were leased at some time. Never decreases.
    pub(crate) fn from(&self) -> u64 {
        self.from
    }

    /// The unwritten parts of `extent`, in order.
    pub(crate) fn within(&self, extent: Extent) -> Vec<Extent> {
        let mut at = extent.offset.max(self.from);
        let mut found = Vec::new();
        for (&start, &end) in self.touched.range(..extent.end()) {
            push(&mut found, at, start.min(extent.end()));
            at = at.max(end);
        }
        push(&mut found, at, extent.end());
        found
    }

    /// Records that `extent` is no longer unwritten.
    pub(crate) fn touch(&mut self, extent: Extent) {
        for stretch in self.within(extent) {
            self.touched.insert(stretch.offset, stretch.end());
        }
        while let Some(end) = self.touched.remove(&self.from) {
            self.from = end;
        }
    }
}

fn push(found: &mut Vec<Extent>, offset: u64, end: u64) {
    if offset < end {
        let length = end - offset;
        found.push(Extent { offset, length });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extent(offset: u64, end: u64) -> Extent {
        Extent {
            offset,
            length: end - offset,
        }
    }

    #[test]
    fn the_record_moves_over_what_was_given_out_without_a_gap() {
        let mut unwritten = Unwritten::new(10);
        unwritten.touch(extent(20, 30));
        assert_eq!(unwritten.from(), 10);
        unwritten.touch(extent(10, 20));
        assert_eq!(unwritten.from(), 30);
    }

    #[test]
    fn only_what_was_never_given_out_is_zeroed() {
        let mut unwritten = Unwritten::new(10);
        unwritten.touch(extent(20, 30));
        assert_eq!(unwritten.within(extent(0, 10)), []);
        assert_eq!(unwritten.within(extent(5, 15)), [extent(10, 15)]);
        assert_eq!(
            unwritten.within(extent(0, 40)),
            [extent(10, 20), extent(30, 40)]
        );
        assert_eq!(unwritten.within(extent(22, 28)), []);
    }

    proptest! {
        #[test]
        fn it_is_the_set_that_it_stands_for(
            from in 0u64..50,
            touched in proptest::collection::vec((0u64..60, 1u64..20), 0..12),
            asked in (0u64..80, 1u64..30),
        ) {
            let mut unwritten = Unwritten::new(from);
            let mut is_unwritten: Vec<bool> = (0..200).map(|at| at >= from).collect();
            for (offset, length) in touched {
                unwritten.touch(Extent { offset, length });
                for at in offset..offset + length {
                    is_unwritten[usize::try_from(at).unwrap()] = false;
                }
            }
            let asked = extent(asked.0, asked.0 + asked.1);
            let found = unwritten.within(asked);
            for at in asked.offset..asked.end() {
                let told = found.iter().any(|one| one.overlaps(extent(at, at + 1)));
                prop_assert_eq!(told, is_unwritten[usize::try_from(at).unwrap()], "{}", at);
            }
            prop_assert!(is_unwritten[..usize::try_from(unwritten.from()).unwrap()].iter().all(|&v| !v));
        }
    }
}
