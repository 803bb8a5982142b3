//! The free part of a resource, in every allocation mode.

use alloc::{boxed::Box, vec::Vec};

use crate::{
    AllocationMode, Dimension, Offer, Placement, Quantity, Takes,
    cores::Cores,
    extents::{Extents, rounded},
    units::Units,
};

/// The need of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// In the unit of the resource's type.
    pub(crate) amount: u64,
    pub(crate) holding: Holding,
}

/// How a lease holds its units or cores. Resources without units ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holding {
    /// No other lease has them.
    Alone,
    /// The same, and cores are of one NUMA node.
    AloneInOneNode,
    /// Other sharing leases may have them too.
    Shared,
}

/// The free part of a resource. A part is never given to two leases. Only the table gives parts back, and only those
/// that it took.
#[derive(Clone, Debug)]
pub(crate) enum Room {
    Stretches(Extents),
    Amounts { align: u64, free: u64 },
    Units(Units),
    Cores(Cores),
    Vector { align: u64, parts: Vec<Free> },
}

/// The free amount of one [`Dimension`].
#[derive(Clone, Debug)]
pub(crate) struct Free {
    of: Dimension,
    free: u64,
}

impl Room {
    /// Everything free. An `align` of 0 counts as 1; a tail shorter than `align` is never used.
    pub(crate) fn new(offer: &Offer) -> Self {
        let (capacity, align) = (offer.capacity, offer.align.max(1));
        match &offer.allocation_mode {
            AllocationMode::Stretches => Self::Stretches(Extents::new(capacity, align, u64::MAX)),
            AllocationMode::Slots => Self::Stretches(Extents::new(capacity, align, align)),
            AllocationMode::Amounts => Self::Amounts {
                align,
                free: capacity - capacity % align,
            },
            AllocationMode::Units { numbers, sharers } => {
                Self::Units(Units::new(numbers, *sharers))
            }
            AllocationMode::Cores { groups } => Self::Cores(Cores::new(groups)),
            AllocationMode::Vector(dimensions) => Self::Vector {
                align,
                parts: dimensions.iter().map(Free::new).collect(),
            },
        }
    }

    /// The most that one lease could get now.
    pub(crate) fn most(&self, holding: Holding) -> u64 {
        match self {
            Self::Stretches(extents) => extents.longest(),
            Self::Amounts { free, .. } => *free,
            Self::Units(units) => units.count(holding == Holding::Shared),
            Self::Cores(cores) => cores.most(holding),
            Self::Vector { align, parts } => {
                let whole = parts.first().map_or(0, |first| first.of.capacity);
                let most = parts.iter().map(|part| part.most(whole)).min();
                let most = most.unwrap_or(0);
                most - most % align
            }
        }
    }

    /// How much is free, as [`Room::taken_by`] counts it.
    pub(crate) fn free(&self) -> u64 {
        match self {
            Self::Stretches(extents) => extents.free(),
            Self::Amounts { free, .. } => *free,
            Self::Units(units) => units.free(),
            Self::Cores(cores) => cores.free(),
            Self::Vector { parts, .. } => parts.first().map_or(0, |first| first.free),
        }
    }

    /// The amount that a placement takes: for a vector its first part, for units their places, for
    /// cores their CPUs.
    pub(crate) fn taken_by(&self, placement: &Placement) -> u64 {
        match (self, placement) {
            (Self::Units(units), Placement::Units { shared: false, .. }) => {
                placement.amount() * units.places()
            }
            (Self::Cores(cores), placement) => cores.cpus(placement),
            _ => placement.amount(),
        }
    }

    /// Takes what is needed, rounded up to the alignment.
    pub(crate) fn take(&mut self, need: Need) -> Option<Placement> {
        match self {
            Self::Stretches(extents) => extents.take(need.amount).map(Placement::Stretch),
            Self::Amounts { align, free } => {
                let amount = rounded(need.amount, *align)?;
                *free = free.checked_sub(amount)?;
                Some(Placement::Amount(amount))
            }
            Self::Units(units) => {
                let shared = need.holding == Holding::Shared;
                let numbers = units.take(need.amount, shared)?;
                Some(Placement::Units { numbers, shared })
            }
            Self::Cores(cores) => cores.take(need.amount, need.holding),
            Self::Vector { align, parts } => {
                let amount = rounded(need.amount, *align)?;
                let whole = parts.first()?.of.capacity;
                let wanted = parts.iter().map(|part| part.of.wanted(amount, whole));
                let wanted: Box<[Quantity]> = wanted.collect::<Option<_>>()?;
                take_parts(parts, &wanted).then_some(Placement::Vector(wanted))
            }
        }
    }

    /// Takes exactly this placement. `false`: not all of it is free, or it is not of this resource; no change then.
    pub(crate) fn take_this(&mut self, wanted: &Placement) -> bool {
        match (self, wanted) {
            (Self::Stretches(extents), Placement::Stretch(extent)) => extents.take_this(*extent),
            (Self::Amounts { align, free }, Placement::Amount(amount)) => {
                let fits = *amount > 0 && amount.is_multiple_of(*align) && amount <= free;
                if fits {
                    *free -= amount;
                }
                fits
            }
            (Self::Units(units), Placement::Units { numbers, shared }) => {
                units.take_these(numbers, *shared)
            }
            (Self::Cores(cores), wanted) => cores.take_this(wanted),
            (Self::Vector { parts, .. }, Placement::Vector(wanted)) => take_parts(parts, wanted),
            _ => false,
        }
    }

    /// Gives back what was taken.
    pub(crate) fn give_back(&mut self, placement: &Placement) {
        match (self, placement) {
            (Self::Stretches(extents), Placement::Stretch(extent)) => extents.give_back(*extent),
            (Self::Amounts { free, .. }, Placement::Amount(amount)) => *free += amount,
            (Self::Units(units), Placement::Units { numbers, .. }) => units.give_back(numbers),
            (Self::Cores(cores), placement) => cores.give_back(placement),
            (Self::Vector { parts, .. }, Placement::Vector(given)) => {
                for (part, given) in parts.iter_mut().zip(given) {
                    part.free += given.amount;
                }
            }
            _ => {}
        }
    }

    /// The lease of this placement left its part unclean: no other lease gets any of it.
    pub(crate) fn fence(&mut self, placement: &Placement) {
        // Other parts belong to one lease alone, which keeps its part.
        if let (Self::Units(units), Placement::Units { numbers, .. }) = (self, placement) {
            units.fence(numbers);
        }
    }

    /// Every part is clean.
    pub(crate) fn unfence(&mut self) {
        if let Self::Units(units) = self {
            units.unfence();
        }
    }

    /// How much of each dimension is free; empty unless it is a vector.
    pub(crate) fn free_dimensions(&self) -> Vec<Quantity> {
        let free = |part: &Free| Quantity {
            name: part.of.name.clone(),
            amount: part.free,
        };
        match self {
            Self::Vector { parts, .. } => parts.iter().map(free).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether all these placements can be had at once. To be asked of a resource without leases.
    pub(crate) fn has_room_for(&self, held: &[&Placement]) -> bool {
        let mut empty = self.clone();
        held.iter().all(|it| empty.take_this(it))
    }

    /// Converts a placement of an earlier run: before version 5 of the records every placement was an extent.
    pub(crate) fn of_record(&self, placement: Placement) -> Placement {
        match (self, placement) {
            (Self::Amounts { .. }, Placement::Stretch(extent)) if extent.offset == 0 => {
                Placement::Amount(extent.length)
            }
            (_, placement) => placement,
        }
    }
}

/// All of them or none.
fn take_parts(parts: &mut [Free], wanted: &[Quantity]) -> bool {
    let fits = |(part, wanted): (&Free, &Quantity)| {
        part.of.name == wanted.name && wanted.amount <= part.free
    };
    if parts.len() != wanted.len() || !parts.iter().zip(wanted).all(fits) {
        return false;
    }
    for (part, wanted) in parts.iter_mut().zip(wanted) {
        part.free -= wanted.amount;
    }
    true
}

impl Free {
    fn new(of: &Dimension) -> Self {
        Self {
            of: of.clone(),
            free: of.capacity,
        }
    }

    /// The amount of the first dimension, of `whole` in all, for which this dimension suffices.
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
    /// The amount that a lease takes of this dimension if it takes `amount` of the first, of `whole` in all.
    fn wanted(&self, amount: u64, whole: u64) -> Option<Quantity> {
        let amount = match self.takes {
            Takes::Asked => amount,
            Takes::Each(each) => each,
            Takes::InProportion if amount > whole => return None,
            Takes::InProportion => scaled(amount, self.capacity, whole, u128::div_ceil),
        };
        Some(Quantity {
            name: self.name.clone(),
            amount,
        })
    }
}

/// `amount` × `to` / `from`; 0 where `from` is.
fn scaled(amount: u64, to: u64, from: u64, divide: fn(u128, u128) -> u128) -> u64 {
    match from {
        0 => 0,
        _ => u64::try_from(divide(u128::from(amount) * u128::from(to), from.into()))
            .unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use fabricbios_wire::ResourceId;

    use super::*;
    use crate::{Durability, Extent, FenceScope};

    fn room(capacity: u64, align: u64, allocation_mode: AllocationMode) -> Room {
        Room::new(&Offer {
            resource_id: ResourceId(1),
            capacity,
            align,
            transports: vec![],
            durability: Durability::Nothing,
            fence_scope: FenceScope::Whole,
            cut_within: None,
            allocation_mode,
            read_only: false,
            classes: None,
            rate: None,
        })
    }

    fn alone(amount: u64) -> Need {
        Need {
            amount,
            holding: Holding::Alone,
        }
    }

    /// Files of a directory have no positions: the room of two files suffices for one of twice the size.
    #[test]
    fn amounts_are_not_broken_up() {
        let mut room = room(4 * 4096 + 100, 4096, AllocationMode::Amounts);
        for _ in 0..4 {
            assert_eq!(room.take(alone(1)), Some(Placement::Amount(4096)));
        }
        assert_eq!((room.take(alone(1)), room.most(Holding::Alone)), (None, 0));
        room.give_back(&Placement::Amount(4096));
        room.give_back(&Placement::Amount(4096));
        assert!(!room.take_this(&Placement::Amount(3 * 4096)));
        assert!(!room.take_this(&Placement::Amount(100)));
        assert_eq!(room.most(Holding::Alone), 2 * 4096);
        assert!(room.take_this(&Placement::Amount(2 * 4096)));
    }

    #[test]
    fn an_extent_of_an_older_record_is_an_amount_where_amounts_are_given_out() {
        let at = |offset| Placement::Stretch(Extent { offset, length: 9 });
        let amounts = room(9, 1, AllocationMode::Amounts);
        assert_eq!(amounts.of_record(at(0)), Placement::Amount(9));
        assert_eq!(amounts.of_record(at(1)), at(1));
        assert_eq!(
            room(9, 1, AllocationMode::Stretches).of_record(at(0)),
            at(0)
        );
    }

    /// What leases hold at once is checked against the resource without leases.
    #[test]
    fn what_two_leases_have_of_the_same_core_is_found() {
        let group = |number| crate::CoreGroup {
            number,
            cpus: 2,
            node: 0,
        };
        let groups = vec![group(0), group(1)];
        let room = room(2, 1, AllocationMode::Cores { groups });
        let core = |number: u32| Placement::Units {
            numbers: [number].into(),
            shared: false,
        };
        let time = Placement::Amount(2);
        assert!(room.has_room_for(&[&core(1), &time]));
        assert!(!room.has_room_for(&[&core(1), &core(1)]));
        assert!(!room.has_room_for(&[&core(1), &time, &time]));
        assert!(!room.has_room_for(&[&core(0), &core(1), &time]));
    }

    #[test]
    fn a_slot_is_all_that_one_lease_gets() {
        let mut room = room(3 * 8192, 8192, AllocationMode::Slots);
        assert_eq!(room.take(alone(8193)), None);
        assert_eq!(room.most(Holding::Alone), 8192);
        for n in 0..3 {
            let slot = Extent {
                offset: n * 8192,
                length: 8192,
            };
            assert_eq!(room.take(alone(1)), Some(slot.into()));
        }
        assert_eq!((room.take(alone(1)), room.most(Holding::Alone)), (None, 0));
        let two = Extent {
            offset: 0,
            length: 2 * 8192,
        };
        room.give_back(&two.into());
        assert_eq!(room.most(Holding::Alone), 8192);
        assert!(!room.take_this(&two.into()));
    }

    fn dimension(name: &str, capacity: u64, takes: Takes) -> Dimension {
        Dimension {
            name: name.into(),
            capacity,
            takes,
        }
    }

    fn amounts(placement: Option<Placement>) -> Vec<u64> {
        match placement {
            Some(Placement::Vector(parts)) => parts.iter().map(|part| part.amount).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// A port with two virtual functions and a rate: the dimension that is used up first is the limit.
    #[test]
    fn each_part_of_a_vector_bounds_it() {
        let port = || {
            let rate = dimension("rate", 100, Takes::Asked);
            vec![rate, dimension("vf", 2, Takes::Each(1))]
        };
        let mut of_functions = room(100, 10, AllocationMode::Vector(port()));
        assert_eq!(amounts(of_functions.take(alone(15))), [20, 1]);
        let second = of_functions.take(alone(10)).unwrap();
        assert_eq!(
            (
                of_functions.most(Holding::Alone),
                of_functions.take(alone(10))
            ),
            (0, None)
        );
        of_functions.give_back(&second);
        assert_eq!(of_functions.most(Holding::Alone), 80);
        assert!(of_functions.take_this(&second) && !of_functions.take_this(&second));
        let mut of_rate = room(100, 10, AllocationMode::Vector(port()));
        assert_eq!(amounts(of_rate.take(alone(100))), [100, 1]);
        assert_eq!(of_rate.take(alone(10)), None);
    }

    /// Memory of a GPU and its slices: a lease with half of the memory has half of the slices, rounded up.
    #[test]
    fn parts_in_proportion_round_up_for_a_lease_and_down_for_what_is_left() {
        let memory = dimension("vram", 80, Takes::Asked);
        let slices = dimension("slices", 7, Takes::InProportion);
        let mut room = room(80, 1, AllocationMode::Vector(vec![memory, slices]));
        assert_eq!(amounts(room.take(alone(40))), [40, 4]);
        assert_eq!(room.most(Holding::Alone), 34);
        assert_eq!(amounts(room.take(alone(34))), [34, 3]);
        assert_eq!((room.most(Holding::Alone), room.take(alone(1))), (0, None));
        assert_eq!(room.take(alone(81)), None);
    }
}
