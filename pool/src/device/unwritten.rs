//! What of a device was never given out: it holds what was there before the pool, and is zeroed before a
//! lease gets it. Everything else is zeros, or a lease's whose end wipes it.
//!
//! Only one number is on record, so that a record never grows: what lies behind it counts as virgin. What
//! was given out beyond it is remembered as long as the process lives; afterwards it is zeroed once more.

use std::collections::BTreeMap;

use fabricbios_lease::Extent;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Virgin {
    from: u64,
    /// Stretches behind `from` that have been given out, by start: their ends.
    touched: BTreeMap<u64, u64>,
}

impl Virgin {
    pub(crate) fn new(from: u64) -> Self {
        Self {
            from,
            touched: BTreeMap::new(),
        }
    }

    /// Everything before this has been given out at some time. Never decreases.
    pub(crate) fn from(&self) -> u64 {
        self.from
    }

    /// The stretches of `extent` that hold what was there before, in order.
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

    /// `extent` is zeros now, durably.
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
        let mut virgin = Virgin::new(10);
        virgin.touch(extent(20, 30));
        assert_eq!(virgin.from(), 10);
        virgin.touch(extent(10, 20));
        assert_eq!(virgin.from(), 30);
    }

    #[test]
    fn only_what_was_never_given_out_is_zeroed() {
        let mut virgin = Virgin::new(10);
        virgin.touch(extent(20, 30));
        assert_eq!(virgin.within(extent(0, 10)), []);
        assert_eq!(virgin.within(extent(5, 15)), [extent(10, 15)]);
        assert_eq!(
            virgin.within(extent(0, 40)),
            [extent(10, 20), extent(30, 40)]
        );
        assert_eq!(virgin.within(extent(22, 28)), []);
    }

    proptest! {
        #[test]
        fn it_is_the_set_that_it_stands_for(
            from in 0u64..50,
            touched in proptest::collection::vec((0u64..60, 1u64..20), 0..12),
            asked in (0u64..80, 1u64..30),
        ) {
            let mut virgin = Virgin::new(from);
            let mut is_virgin: Vec<bool> = (0..200).map(|at| at >= from).collect();
            for (offset, length) in touched {
                virgin.touch(Extent { offset, length });
                for at in offset..offset + length {
                    is_virgin[usize::try_from(at).unwrap()] = false;
                }
            }
            let asked = extent(asked.0, asked.0 + asked.1);
            let found = virgin.within(asked);
            for at in asked.offset..asked.end() {
                let told = found.iter().any(|one| one.overlaps(extent(at, at + 1)));
                prop_assert_eq!(told, is_virgin[usize::try_from(at).unwrap()], "{}", at);
            }
            prop_assert!(is_virgin[..usize::try_from(virgin.from()).unwrap()].iter().all(|&v| !v));
        }
    }
}
