//! The part of a resource that a lease has: chosen by the table and kept in the journal.

use alloc::{boxed::Box, string::String};

use serde::{Deserialize, Serialize};

use crate::Extent;

/// The part of a resource that one lease has, by the allocation mode of the resource ([`crate::AllocationMode`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Placement {
    /// These positions: bytes of an arena, blocks of a device.
    Stretch(Extent),
    /// An amount without positions: a file of a directory.
    Amount(u64),
    /// The physical cores of these numbers, ascending, each once. Leases that share cores have an amount of CPUs.
    Cores(Box<[u32]>),
    /// An amount of each of several things of one device, such as a virtual function and its rate. A lease that has the
    /// device alone has all of each.
    Vector(Box<[Quantity]>),
}

/// An amount of one thing that a device has.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Quantity {
    /// The name, see [`crate::Dimension::name`].
    pub name: String,
    /// How much.
    pub amount: u64,
}

impl Placement {
    /// The amount in the unit of the resource's type; for a vector, of its first part.
    #[must_use]
    pub fn amount(&self) -> u64 {
        match self {
            Self::Stretch(extent) => extent.length,
            Self::Amount(amount) => *amount,
            Self::Cores(numbers) => numbers.len() as u64,
            Self::Vector(parts) => parts.first().map_or(0, |part| part.amount),
        }
    }

    /// The amount of the dimension of this name, if it has one.
    pub(crate) fn of_dimension(&self, name: &str) -> Option<u64> {
        match self {
            Self::Vector(parts) => parts.iter().find(|it| it.name == name).map(|it| it.amount),
            _ => None,
        }
    }

    /// The positions; for a placement without positions, its amount, from 0.
    #[must_use]
    pub fn extent(&self) -> Extent {
        match self {
            Self::Stretch(extent) => *extent,
            other => Extent {
                offset: 0,
                length: other.amount(),
            },
        }
    }
}

impl From<Extent> for Placement {
    fn from(extent: Extent) -> Self {
        Self::Stretch(extent)
    }
}
