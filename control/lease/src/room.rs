//! The free part of a resource, in every allocation mode.

use alloc::vec::Vec;

use crate::{
    AllocationMode, Offer, Placement, Quantity,
    cores::Cores,
    device::Device,
    extents::{Extents, rounded},
    parts::{Parts, Shortage},
};

/// The need of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The amount, in the unit of the resource's type.
    pub amount: u64,
    /// How it holds its part.
    pub holding: Holding,
    /// The amount of one dimension, if the request names it. Resources without dimensions ignore it.
    pub explicit: Option<Explicit>,
}

impl Need {
    /// The need of a lease that names no dimension.
    #[must_use]
    pub fn plain(amount: u64, holding: Holding) -> Self {
        Self {
            amount,
            holding,
            explicit: None,
        }
    }
}

/// The amount of a [`crate::Dimension`] that a request names, instead of the amount that follows from its capacity. A
/// lease that has a device alone gets the whole amount, which must be at least this much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explicit {
    /// The name of the dimension.
    pub dimension: &'static str,
    /// How much of it.
    pub amount: u64,
}

/// How a lease holds its cores or its device. Resources with neither ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// No other lease has them.
    Alone,
    /// No other lease has them, and cores are of one NUMA node.
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
    Cores(Cores),
    Vector(Parts),
    Device(Device),
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
            AllocationMode::Cores { groups } => Self::Cores(Cores::new(groups)),
            AllocationMode::Vector(dimensions) => Self::Vector(Parts::new(dimensions, align)),
            AllocationMode::Device(dimensions) => Self::Device(Device::new(dimensions, align)),
        }
    }

    /// The most that one lease could get now, whatever the amount of the need.
    pub(crate) fn most(&self, need: Need) -> u64 {
        match self {
            Self::Stretches(extents) => extents.longest(),
            Self::Amounts { free, .. } => *free,
            Self::Cores(cores) => cores.most(need.holding),
            Self::Vector(parts) => parts.most(need.explicit),
            Self::Device(device) => device.most(need),
        }
    }

    /// The amount that a lease of this need holds, before it is rounded up.
    pub(crate) fn held_for(&self, need: Need) -> u64 {
        match self {
            Self::Device(device) if need.holding != Holding::Shared => device.whole(),
            _ => need.amount,
        }
    }

    /// How much is free, as [`Room::taken_by`] counts it.
    pub(crate) fn free(&self) -> u64 {
        match self {
            Self::Stretches(extents) => extents.free(),
            Self::Amounts { free, .. } => *free,
            Self::Cores(cores) => cores.free(),
            Self::Vector(parts) => parts.free(),
            Self::Device(device) => device.free(),
        }
    }

    /// The amount that a placement takes: of several dimensions the first one, for cores their CPUs.
    pub(crate) fn taken_by(&self, placement: &Placement) -> u64 {
        match self {
            Self::Cores(cores) => cores.cpus(placement),
            _ => placement.amount(),
        }
    }

    /// Takes what is needed, rounded up to the alignment; for a lease that has a device alone, all of it.
    pub(crate) fn take(&mut self, need: Need) -> Option<Placement> {
        match self {
            Self::Stretches(extents) => extents.take(need.amount).map(Placement::Stretch),
            Self::Amounts { align, free } => {
                let amount = rounded(need.amount, *align)?;
                *free = free.checked_sub(amount)?;
                Some(Placement::Amount(amount))
            }
            Self::Cores(cores) => cores.take(need.amount, need.holding),
            Self::Vector(parts) => parts
                .take(need.amount, need.explicit)
                .map(Placement::Vector),
            Self::Device(device) => device.take(need).map(Placement::Vector),
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
            (Self::Cores(cores), wanted) => cores.take_this(wanted),
            (Self::Vector(parts), Placement::Vector(wanted)) => parts.take_these(wanted),
            (Self::Device(device), Placement::Vector(wanted)) => device.take_these(wanted),
            _ => false,
        }
    }

    /// Gives back what was taken.
    pub(crate) fn give_back(&mut self, placement: &Placement) {
        match (self, placement) {
            (Self::Stretches(extents), Placement::Stretch(extent)) => extents.give_back(*extent),
            (Self::Amounts { free, .. }, Placement::Amount(amount)) => *free += amount,
            (Self::Cores(cores), placement) => cores.give_back(placement),
            (Self::Vector(parts), Placement::Vector(given)) => parts.give_back(given),
            (Self::Device(device), Placement::Vector(given)) => device.give_back(given),
            _ => {}
        }
    }

    /// Only these groups of cores are missing at the moment, and no new lease gets them. Other parts are never missing.
    pub(crate) fn set_missing(&mut self, numbers: &[u32]) {
        if let Self::Cores(cores) = self {
            cores.set_missing(numbers);
        }
    }

    /// How much of each dimension is free; empty if it has none.
    pub(crate) fn free_dimensions(&self) -> Vec<Quantity> {
        match self {
            Self::Vector(parts) => parts.free_dimensions(),
            Self::Device(device) => device.free_dimensions(),
            _ => Vec::new(),
        }
    }

    /// See [`crate::Offered::is_held_alone`].
    pub(crate) fn is_held_alone(&self) -> Option<bool> {
        match self {
            Self::Device(device) => Some(device.is_held_alone()),
            _ => None,
        }
    }

    /// The dimensions of a device of which less is free than a sharing lease needs.
    pub(crate) fn shortages(&self, need: Need) -> Vec<Shortage> {
        match self {
            Self::Device(device) => device.shortages(need),
            _ => Vec::new(),
        }
    }

    /// Whether all these placements can be had at once. Valid only for a resource without leases.
    pub(crate) fn has_room_for(&self, held: &[&Placement]) -> bool {
        let mut empty = self.clone();
        held.iter().all(|it| empty.take_this(it))
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
            needs_vlan: None,
        })
    }

    fn alone(amount: u64) -> Need {
        Need::plain(amount, Holding::Alone)
    }

    fn most(room: &Room) -> u64 {
        room.most(alone(0))
    }

    /// Files of a directory have no positions: the room of two files suffices for one of twice the size.
    #[test]
    fn amounts_are_not_broken_up() {
        let mut room = room(4 * 4096 + 100, 4096, AllocationMode::Amounts);
        for _ in 0..4 {
            assert_eq!(room.take(alone(1)), Some(Placement::Amount(4096)));
        }
        assert_eq!((room.take(alone(1)), most(&room)), (None, 0));
        room.give_back(&Placement::Amount(4096));
        room.give_back(&Placement::Amount(4096));
        assert!(!room.take_this(&Placement::Amount(3 * 4096)));
        assert!(!room.take_this(&Placement::Amount(100)));
        assert_eq!(most(&room), 2 * 4096);
        assert!(room.take_this(&Placement::Amount(2 * 4096)));
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
        let core = |number: u32| Placement::Cores([number].into());
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
        assert_eq!(most(&room), 8192);
        for n in 0..3 {
            let slot = Extent {
                offset: n * 8192,
                length: 8192,
            };
            assert_eq!(room.take(alone(1)), Some(slot.into()));
        }
        assert_eq!((room.take(alone(1)), most(&room)), (None, 0));
        let two = Extent {
            offset: 0,
            length: 2 * 8192,
        };
        room.give_back(&two.into());
        assert_eq!(most(&room), 8192);
        assert!(!room.take_this(&two.into()));
    }
}
