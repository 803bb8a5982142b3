//! Admits a lease: the verdict of [`crate::verdict`], then what the tenant may have, then its place is taken. The decision
//! is immediate and never over-commits.

use alloc::format;

use fabricbios_wire::{
    Effective, LeaseAllocRequest, LeaseError, LeaseTerms, Refusal, RefusalClass, ResourceId,
    Transport,
};

use crate::{
    LeaseTable, Need, NodeLimits, Now, Offered, Placement, Policy, Sight, Wanted,
    kinds::{Grant, rules},
    lease::Lease,
    standing::invalid,
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
        if request.explain {
            let why = "only a scheduler explains which nodes it would name, and this is a node: ask for a lease without an explanation";
            return Err(invalid(why));
        }
        let sight = self.sight();
        sight.check_request(request)?;
        rules(&request.terms).check_tenant(tenant, &self.policy)?;
        let chosen = sight.choose(request)?;
        let (id, transport, class) = (chosen.resource.id(), chosen.transport, chosen.class);
        if transport.is_some_and(|it| rules(&request.terms).takes_peers(it)) {
            let peers = request.terms.rdma_peers().len();
            self.check_queue_pairs(tenant, peers.max(1))?;
        }
        let need = chosen.resource.need(request);
        self.check_all_of_it(now, tenant, id, need, request)?;
        let room = sight.check_room(chosen.resource, request);
        if let Err(removed) = room {
            let soon = self.comes_back(now, id, request);
            return Err(soon.unwrap_or(removed.refusal));
        }
        let taken = self.resources.get_mut(&id).and_then(|resource| {
            let placement = resource.free.take(need)?;
            Some((placement, resource.read_only, resource.rate))
        });
        let Some((placement, read_only, net_rate)) = taken else {
            return Err(Refusal::new(
                LeaseError::Internal,
                RefusalClass::Transient,
                format!(
                    "resource {id} has room for {}, and none could be taken: a fault of this node, tell its operator",
                    request.capacity
                ),
            ));
        };
        let terms = rules(&request.terms).enforced(&Grant {
            class,
            read_only,
            placement: &placement,
        });
        Ok(Admitted {
            resource_id: id,
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

    /// What admission sees of this node.
    fn sight(&self) -> Sight<'_> {
        let resources = self.resources.values();
        Sight {
            limits: self.limits(),
            resources: resources.map(|it| it as &dyn Offered).collect(),
        }
    }

    /// Takes over the operator's limits of requests: longest terms, the most of a tenant, and network rights. A lease keeps
    /// what it has, with its deadlines, also above a new limit. The other fields of `policy` are not used.
    pub fn change_limits(&mut self, policy: Policy) {
        self.policy.take_limits(policy);
    }

    /// The limits that hold for every tenant.
    #[must_use]
    pub fn limits(&self) -> NodeLimits<'_> {
        NodeLimits {
            lease_secs_max: self.policy.lease_secs_max,
            grace_secs_max: self.policy.grace_secs_max,
            profile: self.policy.profile,
            detected: &self.policy.detected,
        }
    }

    /// Refuses a lease that would get a whole device, more than its request names, if its tenant may not hold that
    /// much.
    fn check_all_of_it(
        &self,
        now: Now,
        tenant: &str,
        id: ResourceId,
        need: Need,
        request: &LeaseAllocRequest,
    ) -> Result<(), Refusal> {
        let held = self.resources.get(&id).map(|it| it.free.held_for(need));
        let Some(held) = held.filter(|held| *held > request.capacity) else {
            return Ok(());
        };
        let checked = self.check_capacity(now, tenant, request.resource_type(), held);
        checked.map_err(|refusal| Refusal {
            message: format!(
                "a lease of this class has all of resource {id}: {}",
                refusal.message
            ),
            ..refusal
        })
    }

    /// Checks the terms of a lease, which may be of an earlier run, against the operator's settings of this one.
    pub(crate) fn check_still_allowed(&self, lease: &Lease) -> Result<(), Refusal> {
        let terms = lease.terms();
        rules(&terms).check_tenant(&lease.tenant, &self.policy)?;
        let resource = self.resources.get(&lease.resource_id);
        let resource = resource.map(|it| it as &dyn Offered);
        resource.map_or(Ok(()), |it| it.check_vlan(&terms))
    }
}
