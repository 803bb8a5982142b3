//! Whether and where a request for a lease can be met: the operator's limits × the request × what is on offer. Pure: the
//! table asks here before it takes anything, and a scheduler asks here about what a node has reported, so that the two
//! cannot disagree.
//!
//! What depends on the one who asks is not here but with the table alone: the quotas and rights of a tenant, and the
//! number of leases of a node.

use alloc::{format, vec::Vec};

use fabricbios_wire::{
    LeaseAllocRequest, LeaseTerms, Refusal, ResourceId, ResourceType, Transport,
};

use crate::{
    Offered, Profile, Refuses, When, Wordless,
    kinds::rules,
    standing::{fenced, invalid, not_allowed, not_found, unavailable},
};

/// The limits of the operator that hold for every tenant.
#[derive(Clone, Copy, Debug)]
pub struct NodeLimits<'a> {
    /// See [`crate::Policy::lease_secs_max`].
    pub lease_secs_max: u32,
    /// See [`crate::Policy::grace_secs_max`].
    pub grace_secs_max: u32,
    /// See [`crate::Policy::profile`].
    pub profile: Profile,
    /// See [`crate::Policy::detected`].
    pub detected: &'a [ResourceType],
}

/// What a request was measured against, from the farthest from a lease to the nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Filter {
    /// The kind, or the resource that the request names.
    Kind,
    /// Terms: time, grace time, VLAN, and what only some kinds have.
    Terms,
    /// A resource that is fenced or missing.
    Health,
    /// The transport.
    Transport,
    /// The class of isolation.
    Class,
    /// A device that a lease has alone, or that this one would have alone.
    Exclusivity,
    /// The amount.
    Capacity,
}

impl Filter {
    /// The name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kind => "kind",
            Self::Terms => "terms",
            Self::Health => "health",
            Self::Transport => "transport",
            Self::Class => "class",
            Self::Exclusivity => "exclusivity",
            Self::Capacity => "capacity",
        }
    }

    pub(crate) fn removes<R>(self) -> impl FnOnce(R) -> Removed<R> {
        move |refusal| Removed { by: self, refusal }
    }
}

/// Why a request cannot be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed<R = Refusal> {
    /// What it has failed at.
    pub by: Filter,
    /// The refusal of the table.
    pub refusal: R,
}

impl From<Removed> for Refusal {
    fn from(removed: Removed) -> Self {
        removed.refusal
    }
}

/// The resource that a request would get a part of.
#[derive(Clone, Copy, Debug)]
pub struct Chosen<'a> {
    /// The resource.
    pub resource: &'a dyn Offered,
    /// The transport; `None` if leases of this resource have none.
    pub transport: Option<Transport>,
    /// The class; `None` if the resource has no classes.
    pub class: Option<u8>,
}

/// A node as admission sees it.
#[derive(Clone, Debug)]
pub struct Sight<'a> {
    /// The limits.
    pub limits: NodeLimits<'a>,
    /// Every resource on offer, ascending by id.
    pub resources: Vec<&'a dyn Offered>,
}

impl<'a> Sight<'a> {
    /// The whole verdict.
    ///
    /// # Errors
    /// The request cannot be met: why.
    pub fn verdict<R: Refuses>(
        &self,
        request: &LeaseAllocRequest,
    ) -> Result<Chosen<'a>, Removed<R>> {
        self.check_request(request)?;
        let chosen = self.choose(request)?;
        self.check_room(chosen.resource, request)?;
        Ok(chosen)
    }

    /// Checks what no resource can change.
    pub(crate) fn check_request<R: Refuses>(
        &self,
        request: &LeaseAllocRequest,
    ) -> Result<(), Removed<R>> {
        let checked = self.limits.check(request);
        checked.map_err(Filter::Terms.removes())?;
        self.check_offered(request).map_err(Filter::Kind.removes())
    }

    /// Refuses a kind that is not offered on this node, and a named resource of another kind.
    fn check_offered<R: Refuses>(&self, request: &LeaseAllocRequest) -> Result<(), R> {
        let kind = request.resource_type();
        let named = request.resource_id.and_then(|id| self.resource(id));
        if let Some(named) = named.filter(|it| it.kind() != kind) {
            let why = rules(&request.terms).not_of(named.kind());
            let why = why.unwrap_or("name another resource, or ask for a lease of that type");
            let (id, other) = (named.id(), named.kind());
            return Err(R::with(invalid, || {
                format!("resource {id} is of type {other}, and the request is for {kind}: {why}")
            }));
        }
        if self.resources.iter().any(|it| it.kind() == kind) {
            return Ok(());
        }
        if self.limits.detected.contains(&kind) {
            return Err(R::with(not_allowed, || {
                format!("this node has {kind} but its operator offers none of it for lease")
            }));
        }
        Err(R::with(invalid, || {
            format!("this node has no {kind} to lease; see its inventory")
        }))
    }

    fn resource(&self, id: ResourceId) -> Option<&'a dyn Offered> {
        self.resources.iter().find(|it| it.id() == id).copied()
    }

    /// Chooses the named resource, or the tightest fit among the resources of the kind, and finds the transport and
    /// the class. Resources that can never meet the request come last, so that a refusal is permanent only if the
    /// request can never be met.
    pub(crate) fn choose<R: Refuses>(
        &self,
        request: &LeaseAllocRequest,
    ) -> Result<Chosen<'a>, Removed<R>> {
        let of_kind = self.resources.iter().copied();
        let of_kind = of_kind.filter(|it| it.kind() == request.resource_type());
        let chosen = match request.resource_id {
            Some(id) => self.resource(id),
            None => of_kind.min_by_key(|it| it.rank(request)),
        };
        let Some(resource) = chosen else {
            let id = request.resource_id.unwrap_or(ResourceId(0));
            let kind = request.resource_type();
            return Err(Filter::Kind.removes()(R::with(not_found, || {
                format!("no resource {id} of type {kind} is offered here")
            })));
        };
        let healthy = resource.check_health();
        healthy.map_err(Filter::Health.removes())?;
        let transport = resource.check_transport(request);
        let transport = transport.map_err(Filter::Transport.removes())?;
        let class = resource.class(request);
        let class = class.map_err(Filter::Class.removes())?;
        let terms = resource.check_vlan(&request.terms);
        terms.map_err(Filter::Terms.removes())?;
        if request.rotate_on_renew && transport.is_none() {
            let why = "rotation on renewal needs a key, and leases of this resource have none";
            return Err(Filter::Terms.removes()(R::with(invalid, || why.into())));
        }
        Ok(Chosen {
            resource,
            transport,
            class,
        })
    }
}

impl NodeLimits<'_> {
    /// The limits of a node about which nothing is known: what they refuse, every node refuses.
    pub const UNKNOWN: NodeLimits<'static> = NodeLimits {
        lease_secs_max: u32::MAX,
        grace_secs_max: u32::MAX,
        profile: Profile::Linux,
        detected: &[],
    };

    /// Checks what a request says, against these limits and by itself.
    ///
    /// # Errors
    /// The request cannot be met, whatever is on offer.
    pub fn check<R: Refuses>(&self, request: &LeaseAllocRequest) -> Result<(), R> {
        if request.capacity == 0 {
            let why = "capacity=0; ask for at least 1";
            return Err(R::with(invalid, || why.into()));
        }
        self.check_term(request.lease_secs)?;
        let (grace, max) = (request.grace_secs, self.grace_secs_max);
        if grace > max {
            return Err(R::with(not_allowed, || {
                format!("grace_secs={grace}; this node allows {max} at most")
            }));
        }
        // Terms that belong to another kind are never ignored.
        if let Some(terms) = request.foreign.first() {
            let kind = request.resource_type();
            return Err(R::with(invalid, || rules(terms).foreign_to(kind)));
        }
        rules(&request.terms).check(request.capacity, self.profile)?;
        check_grace(request)?;
        match request.terms {
            LeaseTerms::Other(kind) => Err(R::with(invalid, || {
                format!("resources of type {kind} are advertised, never leased")
            })),
            _ => Ok(()),
        }
    }

    /// Checks a term, also at a renewal.
    pub(crate) fn check_term<R: Refuses>(&self, secs: u32) -> Result<(), R> {
        if secs == 0 {
            let why = "lease_secs=0; there is no infinite lease, ask for at least 1";
            return Err(R::with(invalid, || why.into()));
        }
        let max = self.lease_secs_max;
        if secs > max {
            return Err(R::with(not_allowed, || {
                format!("lease_secs={secs}; this node allows {max} at most: ask for less and renew")
            }));
        }
        Ok(())
    }
}

/// Refuses a grace time where there are no contents to keep.
fn check_grace<R: Refuses>(request: &LeaseAllocRequest) -> Result<(), R> {
    let (kind, grace) = (request.resource_type(), request.grace_secs);
    if grace == 0 || rules(&request.terms).keeps_contents() {
        return Ok(());
    }
    Err(R::with(invalid, || {
        format!(
            "grace_secs={grace}; a lease of {kind} has no contents to keep after its term: leave the grace time out"
        )
    }))
}

impl dyn Offered + '_ {
    /// The place of a resource in the choice, the best first.
    #[must_use]
    pub fn rank(&self, request: &LeaseAllocRequest) -> impl Ord + use<> {
        let need = self.need(request);
        let most = self.most(When::Now, need);
        let has_room = most >= request.capacity;
        (
            self.most(When::Empty, need) < request.capacity,
            !self.suits(request),
            // A read-only resource comes last for a request that did not ask for read-only.
            self.is_read_only() && !rules(&request.terms).asks_read_only(),
            self.absence().is_some(),
            self.is_fenced(),
            !has_room,
            self.is_impaired(),
            // The tightest fit first. If none has room, the resource with the most room comes first: the refusal is
            // about it.
            if has_room { most } else { u64::MAX - most },
        )
    }

    /// Whether the resource could serve the request if it had room.
    pub(crate) fn may_serve(&self, request: &LeaseAllocRequest) -> bool {
        let serves = self.kind() == request.resource_type() && self.suits(request);
        serves && self.absence().is_none() && !self.is_fenced()
    }

    /// Whether the resource has the transport, the class and the VLAN of the request.
    fn suits(&self, request: &LeaseAllocRequest) -> bool {
        let has_class = self.class::<Wordless>(request).is_ok();
        has_class && self.fits(request) && self.check_vlan::<Wordless>(&request.terms).is_ok()
    }

    fn check_health<R: Refuses>(&self) -> Result<(), R> {
        let id = self.id();
        if let Some(why) = self.absence() {
            return Err(R::with(unavailable, || {
                format!(
                    "resource {id} cannot be had at the moment: {why}; lease elsewhere, or ask the node's operator"
                )
            }));
        }
        if let Some(why) = self.failure() {
            return Err(R::with(fenced, || {
                format!(
                    "resource {id} has failed: {why}; lease elsewhere, or ask the node's operator"
                )
            }));
        }
        match self.is_fenced() {
            true => Err(R::with(fenced, || {
                format!("resource {id} is fenced; an operator must clear it")
            })),
            false => Ok(()),
        }
    }

    /// Refuses an untagged lease where its tenant could tag frames itself.
    pub(crate) fn check_vlan<R: Refuses>(&self, terms: &LeaseTerms) -> Result<(), R> {
        match self.needs_vlan() {
            Some(why) if rules(terms).is_untagged() => Err(R::with(invalid, || {
                let id = self.id();
                format!("resource {id} gives no untagged lease: {why}; ask for a VLAN")
            })),
            _ => Ok(()),
        }
    }
}
