//! A resource that the operator offers: how much of it is free, whether it is fenced.

use alloc::{collections::BTreeSet, string::String, vec::Vec};
use core::time::Duration;

use fabricbios_wire::{Enforcement, LeaseId, ResourceId, ResourceType, Transport};

use crate::{
    BootTime, ClassOffer, Durability, FenceRecord, FenceScope, Offer, Quantity, Ticket, room::Room,
};

/// A resource in the table.
#[derive(Clone, Debug)]
pub(crate) struct Resource {
    pub(crate) id: ResourceId,
    pub(crate) kind: ResourceType,
    pub(crate) capacity: u64,
    pub(crate) transports: Vec<Transport>,
    /// See [`Offer::durability`].
    pub(crate) durability: Durability,
    /// See [`Offer::fence_scope`].
    pub(crate) fence_scope: FenceScope,
    /// See [`Offer::cut_within`].
    pub(crate) cut_within: Option<Duration>,
    /// Whether every lease of it is read-only.
    pub(crate) read_only: bool,
    /// See [`Offer::classes`].
    pub(crate) classes: Option<ClassOffer>,
    /// See [`Offer::rate`].
    pub(crate) rate: Option<Enforcement>,
    /// See [`Offer::needs_vlan`].
    pub(crate) needs_vlan: Option<String>,
    /// See [`crate::LeaseTable::withhold`].
    pub(crate) withheld: bool,
    /// The resource without leases.
    pub(crate) empty: Room,
    pub(crate) free: Room,
    pub(crate) fence: Option<FenceRecord>,
    /// More is in doubt than the parts of fenced leases, see [`FenceScope`]. Not on record: a restart counts the parts
    /// anew.
    pub(crate) whole_in_doubt: bool,
    /// Fenced leases that were not proved clean since.
    pub(crate) fenced_leases: BTreeSet<LeaseId>,
    /// The remediation under way: the request that waits for it, if any, and its time limit.
    pub(crate) resetting: Option<(Option<Ticket>, BootTime)>,
    /// A lease was fenced since the remediation began.
    pub(crate) fenced_again: bool,
}

impl Resource {
    pub(crate) fn new(kind: ResourceType, offer: Offer) -> Self {
        let empty = Room::new(&offer);
        Self {
            id: offer.resource_id,
            kind,
            capacity: offer.capacity,
            free: empty.clone(),
            empty,
            transports: offer.transports,
            durability: offer.durability,
            fence_scope: offer.fence_scope,
            cut_within: offer.cut_within,
            read_only: offer.read_only,
            classes: offer.classes,
            rate: offer.rate,
            needs_vlan: offer.needs_vlan,
            withheld: false,
            fence: None,
            whole_in_doubt: false,
            fenced_leases: BTreeSet::new(),
            resetting: None,
            fenced_again: false,
        }
    }

    /// Whether the whole resource is fenced: it gets no new leases.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fence.is_some() && !self.is_partly_fenced()
    }

    /// Whether only parts are fenced, each held by its lease; the other parts are leased as before.
    pub(crate) fn is_partly_fenced(&self) -> bool {
        self.fence
            .as_ref()
            .is_some_and(|fence| match self.fence_scope {
                FenceScope::Separate => !self.whole_in_doubt,
                FenceScope::Part => fence.by_release,
                FenceScope::Whole => false,
            })
    }

    /// Makes this fence the current one, and returns whether it did. The first fence stands, except that a failed cut
    /// replaces a failed release.
    pub(crate) fn fence_for(&mut self, fence: FenceRecord) -> bool {
        let old = self.fence.as_ref();
        let graver = old.is_none_or(|old| old.by_release && !fence.by_release);
        if graver {
            self.fence = Some(fence);
        }
        graver
    }
}

/// The availability of an offered resource, for inventories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Availability {
    /// The resource.
    pub resource_id: ResourceId,
    /// The type of the resource.
    pub resource_type: ResourceType,
    /// The whole amount.
    pub capacity: u64,
    /// The most that a lease of the default class could get now, such as the longest free stretch or the number of
    /// free units. 0 while fenced or withheld.
    pub available: u64,
    /// The classes that the resource knows, see [`Offer::classes`].
    pub classes: Option<ClassOffer>,
    /// The most that a lease of each of these classes could get now. 0 while fenced or withheld, and for a class that
    /// no lease gets.
    pub available_by_class: Vec<(u8, u64)>,
    /// How much of each [`crate::Dimension`] is free, in the order of the offer. Also told while fenced or withheld.
    pub free_dimensions: Vec<Quantity>,
    /// Whether the whole resource is fenced: it gets no new leases.
    pub fenced: bool,
    /// Whether only parts are fenced, those of fenced leases; never together with `fenced`.
    pub partly_fenced: bool,
    /// Size of the fenced parts. 0 if no part is fenced, or the whole resource.
    pub fenced_part: u64,
}
