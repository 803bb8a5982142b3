//! Which part of a resource a lease has. The table chooses it, and it is written down.

use alloc::{boxed::Box, string::String};

use serde::{Deserialize, Serialize};

use crate::Extent;

/// The part of a resource that one lease has, by how the resource is given out ([`crate::AllocationMode`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Placement {
    /// These positions: bytes of an arena, blocks of a device.
    Stretch(Extent),
    /// So much, wherever it is: a file of a directory.
    Amount(u64),
    /// These units, such as CPU cores.
    Units {
        /// Their numbers, ascending, each once.
        numbers: Box<[u32]>,
        /// Whether other leases may have the same units.
        shared: bool,
    },
    /// So much of each of several things of one device, such as a virtual function and its rate.
    Vector(Box<[Quantity]>),
}

/// An amount of one thing that a device has.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Quantity {
    /// Of what, as [`crate::Dimension::name`] has it.
    pub name: String,
    /// How much.
    pub amount: u64,
}

impl Placement {
    /// How much it is, in the unit of the resource's type; of a vector, its first part.
    #[must_use]
    pub fn amount(&self) -> u64 {
        match self {
            Self::Stretch(extent) => extent.length,
            Self::Amount(amount) => *amount,
            Self::Units { numbers, .. } => numbers.len() as u64,
            Self::Vector(parts) => parts.first().map_or(0, |part| part.amount),
        }
    }

    /// The positions, for resources that have any; of the others, the amount, from 0.
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
