//! Units of a resource and the leases on each.

use alloc::{boxed::Box, collections::BTreeMap, vec::Vec};

/// The units that a resource has, and their use.
#[derive(Clone, Debug)]
pub(crate) struct Units {
    /// By number.
    used: BTreeMap<u32, Use>,
    /// How many leases may share one unit.
    sharers: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Alone,
    /// Shared by this many leases; free if 0.
    SharedBy(u32),
    /// Shared by this many leases, one of which left the unit unclean: no other lease gets the unit.
    Fenced(u32),
}

impl Units {
    pub(crate) fn new(numbers: &[u32], sharers: u32) -> Self {
        Self {
            used: numbers.iter().map(|&it| (it, Use::SharedBy(0))).collect(),
            sharers,
        }
    }

    /// How many of them one lease could get.
    pub(crate) fn count(&self, shared: bool) -> u64 {
        let can = self.used.values().filter(|&&it| self.can(it, shared));
        can.count() as u64
    }

    /// Places of a unit; a lease that has a unit alone takes all of them.
    pub(crate) fn places(&self) -> u64 {
        self.sharers.max(1).into()
    }

    /// Places that are free.
    pub(crate) fn free(&self) -> u64 {
        let free = |used: &Use| match *used {
            Use::Alone => 0,
            Use::SharedBy(leases) | Use::Fenced(leases) => {
                self.places().saturating_sub(leases.into())
            }
        };
        self.used.values().map(free).sum()
    }

    fn can(&self, used: Use, shared: bool) -> bool {
        match used {
            Use::SharedBy(0) => !shared || self.sharers > 0,
            Use::SharedBy(leases) => shared && leases < self.sharers,
            Use::Alone | Use::Fenced(_) => false,
        }
    }

    /// Takes `count` units for one lease. Sharing leases get units that are shared already, those with the fewest
    /// leases first, so that free units are left for leases that want them alone.
    pub(crate) fn take(&mut self, count: u64, shared: bool) -> Option<Box<[u32]>> {
        let count = usize::try_from(count).ok().filter(|&count| count > 0)?;
        let can = self.used.iter().filter(|(_, it)| self.can(**it, shared));
        let rank = |used: Use| match used {
            Use::SharedBy(0) | Use::Alone | Use::Fenced(_) => u32::MAX,
            Use::SharedBy(leases) => leases,
        };
        let mut ranked: Vec<(u32, u32)> = can.map(|(&number, &it)| (rank(it), number)).collect();
        ranked.sort_unstable();
        let chosen = ranked.get(..count)?;
        let mut numbers: Box<[u32]> = chosen.iter().map(|&(_, number)| number).collect();
        numbers.sort_unstable();
        self.take_these(&numbers, shared).then_some(numbers)
    }

    /// Takes exactly these units, ascending. `false`: not all of them can be had; no change then. A lease of an earlier
    /// run may have a place of a fenced unit.
    pub(crate) fn take_these(&mut self, numbers: &[u32], shared: bool) -> bool {
        let can = |number| match self.used.get(number) {
            Some(Use::Fenced(leases)) => shared && *leases < self.sharers,
            Some(used) => self.can(*used, shared),
            None => false,
        };
        let ascending = numbers.is_sorted_by(|a, b| a < b);
        if numbers.is_empty() || !ascending || !numbers.iter().all(can) {
            return false;
        }
        for number in numbers {
            if let Some(used) = self.used.get_mut(number) {
                *used = match *used {
                    Use::SharedBy(leases) if shared => Use::SharedBy(leases + 1),
                    Use::Fenced(leases) => Use::Fenced(leases + 1),
                    _ => Use::Alone,
                };
            }
        }
        true
    }

    /// Gives back the units of a lease.
    pub(crate) fn give_back(&mut self, numbers: &[u32]) {
        for number in numbers {
            if let Some(used) = self.used.get_mut(number) {
                *used = match *used {
                    Use::Alone | Use::Fenced(1) => Use::SharedBy(0),
                    Use::SharedBy(leases) => Use::SharedBy(leases.saturating_sub(1)),
                    Use::Fenced(leases) => Use::Fenced(leases.saturating_sub(1)),
                };
            }
        }
    }

    /// The lease that has these units left them unclean.
    pub(crate) fn fence(&mut self, numbers: &[u32]) {
        for number in numbers {
            if let Some(used) = self.used.get_mut(number)
                && let Use::SharedBy(leases) = *used
            {
                *used = Use::Fenced(leases);
            }
        }
    }

    /// All units are clean.
    pub(crate) fn unfence(&mut self) {
        for used in self.used.values_mut() {
            if let Use::Fenced(leases) = *used {
                *used = Use::SharedBy(leases);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const NUMBERS: [u32; 6] = [0, 2, 3, 5, 8, 13];
    const SHARERS: u32 = 2;

    fn units() -> Units {
        Units::new(&NUMBERS, SHARERS)
    }

    #[test]
    fn those_who_share_crowd_together() {
        let mut units = units();
        assert_eq!(units.take(2, true).unwrap()[..], [0, 2]);
        assert_eq!(units.take(2, true).unwrap()[..], [0, 2], "not two others");
        assert_eq!(
            units.take(1, true).unwrap()[..],
            [3],
            "two share the others"
        );
        assert_eq!(units.take(3, false).unwrap()[..], [5, 8, 13]);
        assert_eq!((units.count(false), units.count(true)), (0, 1));
    }

    #[test]
    fn units_that_are_not_there_or_twice_or_somebody_elses_are_not_taken() {
        let mut units = units();
        for numbers in [&[][..], &[1], &[2, 2], &[3, 2], &[0, 99]] {
            assert!(!units.take_these(numbers, false), "{numbers:?}");
        }
        assert!(units.take_these(&[2, 3], false));
        assert!(!units.take_these(&[3, 5], false) && !units.take_these(&[3], true));
        assert_eq!(
            units.count(false),
            4,
            "nothing of what was refused is taken"
        );
        assert_eq!((units.take(0, true), units.take(5, false)), (None, None));
        assert_eq!(units.take(u64::MAX, false), None);
    }

    proptest! {
        /// A unit has one exclusive lease or up to the allowed number of sharing leases; all units are free in the
        /// end.
        #[test]
        fn nobody_is_on_a_unit_that_is_somebody_elses_alone(
            steps in prop::collection::vec((any::<bool>(), any::<bool>(), 0usize..8), 1..100),
        ) {
            let mut units = units();
            let mut held: Vec<(Box<[u32]>, bool)> = Vec::new();
            for (take, shared, n) in steps {
                if take || held.is_empty() {
                    let can = units.count(shared);
                    let got = units.take(n as u64, shared);
                    prop_assert_eq!(got.is_some(), n > 0 && n as u64 <= can);
                    held.extend(got.map(|numbers| (numbers, shared)));
                } else {
                    let (numbers, _) = held.swap_remove(n % held.len());
                    units.give_back(&numbers);
                }
                for number in NUMBERS {
                    let on = || held.iter().filter(|(numbers, _)| numbers.contains(&number));
                    let alone = on().filter(|(_, shared)| !shared).count();
                    prop_assert!(alone == 0 || on().count() == 1);
                    prop_assert!(on().count() <= SHARERS as usize);
                }
            }
            held.drain(..).for_each(|(numbers, _)| units.give_back(&numbers));
            prop_assert_eq!(units.count(false), NUMBERS.len() as u64);
        }
    }
}
