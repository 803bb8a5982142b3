//! A resource as admission sees it: in the table with its rooms, or as its node has reported it.

use alloc::vec::Vec;
use core::fmt;

use fabricbios_wire::{ResourceId, ResourceType, Transport};

use crate::{ClassOffer, Condition, Need, Quantity, Shortage, resource::Resource};

/// At which time an amount is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Beside the leases that there are now.
    Now,
    /// When no lease has anything of the resource.
    Empty,
}

/// A resource that is on offer.
pub trait Offered: fmt::Debug {
    /// Its id.
    fn id(&self) -> ResourceId;

    /// Its kind.
    fn kind(&self) -> ResourceType;

    /// See [`crate::Offer::transports`].
    fn transports(&self) -> &[Transport];

    /// See [`crate::Offer::read_only`].
    fn is_read_only(&self) -> bool;

    /// See [`crate::Offer::classes`].
    fn classes(&self) -> Option<&ClassOffer>;

    /// See [`crate::Offer::needs_vlan`].
    fn needs_vlan(&self) -> Option<&str>;

    /// Why the whole resource is missing at the moment, if it is.
    fn absence(&self) -> Option<&str>;

    /// Why the resource itself failed, if it did.
    fn failure(&self) -> Option<&str>;

    /// Whether the whole resource is fenced, also because it failed.
    fn is_fenced(&self) -> bool;

    /// Whether its leases may fail, or a part of it is missing.
    fn is_impaired(&self) -> bool;

    /// The most that one lease could get, whatever the amount of the need. [`u64::MAX`]: not known.
    fn most(&self, when: When, need: Need) -> u64;

    /// For a device that one lease can have alone: whether one has it alone now. `None`: it is no such device.
    fn is_held_alone(&self) -> Option<bool>;

    /// The dimensions of a device of which less is free than a sharing lease needs, for people; empty if not known.
    fn shortages(&self, _need: Need) -> Vec<Shortage> {
        Vec::new()
    }

    /// How much of each dimension there is, for people; empty if not known, or if it has none.
    fn dimensions(&self, _when: When) -> Vec<Quantity> {
        Vec::new()
    }

    /// Why a part of it is missing, for people, if that is known.
    fn missing_part(&self) -> Option<&str> {
        None
    }
}

impl Offered for Resource {
    fn id(&self) -> ResourceId {
        self.id
    }

    fn kind(&self) -> ResourceType {
        self.kind
    }

    fn transports(&self) -> &[Transport] {
        &self.transports
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn classes(&self) -> Option<&ClassOffer> {
        self.classes.as_ref()
    }

    fn needs_vlan(&self) -> Option<&str> {
        self.needs_vlan.as_deref()
    }

    fn absence(&self) -> Option<&str> {
        self.absence()
    }

    fn failure(&self) -> Option<&str> {
        self.failure()
    }

    fn is_fenced(&self) -> bool {
        self.is_fenced()
    }

    fn is_impaired(&self) -> bool {
        let condition = &self.condition.0;
        matches!(
            condition,
            Condition::Degraded(_) | Condition::Partial { .. }
        )
    }

    fn most(&self, when: When, need: Need) -> u64 {
        self.room(when).most(need)
    }

    fn is_held_alone(&self) -> Option<bool> {
        self.free.is_held_alone()
    }

    fn shortages(&self, need: Need) -> Vec<Shortage> {
        self.free.shortages(need)
    }

    fn dimensions(&self, when: When) -> Vec<Quantity> {
        self.room(when).free_dimensions()
    }

    fn missing_part(&self) -> Option<&str> {
        match &self.condition.0 {
            Condition::Partial { why, .. } => Some(why),
            _ => None,
        }
    }
}
