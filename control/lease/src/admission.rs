//! Decides whether and where a request for a lease can be met: the operator's limits × the request × the abilities of
//! the resource. The decision is immediate and never over-commits.

use alloc::format;

use fabricbios_wire::{Effective, LeaseAllocRequest, LeaseTerms, Refusal, ResourceId, Transport};

use crate::{
    Condition, LeaseTable, Now, Placement, Wanted,
    kinds::{Grant, rules},
    lease::Lease,
    paths::check_transport,
    resource::Resource,
    standing::{fenced, invalid, not_allowed, not_found, unavailable},
};

/// A place for a lease.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) resource_id: ResourceId,
    pub(crate) placement: Placement,
    pub(crate) effective: Effective,
    /// The terms as they are enforced.
    pub(crate) terms: LeaseTerms,
    /// The rule that decided, for the log.
    pub(crate) policy: &'static str,
}

pub(crate) fn wanted(request: &LeaseAllocRequest) -> Wanted {
    Wanted {
        resource_type: request.resource_type(),
        capacity: request.capacity,
        lease_secs: request.lease_secs,
        classes: Effective {
            transport: Some(request.transport).filter(|&transport| transport != Transport::Auto),
            rotate_on_renew: request.rotate_on_renew,
            ..rules(&request.terms).effective()
        },
    }
}

impl LeaseTable {
    /// Finds a place and takes it, or refuses the request.
    pub(crate) fn admit(
        &mut self,
        now: Now,
        tenant: &str,
        request: &LeaseAllocRequest,
    ) -> Result<Admitted, Refusal> {
        self.check_terms(request)?;
        check_foreign(request)?;
        rules(&request.terms).check(request.capacity, self.policy.profile)?;
        check_grace(request)?;
        self.check_offered(request)?;
        rules(&request.terms).check_tenant(tenant, &self.policy)?;
        let resource = self.choose(request)?;
        let transport = check_transport(resource, request)?;
        let takes_peers = transport.is_some_and(|it| rules(&request.terms).takes_peers(it));
        if takes_peers {
            let peers = request.terms.rdma_peers().len();
            self.check_queue_pairs(tenant, peers.max(1))?;
        }
        let class = resource.class(request)?;
        resource.check_vlan(&request.terms)?;
        if request.rotate_on_renew && transport.is_none() {
            let why = "rotation on renewal needs a key, and leases of this resource have none";
            return Err(invalid(why));
        }
        let (resource_id, need) = (resource.id, resource.need(request));
        let (read_only, net_rate) = (resource.read_only, resource.rate);
        self.check_all_of_it(now, tenant, resource, request)?;
        let resource = self.resources.get_mut(&resource_id);
        let Some(placement) = resource.and_then(|it| it.free.take(need)) else {
            return Err(self.no_room(now, resource_id, request));
        };
        let terms = rules(&request.terms).enforced(&Grant {
            class,
            read_only,
            placement: &placement,
        });
        Ok(Admitted {
            resource_id,
            placement,
            effective: Effective {
                transport,
                rotate_on_renew: request.rotate_on_renew,
                net_rate,
                ..rules(&terms).effective()
            },
            terms,
            policy: match (request.transport, transport) {
                (_, None) => "capacity",
                (Transport::Auto, _) => "capacity; transport by the resource's preference",
                _ => "capacity; transport by request",
            },
        })
    }

    /// Refuses a lease that would get a whole device, more than its request names, if its tenant may not hold that
    /// much.
    fn check_all_of_it(
        &self,
        now: Now,
        tenant: &str,
        resource: &Resource,
        request: &LeaseAllocRequest,
    ) -> Result<(), Refusal> {
        let held = resource.free.held_for(resource.need(request));
        if held <= request.capacity {
            return Ok(());
        }
        let checked = self.check_capacity(now, tenant, request.resource_type(), held);
        checked.map_err(|refusal| Refusal {
            message: format!(
                "a lease of this class has all of resource {}: {}",
                resource.id, refusal.message
            ),
            ..refusal
        })
    }

    fn check_terms(&self, request: &LeaseAllocRequest) -> Result<(), Refusal> {
        let (secs, grace) = (request.lease_secs, request.grace_secs);
        if request.capacity == 0 {
            return Err(invalid("capacity=0; ask for at least 1"));
        }
        self.check_term(secs)?;
        if grace > self.policy.grace_secs_max {
            return Err(not_allowed(format!(
                "grace_secs={grace}; this node allows {} at most",
                self.policy.grace_secs_max
            )));
        }
        Ok(())
    }

    /// Checks a term against the operator's limits, also at a renewal.
    pub(crate) fn check_term(&self, secs: u32) -> Result<(), Refusal> {
        if secs == 0 {
            return Err(invalid(
                "lease_secs=0; there is no infinite lease, ask for at least 1",
            ));
        }
        if secs > self.policy.lease_secs_max {
            let max = self.policy.lease_secs_max;
            return Err(not_allowed(format!(
                "lease_secs={secs}; this node allows {max} at most: ask for less and renew"
            )));
        }
        Ok(())
    }

    /// Checks the terms of a lease, which may be of an earlier run, against the operator's settings of this one.
    pub(crate) fn check_still_allowed(&self, lease: &Lease) -> Result<(), Refusal> {
        let terms = lease.terms();
        rules(&terms).check_tenant(&lease.tenant, &self.policy)?;
        let resource = self.resources.get(&lease.resource_id);
        resource.map_or(Ok(()), |it| it.check_vlan(&terms))
    }

    /// Refuses a kind that cannot be leased at all or is not offered on this node, and a named resource of another
    /// kind.
    fn check_offered(&self, request: &LeaseAllocRequest) -> Result<(), Refusal> {
        let kind = request.resource_type();
        if matches!(request.terms, LeaseTerms::Other(_)) {
            return Err(invalid(format!(
                "resources of type {kind} are advertised, never leased"
            )));
        }
        let named = request.resource_id.and_then(|id| self.resources.get(&id));
        if let Some(named) = named.filter(|it| it.kind != kind) {
            let why = rules(&request.terms).not_of(named.kind);
            let why = why.unwrap_or("name another resource, or ask for a lease of that type");
            return Err(invalid(format!(
                "resource {} is of type {}, and the request is for {kind}: {why}",
                named.id, named.kind
            )));
        }
        if self
            .resources
            .values()
            .any(|resource| resource.kind == kind)
        {
            return Ok(());
        }
        if self.policy.detected.contains(&kind) {
            return Err(not_allowed(format!(
                "this node has {kind} but its operator offers none of it for lease"
            )));
        }
        Err(invalid(format!(
            "this node has no {kind} to lease; see its inventory"
        )))
    }

    /// Chooses the named resource, or the tightest fit among the resources of the kind. Resources that can never meet
    /// the request come last, so that a refusal is permanent only if the request can never be met.
    fn choose(&self, request: &LeaseAllocRequest) -> Result<&Resource, Refusal> {
        let id = match request.resource_id {
            Some(id) => id,
            None => self.best_of_kind(request),
        };
        let Some(resource) = self.resources.get(&id) else {
            return Err(not_found(format!(
                "no resource {id} of type {} is offered here",
                request.resource_type()
            )));
        };
        if let Some(why) = resource.absence() {
            return Err(unavailable(format!(
                "resource {id} cannot be had at the moment: {why}; lease elsewhere, or ask the node's operator"
            )));
        }
        if let Some(why) = resource.failure() {
            return Err(fenced(format!(
                "resource {id} has failed: {why}; lease elsewhere, or ask the node's operator"
            )));
        }
        if resource.is_fenced() {
            return Err(fenced(format!(
                "resource {id} is fenced; an operator must clear it"
            )));
        }
        Ok(resource)
    }

    fn best_of_kind(&self, request: &LeaseAllocRequest) -> ResourceId {
        let rank = |resource: &Resource| {
            let need = resource.need(request);
            let most = resource.free.most(need);
            let has_room = most >= request.capacity;
            (
                resource.empty.most(need) < request.capacity,
                !resource.suits(request),
                // A read-only resource comes last for a request that did not ask for read-only.
                resource.read_only && !rules(&request.terms).asks_read_only(),
                resource.absence().is_some(),
                resource.is_fenced(),
                !has_room,
                // A resource comes later if its leases may fail.
                matches!(
                    resource.condition.0,
                    Condition::Degraded(_) | Condition::Partial { .. }
                ),
                // The tightest fit first. If none has room, the resource with the most room comes first: the refusal is
                // about it.
                if has_room { most } else { u64::MAX - most },
            )
        };
        self.resources
            .values()
            .filter(|resource| resource.kind == request.resource_type())
            .min_by_key(|resource| rank(resource))
            .map_or(ResourceId(0), |resource| resource.id)
    }
}

impl Resource {
    /// Whether the resource could serve the request if it had room.
    pub(crate) fn may_serve(&self, request: &LeaseAllocRequest) -> bool {
        let serves = self.kind == request.resource_type() && self.suits(request);
        serves && self.absence().is_none() && !self.is_fenced()
    }

    /// Whether the resource has the transport, the class and the VLAN of the request.
    fn suits(&self, request: &LeaseAllocRequest) -> bool {
        self.fits(request) && self.class(request).is_ok() && self.check_vlan(&request.terms).is_ok()
    }

    /// Refuses an untagged lease where its tenant could tag frames itself.
    pub(crate) fn check_vlan(&self, terms: &LeaseTerms) -> Result<(), Refusal> {
        match &self.needs_vlan {
            Some(why) if rules(terms).is_untagged() => Err(invalid(format!(
                "resource {} gives no untagged lease: {why}; ask for a VLAN",
                self.id
            ))),
            _ => Ok(()),
        }
    }
}

/// Refuses a grace time where there are no contents to keep.
fn check_grace(request: &LeaseAllocRequest) -> Result<(), Refusal> {
    let (kind, grace) = (request.resource_type(), request.grace_secs);
    if grace == 0 || rules(&request.terms).keeps_contents() {
        return Ok(());
    }
    Err(invalid(format!(
        "grace_secs={grace}; a lease of {kind} has no contents to keep after its term: leave the grace time out"
    )))
}

/// Refuses terms that belong to another kind; they are never ignored.
fn check_foreign(request: &LeaseAllocRequest) -> Result<(), Refusal> {
    match request.foreign.first() {
        Some(terms) => Err(invalid(rules(terms).foreign_to(request.resource_type()))),
        None => Ok(()),
    }
}
