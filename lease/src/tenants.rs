//! What the table keeps by tenant, and how much of it one tenant may have.

use alloc::{collections::BTreeSet, format, sync::Arc};

use fabricbios_wire::{LeaseError, LeaseId, Refusal, RefusalClass};

use crate::{LeaseTable, Now, record::Ended};

/// A tenant that has leases, alive or on record.
#[derive(Debug, Default)]
pub(crate) struct Tenant {
    pub(crate) live: BTreeSet<LeaseId>,
    pub(crate) ended: BTreeSet<LeaseId>,
    /// Binds and rotations that are ordered and not reported.
    pub(crate) on_their_way: usize,
}

impl LeaseTable {
    /// The name as the table holds it, so that a million leases share it.
    pub(crate) fn tenant_name(&mut self, name: &str) -> Arc<str> {
        self.tenants
            .get_key_value(name)
            .map_or_else(|| Arc::from(name), |(known, _)| known.clone())
    }

    /// Whether the tenant may have one more lease.
    pub(crate) fn check_records(&self, name: &str) -> Result<(), Refusal> {
        let tenant = self.tenants.get(name);
        let has = tenant.map_or(0, |tenant| tenant.live.len() + tenant.ended.len());
        let (max, all_max) = (self.policy.tenant_records_max, self.policy.records_max);
        if has < max && self.records() < all_max {
            return Ok(());
        }
        Err(Refusal::new(
            LeaseError::Unavailable,
            RefusalClass::Transient,
            format!(
                "{has} leases of tenant {name} are on record, ended ones included; the node keeps \
                 {max} a tenant and {all_max} in all: try later"
            ),
        ))
    }

    /// Whether the tenant may have one more binding or rotation on its way.
    pub(crate) fn check_binds(&self, name: &str) -> Result<(), Refusal> {
        let on_their_way = self
            .tenants
            .get(name)
            .map_or(0, |tenant| tenant.on_their_way);
        if on_their_way < self.policy.tenant_binds_max {
            return Ok(());
        }
        Err(Refusal::new(
            LeaseError::ResourceBusy,
            RefusalClass::Transient,
            format!("{on_their_way} bindings of tenant {name} are on their way; ask again"),
        ))
    }

    /// The tenant has this lease.
    pub(crate) fn lives(&mut self, name: &Arc<str>, id: LeaseId) -> &mut Tenant {
        let tenant = self.tenants.entry(name.clone()).or_default();
        tenant.live.insert(id);
        tenant
    }

    /// A bind or rotation of a live lease has been ordered.
    pub(crate) fn on_its_way(&mut self, name: &Arc<str>, id: LeaseId) {
        self.lives(name, id).on_their_way += 1;
    }

    /// It has been reported.
    pub(crate) fn arrived(&mut self, name: &Arc<str>) {
        if let Some(tenant) = self.tenants.get_mut(name) {
            tenant.on_their_way = tenant.on_their_way.saturating_sub(1);
        }
    }

    /// From now on the lease is a record.
    pub(crate) fn remember(&mut self, now: Now, id: LeaseId, ended: Ended) {
        let tenant = self.tenants.entry(ended.tenant.clone()).or_default();
        tenant.live.remove(&id);
        tenant.ended.insert(id);
        self.ended.insert(id, ended);
        self.forget
            .push_back((now.boot + self.policy.keep_ended, id));
    }

    /// Takes a lease's id from its tenant, and a tenant without leases from the table.
    pub(crate) fn forget_name(&mut self, name: &Arc<str>, id: LeaseId) {
        if let Some(tenant) = self.tenants.get_mut(name) {
            tenant.live.remove(&id);
            tenant.ended.remove(&id);
            if tenant.live.is_empty() && tenant.ended.is_empty() {
                self.tenants.remove(name);
            }
        }
    }
}
