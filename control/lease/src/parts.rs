//! Amounts of the several things that one device has, such as a rate and functions. A lease takes some of each.

use alloc::{boxed::Box, string::String, vec::Vec};

use crate::{Dimension, Quantity, Takes, extents::rounded, room::Explicit};

/// The dimensions of a device, and how much of each is free. Requests are in the first one.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    align: u64,
    parts: Vec<Part>,
}

/// The free amount of one [`Dimension`].
#[derive(Clone, Debug)]
struct Part {
    of: Dimension,
    free: u64,
}

/// A dimension of which less is free than a lease would take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Its name.
    pub name: String,
    /// How much the lease would take.
    pub wanted: u64,
    /// How much is free.
    pub free: u64,
    /// The whole amount.
    pub capacity: u64,
    /// Whether it is the dimension in which requests name their capacity.
    pub is_first: bool,
}

impl Parts {
    /// Everything free. `align` is not 0.
    pub(crate) fn new(dimensions: &[Dimension], align: u64) -> Self {
        let part = |of: &Dimension| Part {
            of: of.clone(),
            free: of.capacity,
        };
        Self {
            align,
            parts: dimensions.iter().map(part).collect(),
        }
    }

    /// The whole amount of the first dimension.
    pub(crate) fn whole(&self) -> u64 {
        self.parts.first().map_or(0, |first| first.of.capacity)
    }

    /// The free amount of the first dimension.
    pub(crate) fn free(&self) -> u64 {
        self.parts.first().map_or(0, |first| first.free)
    }

    /// Whether no lease has anything of it.
    pub(crate) fn is_untouched(&self) -> bool {
        self.parts.iter().all(|part| part.free == part.of.capacity)
    }

    /// The most of the first dimension that one lease could get.
    pub(crate) fn most(&self, explicit: Option<Explicit>) -> u64 {
        if !self.has(explicit) {
            return 0;
        }
        let whole = self.whole();
        let follows = |part: &&Part| !part.is_named(explicit);
        let most = self.parts.iter().filter(follows);
        let most = most.map(|part| part.most(whole)).min().unwrap_or(0);
        most - most % self.align
    }

    /// Whether this much is free of the dimension that is named.
    pub(crate) fn has(&self, explicit: Option<Explicit>) -> bool {
        let suffices = |named: Explicit| {
            let mut parts = self.parts.iter();
            parts.any(|part| part.is_named(explicit) && named.amount <= part.free)
        };
        explicit.is_none_or(suffices)
    }

    /// Takes this much of the first dimension, rounded up to the alignment, and the resulting amounts of the other
    /// dimensions.
    pub(crate) fn take(
        &mut self,
        amount: u64,
        explicit: Option<Explicit>,
    ) -> Option<Box<[Quantity]>> {
        let has = self.has(explicit);
        let wanted = self.wanted(amount, explicit).filter(|_| has)?;
        self.take_these(&wanted).then_some(wanted)
    }

    /// All of every dimension.
    pub(crate) fn all(&self) -> Box<[Quantity]> {
        let all = |part: &Part| part.of.quantity(part.of.capacity);
        self.parts.iter().map(all).collect()
    }

    /// Takes exactly these amounts: all of them, or none (`false`).
    pub(crate) fn take_these(&mut self, wanted: &[Quantity]) -> bool {
        let fits = |(part, wanted): (&Part, &Quantity)| {
            part.of.name == wanted.name && wanted.amount <= part.free
        };
        if self.parts.len() != wanted.len() || !self.parts.iter().zip(wanted).all(fits) {
            return false;
        }
        for (part, wanted) in self.parts.iter_mut().zip(wanted) {
            part.free -= wanted.amount;
        }
        true
    }

    /// Gives back what was taken.
    pub(crate) fn give_back(&mut self, given: &[Quantity]) {
        for (part, given) in self.parts.iter_mut().zip(given) {
            part.free += given.amount;
        }
    }

    /// How much of each dimension is free.
    pub(crate) fn free_dimensions(&self) -> Vec<Quantity> {
        let free = |part: &Part| part.of.quantity(part.free);
        self.parts.iter().map(free).collect()
    }

    /// The dimensions that prevent [`Parts::take`].
    pub(crate) fn shortages(&self, amount: u64, explicit: Option<Explicit>) -> Vec<Shortage> {
        let wanted = self.wanted(amount, explicit).unwrap_or_default();
        let pairs = self.parts.iter().zip(wanted).enumerate();
        let short = pairs.filter(|(_, (part, wanted))| wanted.amount > part.free);
        short
            .map(|(number, (part, wanted))| Shortage {
                name: wanted.name,
                wanted: wanted.amount,
                free: part.free,
                capacity: part.of.capacity,
                is_first: number == 0,
            })
            .collect()
    }

    /// What a lease takes. `None`: it would take more of the first dimension than there is, or nothing.
    fn wanted(&self, amount: u64, explicit: Option<Explicit>) -> Option<Box<[Quantity]>> {
        let (amount, whole) = (rounded(amount, self.align)?, self.whole());
        let wanted = |part: &Part| match explicit.filter(|_| part.is_named(explicit)) {
            Some(named) => Some(part.of.quantity(named.amount)),
            None => part.of.wanted(amount, whole),
        };
        self.parts.iter().map(wanted).collect()
    }
}

impl Part {
    fn is_named(&self, explicit: Option<Explicit>) -> bool {
        explicit.is_some_and(|it| it.dimension == self.of.name)
    }

    /// The largest amount of the first dimension for which this dimension suffices. `whole`: the total of the first
    /// dimension.
    fn most(&self, whole: u64) -> u64 {
        match self.of.takes {
            Takes::Asked => self.free,
            Takes::Each(each) if each <= self.free => u64::MAX,
            Takes::Each(_) => 0,
            Takes::InProportion => scaled(self.free, whole, self.of.capacity, u128::div_euclid),
        }
    }
}

impl Dimension {
    fn quantity(&self, amount: u64) -> Quantity {
        Quantity {
            name: self.name.clone(),
            amount,
        }
    }

    /// The amount that a lease takes of this dimension if it takes `amount` of the first dimension, whose total is
    /// `whole`.
    fn wanted(&self, amount: u64, whole: u64) -> Option<Quantity> {
        let amount = match self.takes {
            Takes::Asked => amount,
            Takes::Each(each) => each,
            Takes::InProportion if amount > whole => return None,
            Takes::InProportion => scaled(amount, self.capacity, whole, u128::div_ceil),
        };
        Some(self.quantity(amount))
    }
}

/// `amount` × `to` / `from`; 0 if `from` is 0.
fn scaled(amount: u64, to: u64, from: u64, divide: fn(u128, u128) -> u128) -> u64 {
    match from {
        0 => 0,
        _ => u64::try_from(divide(u128::from(amount) * u128::from(to), from.into()))
            .unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::vec;

    use super::*;

    pub(crate) fn dimension(name: &str, capacity: u64, takes: Takes) -> Dimension {
        Dimension {
            name: name.into(),
            capacity,
            takes,
        }
    }

    pub(crate) fn amounts(taken: Option<Box<[Quantity]>>) -> Vec<u64> {
        let taken = taken.expect("room");
        taken.iter().map(|it| it.amount).collect()
    }

    /// A port with two virtual functions and a rate: the dimension that is used up first is the limit.
    #[test]
    fn each_part_bounds_a_lease() {
        let port = || {
            let rate = dimension("rate", 100, Takes::Asked);
            Parts::new(&[rate, dimension("vf", 2, Takes::Each(1))], 10)
        };
        let mut of_functions = port();
        assert_eq!(amounts(of_functions.take(15, None)), [20, 1]);
        let second = of_functions.take(10, None).unwrap();
        assert_eq!(
            (of_functions.most(None), of_functions.take(10, None)),
            (0, None)
        );
        of_functions.give_back(&second);
        assert_eq!(of_functions.most(None), 80);
        assert!(of_functions.take_these(&second) && !of_functions.take_these(&second));
        let mut of_rate = port();
        assert_eq!(amounts(of_rate.take(100, None)), [100, 1]);
        assert_eq!(of_rate.take(10, None), None);
    }

    fn memory_and_slices() -> Parts {
        let memory = dimension("vram", 80, Takes::Asked);
        Parts::new(&[memory, dimension("slices", 7, Takes::InProportion)], 1)
    }

    /// Memory of a GPU and its slices: a lease with half of the memory has half of the slices, rounded up.
    #[test]
    fn parts_in_proportion_round_up_for_a_lease_and_down_for_what_is_left() {
        let mut parts = memory_and_slices();
        assert_eq!(amounts(parts.take(40, None)), [40, 4]);
        assert_eq!(parts.most(None), 34);
        assert_eq!(amounts(parts.take(34, None)), [34, 3]);
        assert_eq!((parts.most(None), parts.take(1, None)), (0, None));
        assert_eq!(parts.take(81, None), None);
    }

    #[test]
    fn an_amount_that_is_named_is_taken_instead_of_the_share() {
        let slices = |amount| {
            Some(Explicit {
                dimension: "slices",
                amount,
            })
        };
        let mut parts = memory_and_slices();
        assert_eq!(amounts(parts.take(40, slices(1))), [40, 1]);
        assert_eq!((parts.most(None), parts.most(slices(6))), (40, 40));
        assert_eq!((parts.most(slices(7)), parts.take(1, slices(7))), (0, None));
        let short = parts.shortages(41, slices(7));
        let told = short
            .iter()
            .map(|it| (&*it.name, it.wanted, it.free, it.capacity));
        let expected = [("vram", 41, 40, 80), ("slices", 7, 6, 7)];
        assert_eq!(told.collect::<Vec<_>>(), expected);
        let nothing = Some(Explicit {
            dimension: "sessions",
            amount: 1,
        });
        assert_eq!((parts.most(nothing), parts.take(1, nothing)), (0, None));
        assert_eq!(vec![40, 6], amounts(Some(parts.free_dimensions().into())));
    }
}
