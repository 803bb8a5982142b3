//! A resource that the operator offers: how much of it is free, whether it is fenced.

use alloc::{collections::BTreeSet, vec::Vec};

use fabricbios_wire::{LeaseId, ResourceId, ResourceType, Transport};

use crate::{BootTime, FenceRecord, Offer, Outlives, Ticket, extents::Extents};

/// A resource in the table.
#[derive(Clone, Debug)]
pub(crate) struct Resource {
    pub(crate) id: ResourceId,
    pub(crate) kind: ResourceType,
    pub(crate) capacity: u64,
    /// What of it fits the alignment: more can never be had in one lease.
    pub(crate) usable: u64,
    pub(crate) transports: Vec<Transport>,
    /// See [`Offer::outlives`].
    pub(crate) outlives: Outlives,
    /// Every lease of it is.
    pub(crate) read_only: bool,
    pub(crate) free: Extents,
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
        let free = Extents::new(offer.capacity, offer.align);
        Self {
            id: offer.resource_id,
            kind,
            capacity: offer.capacity,
            usable: free.free_total(),
            free,
            transports: offer.transports,
            outlives: offer.outlives,
            read_only: offer.read_only,
            fence: None,
            fenced_leases: BTreeSet::new(),
            resetting: None,
            fenced_again: false,
        }
    }

    /// Over which road a lease would go; `None` if this resource has not the one asked for. Who
    /// names a queue pair means a road that has one.
    pub(crate) fn road(&self, wanted: Transport, has_peer: bool) -> Option<Transport> {
        match wanted {
            Transport::Auto if has_peer => self
                .transports
                .iter()
                .copied()
                .find(|&road| takes_peers(road)),
            Transport::Auto => self.transports.first().copied(),
            named => self.transports.contains(&named).then_some(named),
        }
    }
}

/// Whether queue pairs of the client belong to a lease over this road.
pub(crate) fn takes_peers(road: Transport) -> bool {
    matches!(road, Transport::Rdma | Transport::Both)
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
    /// The longest single stretch that is free: what a lease could still get. 0 while fenced.
    pub available: u64,
    /// Whether it is fenced.
    pub fenced: bool,
}
