//! Which node has which lease, as the nodes report it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use fabricbios_wire::{
    FLEET_LEASES_PER_PAGE_MAX, FleetLease, FleetLeases, LeaseId, LeasePhase, LeaseReport, NodeId,
    ReportPart, ReportedLease, ResourceId, ResourceType,
};

/// Most leases of one node: as many as a node can have.
const OF_NODE_MAX: usize = 1 << 20;

/// Whose leases: all for an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose<'a> {
    /// Those of this tenant, as the certificate of a caller names it.
    Tenant(&'a str),
    /// All.
    All,
}

/// A lease at a node. A million of them fit into memory, so the name of a tenant is there once.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    tenant: Arc<str>,
    pub(crate) resource_id: ResourceId,
    resource_type: ResourceType,
    phase: LeasePhase,
    capacity: u64,
    expires_at_unix_ms: u64,
}

/// A resource of which a part is being cleaned after leases that are over.
pub(crate) struct Leaving {
    pub(crate) resource_id: ResourceId,
    /// How much is being cleaned.
    pub(crate) amount: u64,
    /// How much the other leases have.
    pub(crate) kept: u64,
}

/// A node may report the id of a lease that another one has: the key has both.
type Key = (LeaseId, NodeId);

/// The leases of the nodes that report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leases {
    all: BTreeMap<Key, Known>,
    nodes: BTreeMap<NodeId, OfNode>,
    tenants: BTreeMap<Arc<str>, BTreeSet<Key>>,
    /// How much of each resource leases have that are not over, or whose part is fenced.
    kept: BTreeMap<(NodeId, ResourceId), u128>,
    /// How much of it is being cleaned after the others.
    leaving: BTreeMap<(NodeId, ResourceId), u128>,
}

#[derive(Clone, Debug, Default)]
struct OfNode {
    leases: BTreeSet<LeaseId>,
    /// A list that has begun and not ended.
    coming: Option<BTreeMap<LeaseId, ReportedLease>>,
    /// Whether a whole list has come over the present connection.
    is_whole: bool,
}

impl Leases {
    /// The node reports over a new connection. What it had before stands until its new list has ended.
    pub(crate) fn begin(&mut self, node_id: NodeId) {
        let node = self.nodes.entry(node_id).or_default();
        (node.coming, node.is_whole) = (None, false);
    }

    /// Whether the node has reported all its leases over the present connection.
    pub(crate) fn is_whole(&self, node_id: NodeId) -> bool {
        self.nodes.get(&node_id).is_some_and(|it| it.is_whole)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The node reports no more.
    pub(crate) fn forget(&mut self, node_id: NodeId) {
        let node = self.nodes.remove(&node_id).unwrap_or_default();
        for id in node.leases {
            self.remove((id, node_id));
        }
    }

    /// Takes a report, or nothing of it: the error says why. `Ok`: a lease of it that another node has reported too.
    pub(crate) fn take(
        &mut self,
        node_id: NodeId,
        report: LeaseReport,
    ) -> Result<Option<Key>, &'static str> {
        const TOO_MANY: &str = "the node has more leases than a node can have";
        let node = self.nodes.entry(node_id).or_default();
        let whole = match (report.part, &mut node.coming) {
            (ReportPart::Changes, None) if node.is_whole => {
                let are_new = { report.leases.iter() }
                    .filter(|it| !node.leases.contains(&it.lease_id))
                    .count();
                if node.leases.len() + are_new > OF_NODE_MAX {
                    return Err(TOO_MANY);
                }
                for id in &report.gone {
                    node.leases.remove(id);
                }
                for id in report.gone {
                    self.remove((id, node_id));
                }
                return Ok(self.put(node_id, report.leases));
            }
            (ReportPart::Changes, _) => {
                return Err("no whole list of leases came before the changes");
            }
            (ReportPart::Begin | ReportPart::Whole, coming) => coming.insert(BTreeMap::new()),
            (ReportPart::Next | ReportPart::End, Some(coming)) => coming,
            (ReportPart::Next | ReportPart::End, None) => {
                return Err("no list of leases has begun");
            }
        };
        if whole.len() + report.leases.len() > OF_NODE_MAX {
            return Err(TOO_MANY);
        }
        whole.extend(report.leases.into_iter().map(|it| (it.lease_id, it)));
        if matches!(report.part, ReportPart::Begin | ReportPart::Next) {
            return Ok(None);
        }
        node.is_whole = true;
        let whole = node.coming.take().unwrap_or_default();
        let over = { node.leases.iter().copied() }.filter(|id| !whole.contains_key(id));
        let over: Vec<LeaseId> = over.collect();
        node.leases = whole.keys().copied().collect();
        for id in over {
            self.remove((id, node_id));
        }
        Ok(self.put(node_id, whole.into_values()))
    }

    /// Returns a lease that another node has reported too.
    fn put(
        &mut self,
        node_id: NodeId,
        leases: impl IntoIterator<Item = ReportedLease>,
    ) -> Option<Key> {
        let mut claimed = None;
        for it in leases {
            let key = (it.lease_id, node_id);
            let tenant = match self.tenants.get_key_value(&*it.tenant) {
                Some((known, _)) => Arc::clone(known),
                None => Arc::from(it.tenant),
            };
            let known = Known {
                tenant: Arc::clone(&tenant),
                resource_id: it.resource_id,
                resource_type: it.resource_type,
                phase: it.phase,
                capacity: it.capacity,
                expires_at_unix_ms: it.expires_at_unix_ms,
            };
            self.count(node_id, &known, u128::saturating_add);
            if let Some(before) = self.all.insert(key, known) {
                self.count(node_id, &before, u128::saturating_sub);
                if before.tenant != tenant {
                    self.remove_of(&before.tenant, key);
                }
            }
            self.tenants.entry(tenant).or_default().insert(key);
            self.nodes.entry(node_id).or_default().leases.insert(key.0);
            let others = { self.at(key.0) }.find(|(other, _)| *other != node_id);
            claimed = claimed.or(others.map(|(other, _)| (key.0, other)));
        }
        claimed
    }

    /// Takes a lease from all but its node's own list.
    fn remove(&mut self, key: Key) {
        if let Some(known) = self.all.remove(&key) {
            self.count(key.1, &known, u128::saturating_sub);
            self.remove_of(&known.tenant, key);
        }
    }

    fn count(&mut self, node_id: NodeId, of: &Known, change: fn(u128, u128) -> u128) {
        use LeasePhase::{Expired, Freed, Revoked};
        let amounts = match of.phase {
            Expired | Freed | Revoked => &mut self.leaving,
            _ => &mut self.kept,
        };
        let key = (node_id, of.resource_id);
        let amount = change(amounts.get(&key).copied().unwrap_or(0), of.capacity.into());
        match amount {
            0 => amounts.remove(&key),
            amount => amounts.insert(key, amount),
        };
    }

    /// The resources of a node of which a part is being cleaned.
    pub(crate) fn leaving(&self, node_id: NodeId) -> impl Iterator<Item = Leaving> {
        let all = (node_id, ResourceId(0))..=(node_id, ResourceId(u128::MAX));
        let units = |amount: u128| u64::try_from(amount).unwrap_or(u64::MAX);
        self.leaving.range(all).map(move |(key, amount)| Leaving {
            resource_id: key.1,
            amount: units(*amount),
            kept: units(self.kept.get(key).copied().unwrap_or(0)),
        })
    }

    fn remove_of(&mut self, tenant: &Arc<str>, key: Key) {
        if let Some(its) = self.tenants.get_mut(tenant) {
            its.remove(&key);
            if its.is_empty() {
                self.tenants.remove(tenant);
            }
        }
    }

    fn at(&self, id: LeaseId) -> impl Iterator<Item = (NodeId, &Known)> {
        let (first, last) = ((id, NodeId([0; 32])), (id, NodeId([0xFF; 32])));
        let at = self.all.range(first..=last);
        at.map(|((_, node_id), known)| (*node_id, known))
    }

    /// The nodes that report this lease as one of `whose`.
    pub(crate) fn of<'a>(
        &'a self,
        id: LeaseId,
        whose: Whose<'a>,
    ) -> impl Iterator<Item = (NodeId, &'a Known)> {
        self.at(id).filter(move |(_, known)| match whose {
            Whose::Tenant(tenant) => *known.tenant == *tenant,
            Whose::All => true,
        })
    }

    /// The nodes that report leases of the tenant. A tenant with more leases than are looked at may have some elsewhere.
    pub(crate) fn nodes_of(&self, tenant: &str) -> impl Iterator<Item = NodeId> {
        const LOOKED_AT_MAX: usize = 4_096;
        let its = self.tenants.get(tenant).into_iter().flatten();
        its.take(LOOKED_AT_MAX).map(|(_, node_id)| *node_id)
    }

    /// The leases of `whose` behind `after`, as many as a page has.
    pub(crate) fn page(&self, after: Key, whose: Whose<'_>) -> FleetLeases {
        let behind = (Bound::Excluded(after), Bound::Unbounded);
        let most = FLEET_LEASES_PER_PAGE_MAX + 1;
        let told = |(key, known): (&Key, &Known)| known.told(*key);
        let mut leases: Vec<FleetLease> = match whose {
            Whose::All => self.all.range(behind).take(most).map(told).collect(),
            Whose::Tenant(tenant) => {
                let its = self.tenants.get(tenant).into_iter();
                let its = its.flat_map(|its| its.range(behind)).take(most);
                its.filter_map(|key| Some(told((key, self.all.get(key)?))))
                    .collect()
            }
        };
        let more = leases.len() == most;
        leases.truncate(FLEET_LEASES_PER_PAGE_MAX);
        FleetLeases { leases, more }
    }
}

impl Known {
    fn told(&self, (lease_id, node_id): Key) -> FleetLease {
        FleetLease {
            node_id,
            lease: ReportedLease {
                lease_id,
                resource_id: self.resource_id,
                resource_type: self.resource_type,
                phase: self.phase,
                capacity: self.capacity,
                expires_at_unix_ms: self.expires_at_unix_ms,
                tenant: self.tenant.to_string(),
            },
        }
    }
}

#[cfg(test)]
mod tests;
