//! A device that one lease has alone, or several leases share by amounts: a GPU.

use alloc::{boxed::Box, vec::Vec};

use crate::{
    Dimension, Quantity,
    parts::{Parts, Shortage},
    room::{Holding, Need},
};

/// The amounts of a device, and whether one lease has all of them.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    parts: Parts,
    /// One lease has all of every dimension.
    alone: bool,
}

impl Device {
    /// Everything free. `align` is not 0.
    pub(crate) fn new(dimensions: &[Dimension], align: u64) -> Self {
        Self {
            parts: Parts::new(dimensions, align),
            alone: false,
        }
    }

    pub(crate) fn is_held_alone(&self) -> bool {
        self.alone
    }

    /// The whole amount of the first dimension.
    pub(crate) fn whole(&self) -> u64 {
        self.parts.whole()
    }

    /// The free amount of the first dimension.
    pub(crate) fn free(&self) -> u64 {
        self.parts.free()
    }

    /// The most that one lease could get, whatever the amount of the need: a lease that has the device alone gets all
    /// of it or nothing.
    pub(crate) fn most(&self, need: Need) -> u64 {
        match need.holding {
            Holding::Shared => self.parts.most(need.explicit),
            _ if self.parts.is_untouched() && self.parts.has(need.explicit) => self.whole(),
            _ => 0,
        }
    }

    /// Takes what is needed; for a lease that has the device alone, all of it.
    pub(crate) fn take(&mut self, need: Need) -> Option<Box<[Quantity]>> {
        if need.holding == Holding::Shared {
            return self.parts.take(need.amount, need.explicit);
        }
        let fits = need.amount > 0 && need.amount <= self.most(need);
        let all = self.parts.all();
        (fits && self.take_these(&all)).then_some(all)
    }

    /// Takes exactly these amounts: all of them, or none (`false`).
    pub(crate) fn take_these(&mut self, wanted: &[Quantity]) -> bool {
        let taken = self.parts.take_these(wanted);
        self.alone |= taken && *wanted == *self.parts.all();
        taken
    }

    /// Gives back what was taken.
    pub(crate) fn give_back(&mut self, given: &[Quantity]) {
        self.parts.give_back(given);
        self.alone = false;
    }

    /// How much of each dimension is free.
    pub(crate) fn free_dimensions(&self) -> Vec<Quantity> {
        self.parts.free_dimensions()
    }

    /// The dimensions of which a sharing lease would need more than is free.
    pub(crate) fn shortages(&self, need: Need) -> Vec<Shortage> {
        self.parts.shortages(need.amount, need.explicit)
    }
}
