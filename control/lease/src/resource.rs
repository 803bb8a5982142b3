//! A resource that the operator offers: how much of it is free, whether it is fenced.

use alloc::{
    borrow::ToOwned,
    collections::BTreeSet,
    string::{String, ToString},
    vec::Vec,
};
use core::time::Duration;

use fabricbios_wire::{
    Enforcement, Fence, InventoryExtension, LeaseId, ResourceId, ResourceType, Transport,
};

use crate::{
    BootTime, ClassOffer, Condition, Durability, FenceRecord, FenceScope, Offer, Placement,
    Quantity, StepError, Ticket, When, leaving::Pace, room::Room,
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
    /// The last reported condition, and since when it holds, Unix ms.
    pub(crate) condition: (Condition, u64),
    /// The resource without leases.
    pub(crate) empty: Room,
    pub(crate) free: Room,
    pub(crate) fence: Option<FenceRecord>,
    /// More is in doubt than the parts of fenced leases, see [`FenceScope`]. Not on record: a restart counts the parts
    /// anew.
    pub(crate) whole_in_doubt: bool,
    /// Fenced leases that were not proved clean since.
    pub(crate) fenced_leases: BTreeSet<LeaseId>,
    /// The parts of strays behind the fence, see [`crate::LeaseTable::restore_stray`]. They are neither free nor a
    /// lease's.
    pub(crate) set_aside: Vec<Placement>,
    /// Leases that are over and not clean, see [`crate::leaving`].
    pub(crate) leaving: BTreeSet<LeaseId>,
    /// The remediation under way.
    pub(crate) resetting: Option<Remediation>,
    /// How fast the last part was cleaned.
    pub(crate) pace: Option<Pace>,
}

/// A remediation that was ordered and has not reported. Until then no other one begins: a report does not say of
/// which one it is.
#[derive(Clone, Debug)]
pub(crate) struct Remediation {
    /// The request that waits for it.
    pub(crate) asker: Option<Ticket>,
    /// Its time limit; `None`: it has passed, and the asker was answered.
    pub(crate) by: Option<BootTime>,
    /// A lease was fenced since it began.
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
            condition: (Condition::Good, 0),
            fence: None,
            whole_in_doubt: false,
            fenced_leases: BTreeSet::new(),
            set_aside: Vec::new(),
            leaving: BTreeSet::new(),
            resetting: None,
            pace: None,
        }
    }

    pub(crate) fn room(&self, when: When) -> &Room {
        match when {
            When::Now => &self.free,
            When::Empty => &self.empty,
        }
    }

    /// Whether the whole resource is fenced: it gets no new leases.
    pub(crate) fn is_fenced(&self) -> bool {
        self.failure().is_some() || (self.fence.is_some() && !self.is_partly_fenced())
    }

    /// Why the resource itself failed, if it did.
    pub(crate) fn failure(&self) -> Option<&str> {
        match &self.condition.0 {
            Condition::Failed(why) => Some(why),
            _ => None,
        }
    }

    /// Why the whole resource is missing at the moment, if it is.
    pub(crate) fn absence(&self) -> Option<&str> {
        match &self.condition.0 {
            Condition::Unavailable(why) => Some(why),
            _ => None,
        }
    }

    /// Why the resource is not well, for people: the gravest reason.
    fn trouble(&self) -> Option<Trouble> {
        let fence = self.fence.as_ref();
        let of_lease = |it: &FenceRecord| Trouble::Fence(it.reason.to_string());
        let whole = fence.filter(|_| !self.is_partly_fenced());
        let condition = || Some(Trouble::Resource(self.condition.0.why()?.to_owned()));
        { whole.map(of_lease) }
            .or_else(condition)
            .or_else(|| fence.map(of_lease))
    }

    /// The fences of FENCE_LIST: the fence by leases that were not proved clean, and the fence of the failed resource
    /// itself.
    pub(crate) fn fences(&self) -> impl Iterator<Item = Fence> + '_ {
        let of_leases = self.fence.as_ref().map(FenceRecord::to_wire);
        let own = self.failure().map(|why| Fence {
            resource_id: self.id,
            resource_type: self.kind,
            lease_id: LeaseId(0),
            since_unix_ms: self.condition.1,
            reason: StepError::new("watch health", why).to_string(),
        });
        of_leases.into_iter().chain(own)
    }

    /// The availability, for inventories; without the size of fenced parts.
    pub(crate) fn availability(&self) -> Availability {
        let is_open = !self.is_fenced() && self.absence().is_none();
        let open = |most: u64| if is_open { most } else { 0 };
        Availability {
            resource_id: self.id,
            resource_type: self.kind,
            capacity: self.capacity,
            available: open(self.most_by_default()),
            classes: self.classes.clone(),
            available_by_class: { self.most_by_class() }
                .map(|(class, most)| (class, open(most)))
                .collect(),
            free_dimensions: self.free.free_dimensions(),
            fenced: self.is_fenced(),
            trouble: self.trouble(),
            fenced_part: 0,
            admission: self.admission(),
        }
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

    /// How much is free or set aside for strays, as [`Room::taken_by`] counts it; `None`: more than there can be.
    pub(crate) fn free_of_leases(&self) -> Option<u64> {
        let mut aside = self.set_aside.iter().map(|it| self.free.taken_by(it));
        aside.try_fold(self.free.free(), u64::checked_add)
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
    /// free cores. 0 while fenced or unavailable.
    pub available: u64,
    /// The classes that the resource knows, see [`Offer::classes`].
    pub classes: Option<ClassOffer>,
    /// The most that a lease of each of these classes could get now. 0 while fenced or unavailable, and for a class
    /// that no lease gets.
    pub available_by_class: Vec<(u8, u64)>,
    /// How much of each [`crate::Dimension`] is free, in the order of the offer; also while fenced or unavailable.
    pub free_dimensions: Vec<Quantity>,
    /// Whether the whole resource is fenced: it gets no new leases.
    pub fenced: bool,
    /// What is wrong. `None`: nothing.
    pub trouble: Option<Trouble>,
    /// Size of the fenced parts. 0 if no part is fenced, or if the whole resource is.
    pub fenced_part: u64,
    /// What else decides about a lease: [`InventoryExtension::Admission`].
    pub admission: InventoryExtension,
}

/// What is wrong with a resource, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A fence of the whole or of parts: the reason may name the lease, its files and its processes, and is for operators.
    Fence(String),
    /// A condition that is not good.
    Resource(String),
}

impl Trouble {
    /// The reason, for operators.
    #[must_use]
    pub fn why(&self) -> &str {
        match self {
            Self::Fence(why) | Self::Resource(why) => why,
        }
    }

    /// What everybody may read.
    #[must_use]
    pub fn for_all(self) -> Self {
        match self {
            Self::Fence(_) => Self::Fence(
                "a lease of it could not be proved clean: `fabricctl fence list` tells its operator why".into(),
            ),
            Self::Resource(_) => self,
        }
    }
}
