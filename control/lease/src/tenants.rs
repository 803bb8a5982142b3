//! Data of each tenant, and quotas.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    sync::Arc,
};
use core::time::Duration;

use fabricbios_wire::{
    LeaseError, LeaseId, LeasePhase, Refusal, RefusalClass, RequestToken, ResourceType, Role,
};

use crate::{
    Change, Invariant, LeaseRecord, LeaseTable, Now, Requested, State,
    lease::Lease,
    record::Ended,
    standing::{busy, unavailable},
    timers::{Owner, Timer},
};

/// An overdue record of an earlier run is dropped by a tick, like every other record.
const RECORD_KEPT_MIN: Duration = Duration::from_millis(1);

/// A tenant that has leases, alive or on record.
#[derive(Debug, Default)]
pub(crate) struct Tenant {
    pub(crate) live: BTreeSet<LeaseId>,
    pub(crate) ended: BTreeSet<LeaseId>,
    /// The lease of each request with a token. The entries go with their leases, so they are no more than these.
    pub(crate) requests: BTreeMap<RequestToken, LeaseId>,
    /// Live leases that are over and not clean, see [`crate::leaving`].
    pub(crate) leaving: BTreeSet<LeaseId>,
    /// The amount of each kind that its live leases hold, in the unit of the kind.
    holds: BTreeMap<ResourceType, u64>,
    /// Binds and rotations that are ordered and not reported.
    pub(crate) on_their_way: usize,
    /// Queue pairs of the node in its live leases, see [`Lease::queue_pairs`].
    pub(crate) queue_pairs: usize,
}

impl Tenant {
    /// Names the lease as the one of its request.
    fn remember_request(&mut self, requested: Option<Requested>, id: LeaseId) {
        let requests = &mut self.requests;
        requested.map(|it| requests.insert(it.token, id));
    }

    /// Forgets the request of a lease, unless another lease has answered it since.
    fn forget_request(&mut self, requested: Option<Requested>, id: LeaseId) {
        if let Some(Requested { token, .. }) = requested
            && self.requests.get(&token) == Some(&id)
        {
            self.requests.remove(&token);
        }
    }

    /// Whether the counts match these leases.
    pub(crate) fn counts(&self, leases: &[&Lease]) -> bool {
        let ids: BTreeSet<LeaseId> = leases.iter().map(|lease| lease.id).collect();
        let outstanding = leases.iter().filter(|lease| lease.is_on_its_way());
        let queue_pairs: usize = leases.iter().map(|lease| lease.queue_pairs).sum();
        let mut holds: BTreeMap<ResourceType, u64> = BTreeMap::new();
        for lease in leases {
            *holds.entry(lease.kind).or_default() += lease.placement.amount();
        }
        let held = |kind: &ResourceType| holds.get(kind).copied().unwrap_or(0);
        let leaving = leases.iter().filter(|lease| lease.leaves());
        let leaving: BTreeSet<LeaseId> = leaving.map(|lease| lease.id).collect();
        (ids, leaving) == (self.live.clone(), self.leaving.clone())
            && outstanding.count() == self.on_their_way
            && queue_pairs == self.queue_pairs
            && self
                .holds
                .iter()
                .all(|(kind, counted)| *counted == held(kind))
    }
}

/// Quotas.
impl LeaseTable {
    /// Checks the rate of requests of a tenant: a limit per second, with bursts of one second's worth. Operators have
    /// no limit.
    ///
    /// # Errors
    /// The tenant is over its rate: ResourceBusy.
    pub fn check_rate(&mut self, now: Now, tenant: &Arc<str>, role: Role) -> Result<(), Refusal> {
        let most = self.policy.tenant_requests_per_sec;
        // The node asks itself: no request of another node comes here.
        let is_free = matches!(role, Role::Operator | Role::Node);
        if most == 0 || is_free || self.rates.take(now.boot, tenant, most) {
            return Ok(());
        }
        Err(busy(format!(
            "tenant {tenant} asks more than {most} times a second; ask again a little later"
        )))
    }

    /// Refuses one more lease beyond the limit of the tenant or of the node. Ended leases do not count.
    pub(crate) fn check_leases(&self, now: Now, name: &str) -> Result<(), Refusal> {
        let has = self.tenants.get(name).map_or(0, |tenant| tenant.live.len());
        let max = self.policy.tenant_leases_max;
        if has >= max {
            let over_by = (has - max).saturating_add(1) as u64;
            if let Some(refusal) = self.quota_comes_back(now, name, None, over_by) {
                return Err(refusal);
            }
            return over_quota(format!(
                "tenant {name} has {has} leases and may have {max} on this node (leases-per-tenant-max): wait until one ends, or ask its operator for more"
            ));
        }
        if self.leases.len() >= self.policy.leases_max {
            return Err(unavailable(format!(
                "this node has {} leases, as many as it can have: try later or elsewhere",
                self.leases.len()
            )));
        }
        Ok(())
    }

    /// Refuses this much more of the kind beyond the limit of the tenant.
    pub(crate) fn check_capacity(
        &self,
        now: Now,
        name: &str,
        kind: ResourceType,
        wanted: u64,
    ) -> Result<(), Refusal> {
        let Some(&max) = self.policy.tenant_capacity_max.get(&kind) else {
            return Ok(());
        };
        let holds = self.tenants.get(name).and_then(|it| it.holds.get(&kind));
        let holds = holds.copied().unwrap_or(0);
        if holds.saturating_add(wanted) <= max {
            return Ok(());
        }
        let over_by = holds.saturating_add(wanted) - max;
        if let Some(refusal) = self.quota_comes_back(now, name, Some(kind), over_by) {
            return Err(refusal);
        }
        over_quota(format!(
            "capacity={wanted}; tenant {name} holds {holds} of {kind} and may hold {max} on this node \
             ({kind}-per-tenant-max): ask for less, wait until one ends, or ask its operator for more"
        ))
    }

    /// Refuses this many more queue pairs of the node beyond the limit of the tenant.
    pub(crate) fn check_queue_pairs(&self, name: &str, more: usize) -> Result<(), Refusal> {
        let has = self.tenants.get(name).map_or(0, |it| it.queue_pairs);
        let max = self.policy.tenant_queue_pairs_max;
        if more == 0 || has.saturating_add(more) <= max {
            return Ok(());
        }
        over_quota(format!(
            "tenant {name} has {has} queue pairs and may have {max} on this node (queue-pairs-per-tenant-max): \
             let some leave, wait until a lease ends, or ask its operator for more"
        ))
    }

    /// Refuses one more binding or rotation of the tenant beyond its limit. They take turns with those of other
    /// tenants; the limit is on how many wait.
    pub(crate) fn check_binds(&self, name: &str) -> Result<(), Refusal> {
        let on_their_way = self
            .tenants
            .get(name)
            .map_or(0, |tenant| tenant.on_their_way);
        if on_their_way < self.policy.tenant_binds_max {
            return Ok(());
        }
        Err(busy(format!(
            "{on_their_way} bindings of tenant {name} are on their way; ask again when some are made"
        )))
    }
}

fn over_quota(message: String) -> Result<(), Refusal> {
    Err(Refusal::new(
        LeaseError::CapacityExceeded,
        RefusalClass::Policy,
        message,
    ))
}

/// Live leases.
impl LeaseTable {
    /// The name as the table holds it, so that a million leases share it.
    pub(crate) fn tenant_name(&mut self, name: &str) -> Arc<str> {
        self.tenants
            .get_key_value(name)
            .map_or_else(|| Arc::from(name), |(known, _)| known.clone())
    }

    /// Adds a live lease to the table.
    pub(crate) fn lives(&mut self, lease: Lease) {
        let tenant = self.tenants.entry(lease.tenant.clone()).or_default();
        tenant.live.insert(lease.id);
        // A lease of an earlier run that was never granted is the one of no request.
        if lease.granted() || lease.state() == State::Binding {
            tenant.remember_request(lease.requested, lease.id);
        }
        *tenant.holds.entry(lease.kind).or_default() += lease.placement.amount();
        tenant.queue_pairs += lease.queue_pairs;
        self.change_held(&lease, true);
        self.leases.insert(lease.id, Box::new(lease));
    }

    /// Removes a live lease from its tenant.
    pub(crate) fn lives_no_more(&mut self, lease: &Lease) {
        let length = lease.placement.amount();
        let enough = self.tenants.get_mut(&lease.tenant).is_some_and(|tenant| {
            let holds = tenant.holds.entry(lease.kind).or_default();
            let pairs = tenant.queue_pairs.checked_sub(lease.queue_pairs);
            let enough = tenant.live.remove(&lease.id) && *holds >= length && pairs.is_some();
            *holds = holds.saturating_sub(length);
            tenant.queue_pairs = pairs.unwrap_or(0);
            tenant.forget_request(lease.requested, lease.id);
            enough
        });
        self.forget_idle(&lease.tenant);
        if !enough {
            let detail = "its tenant held less";
            self.broken.push(lease.broken(Invariant::Tenants, detail));
        }
    }

    /// Takes a tenant without leases from the table.
    fn forget_idle(&mut self, name: &Arc<str>) {
        let idle = |it: &Tenant| it.live.is_empty() && it.ended.is_empty();
        if self.tenants.get(name).is_some_and(idle) {
            self.tenants.remove(name);
        }
    }
}

/// Records of ended leases. Their number is limited: the oldest records of the tenant with the most records are
/// dropped.
impl LeaseTable {
    /// Keeps the record of a lease that ended `since` ago.
    pub(crate) fn remember(
        &mut self,
        now: Now,
        since: Duration,
        phase: LeasePhase,
        record: LeaseRecord,
    ) {
        let (id, name) = (record.lease_id, record.tenant.clone());
        let left = self.policy.keep_ended.saturating_sub(since);
        let at = now.boot + left.max(RECORD_KEPT_MIN);
        self.change_history(&name, |history| history.insert(id));
        let granted = record.granted_at_unix_ms != 0;
        if let Some(tenant) = self.tenants.get_mut(&name).filter(|_| granted) {
            tenant.remember_request(record.requested, id);
        }
        self.forget
            .set(&Some(name.clone()), Timer::Lease(id), None, Some(at));
        self.ended.insert(
            id,
            Ended {
                phase,
                record,
                forget_at: at,
            },
        );
        let its = self
            .tenants
            .get(&name)
            .map_or(0, |tenant| tenant.ended.len());
        if its > self.policy.tenant_ended_max {
            self.forget_oldest_of(&Some(name));
        } else if self.ended.len() > self.policy.ended_max
            && let Some((_, longest)) = self.histories.last().cloned()
        {
            self.forget_oldest_of(&Some(longest));
        }
    }

    fn forget_oldest_of(&mut self, owner: &Owner) {
        if let Some(Timer::Lease(id)) = self.forget.first_of(owner) {
            self.forget_record(id);
        }
    }

    /// Drops the record of an ended lease.
    pub(crate) fn forget_record(&mut self, id: LeaseId) {
        let Some(ended) = self.ended.remove(&id) else {
            return;
        };
        let tenant = ended.record.tenant;
        let owner = Some(tenant.clone());
        self.forget
            .set(&owner, Timer::Lease(id), Some(ended.forget_at), None);
        self.change_history(&tenant, |history| history.remove(&id));
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.forget_request(ended.record.requested, id);
        }
        self.forget_idle(&tenant);
        self.journal(Change::RemoveLease(id));
    }

    fn change_history(
        &mut self,
        name: &Arc<str>,
        change: impl FnOnce(&mut BTreeSet<LeaseId>) -> bool,
    ) {
        let history = &mut self.tenants.entry(name.clone()).or_default().ended;
        self.histories.remove(&(history.len(), name.clone()));
        change(history);
        self.histories.insert((history.len(), name.clone()));
        if history.is_empty() {
            self.histories.remove(&(0, name.clone()));
        }
    }
}
