//! A resource that the operator offers: how much of it is free, whether it is fenced.

use alloc::{collections::BTreeSet, vec::Vec};

use fabricbios_wire::{LeaseId, ResourceId, ResourceType, Transport};

use crate::{BootTime, Durability, FenceRecord, FenceScope, Offer, Ticket, room::Room};

/// A resource in the table.
#[derive(Clone, Debug)]
pub(crate) struct Resource {
    pub(crate) id: ResourceId,
    pub(crate) kind: ResourceType,
    pub(crate) capacity: u64,
    /// More can never be had in one lease.
    pub(crate) usable: u64,
    /// All of it, as [`crate::room::Room::taken_by`] counts.
    pub(crate) whole: u64,
    pub(crate) transports: Vec<Transport>,
    /// See [`Offer::outlives`].
    pub(crate) durability: Durability,
    /// See [`Offer::fence_scope`].
    pub(crate) fence_scope: FenceScope,
    /// Every lease of it is.
    pub(crate) read_only: bool,
    /// See [`crate::LeaseTable::withhold`].
    pub(crate) withheld: bool,
    pub(crate) free: Room,
    pub(crate) fence: Option<FenceRecord>,
    /// Leases that left it fenced and were not proved clean since.
    pub(crate) fenced_leases: BTreeSet<LeaseId>,
    /// A remediation is under way: who asked for it, if somebody did, and until when.
    pub(crate) resetting: Option<(Option<Ticket>, BootTime)>,
    /// A lease was fenced since that began.
    pub(crate) fenced_again: bool,
}

impl Resource {
    pub(crate) fn new(kind: ResourceType, offer: Offer) -> Self {
        let free = Room::new(&offer);
        Self {
            id: offer.resource_id,
            kind,
            capacity: offer.capacity,
            usable: free.most(false),
            whole: free.free(),
            free,
            transports: offer.transports,
            durability: offer.durability,
            fence_scope: offer.fence_scope,
            read_only: offer.read_only,
            withheld: false,
            fence: None,
            fenced_leases: BTreeSet::new(),
            resetting: None,
            fenced_again: false,
        }
    }

    /// Nothing of it is leased.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fence.is_some() && !self.is_partly_fenced()
    }

    /// Parts of it are fenced, each held by its lease; the others are leased as ever.
    pub(crate) fn is_partly_fenced(&self) -> bool {
        let by_release = self.fence.as_ref().is_some_and(|fence| fence.by_release);
        by_release && self.fence_scope == FenceScope::Part
    }

    /// Makes it the reason of the fence, if it is: the first stands, except that a failed cut is graver
    /// than a failed release.
    pub(crate) fn fence_for(&mut self, fence: FenceRecord) -> bool {
        let old = self.fence.as_ref();
        let graver = old.is_none_or(|old| old.by_release && !fence.by_release);
        if graver {
            self.fence = Some(fence);
        }
        graver
    }
}

/// What the table says of an offered resource, for inventories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Availability {
    /// Which.
    pub resource_id: ResourceId,
    /// Of what kind.
    pub resource_type: ResourceType,
    /// All of it.
    pub capacity: u64,
    /// What a lease could still get, such as the longest stretch, or the units that nobody has. 0 while
    /// fenced or withheld.
    pub available: u64,
    /// Whether it is fenced: nothing of it is leased.
    pub fenced: bool,
    /// Whether only parts of it are fenced, those of leases whose release failed; never with `fenced`.
    pub partly_fenced: bool,
    /// How much these parts are. 0 where none is, or all of it.
    pub fenced_part: u64,
}
