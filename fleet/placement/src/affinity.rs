//! Affinities (0x0910) as sets of nodes and resources: what a request should be near to, or far from.

use std::collections::BTreeSet;

use fabricbios_wire::{
    Affinity, InventoryExtension, LeaseError, LeaseId, NodeId, Refusal, RefusalClass, ResourceId,
};

use crate::{Offer, View, Whose, view::Member};

/// Numbers of [`Affinity`].
mod category {
    pub(super) const NAMES: [&str; 5] = ["resource", "node", "rack", "tenant", "data"];
    pub(super) const RESOURCE: u8 = 1;
    pub(super) const RACK: u8 = 3;
    pub(super) const TENANT: u8 = 4;
}
const REQUIRED: u8 = 1;
const PREFERRED: u8 = 2;
const TARGET_RESOURCE: u8 = 1;
const TARGET_LEASE: u8 = 2;
const TARGET_NODE: u8 = 3;

/// The affinities of a request.
#[derive(Debug, Default)]
pub(crate) struct Affinities(Vec<Near>);

/// What is near the target of one affinity.
#[derive(Debug)]
struct Near {
    strength: u8,
    /// Whether the resource must be near, and not only its node.
    is_of_resource: bool,
    nodes: BTreeSet<NodeId>,
    resources: BTreeSet<(NodeId, ResourceId)>,
    /// Nodes of which each resource is near, if `is_of_resource`.
    whole: BTreeSet<NodeId>,
}

impl Affinities {
    /// Whether a resource has every affinity that is required.
    pub(crate) fn allow(&self, member: &Member, offer: &Offer) -> bool {
        let mut required = self.0.iter().filter(|it| it.strength == REQUIRED);
        required.all(|it| it.has(member, offer))
    }

    /// Whether the request has none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of them tells the resources of a node apart.
    pub(crate) fn are_of_resources(&self) -> bool {
        self.0.iter().any(|it| it.is_of_resource)
    }

    /// The number of affinities that the resource has as preferred, less the number of those that it should not have.
    pub(crate) fn liking(&self, member: &Member, offer: &Offer) -> i32 {
        let weighed = self.0.iter().filter(|it| it.has(member, offer));
        let weights = weighed.map(|it| match it.strength {
            REQUIRED => 0,
            PREFERRED => 1,
            _ => -1,
        });
        weights.sum()
    }
}

impl Near {
    fn has(&self, member: &Member, offer: &Offer) -> bool {
        let node_id = member.told.node_id;
        match self.is_of_resource {
            true => {
                self.whole.contains(&node_id)
                    || self.resources.contains(&(node_id, offer.resource_id))
            }
            false => self.nodes.contains(&node_id),
        }
    }
}

impl View {
    /// The affinities of a request of this tenant. Of leases only the tenant's own count.
    ///
    /// # Errors
    /// No node has what is required. The refusal is transient: a node that does not report now may.
    pub(crate) fn affinities(
        &self,
        affinities: &[Affinity],
        tenant: &str,
    ) -> Result<Affinities, Refusal> {
        let all = affinities.iter().map(|it| match self.near(it, tenant) {
            near if it.strength == REQUIRED && near.is_nowhere() => Err(nobody_has(it)),
            near => Ok(near),
        });
        all.collect::<Result<_, _>>().map(Affinities)
    }

    fn near(&self, affinity: &Affinity, tenant: &str) -> Near {
        let mut near = Near {
            strength: affinity.strength,
            is_of_resource: affinity.category == category::RESOURCE,
            nodes: BTreeSet::new(),
            resources: BTreeSet::new(),
            whole: BTreeSet::new(),
        };
        match id_of(affinity) {
            Id::Resource(id) => {
                let having = |it: &&Member| {
                    it.shadow
                        .offers()
                        .iter()
                        .any(|offer| offer.resource_id == id)
                };
                for member in self.members.values().filter(having) {
                    near.add(member.told.node_id, id);
                }
            }
            Id::Lease(id) => {
                for (node_id, known) in self.leases.of(id, Whose::Tenant(tenant)) {
                    near.add(node_id, known.resource_id);
                }
            }
            Id::Node(id) => near.add_all_of(self.members.get(&id)),
            Id::Label(text) => self.labelled(&mut near, affinity.category, text, tenant),
        }
        if affinity.category == category::RACK && affinity.target_type <= TARGET_NODE {
            near.nodes = self.in_racks_of(&near.nodes);
        }
        near
    }

    fn labelled(&self, near: &mut Near, category: u8, text: &str, tenant: &str) {
        let name = category::NAMES.get(usize::from(category).wrapping_sub(1));
        let label = format!("{}={text}", name.unwrap_or(&""));
        for member in self.members.values() {
            // A target may be a whole label too, such as zone=a.
            if (member.told.labels.iter()).any(|it| *it == label || it == text) {
                near.add_all_of(Some(member));
            }
            let extensions = &member.told.inventory.extensions;
            let named = extensions.iter().filter_map(|it| match it {
                InventoryExtension::Name(id, name) if name == text => Some(*id),
                _ => None,
            });
            if near.is_of_resource {
                named.for_each(|id| near.add(member.told.node_id, id));
            }
        }
        if category == category::TENANT && text == tenant {
            near.nodes.extend(self.leases.nodes_of(tenant));
        }
    }

    /// The nodes with a label `rack=…` that one of these nodes has.
    fn in_racks_of(&self, nodes: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        fn racks(member: &Member) -> impl Iterator<Item = &str> {
            let labels = member.told.labels.iter().map(String::as_str);
            labels.filter(|it| it.starts_with("rack="))
        }
        let known = nodes.iter().filter_map(|id| self.members.get(id));
        let wanted: BTreeSet<&str> = known.flat_map(racks).collect();
        let members = self.members.iter();
        let within = members.filter(|(_, it)| racks(it).any(|rack| wanted.contains(rack)));
        within.map(|(id, _)| *id).collect()
    }
}

impl Near {
    fn is_nowhere(&self) -> bool {
        match self.is_of_resource {
            true => self.resources.is_empty() && self.whole.is_empty(),
            false => self.nodes.is_empty(),
        }
    }

    fn add(&mut self, node_id: NodeId, resource_id: ResourceId) {
        self.nodes.insert(node_id);
        if self.is_of_resource {
            self.resources.insert((node_id, resource_id));
        }
    }

    fn add_all_of(&mut self, member: Option<&Member>) {
        let Some(member) = member else { return };
        let node_id = member.told.node_id;
        self.nodes.insert(node_id);
        if self.is_of_resource && !member.shadow.offers().is_empty() {
            self.whole.insert(node_id);
        }
    }
}

/// The target of an affinity.
enum Id<'a> {
    Resource(ResourceId),
    Lease(LeaseId),
    Node(NodeId),
    Label(&'a str),
}

/// What no decoder lets through counts as a label that nobody has.
fn id_of(affinity: &Affinity) -> Id<'_> {
    let target = &affinity.target[..];
    let number = || Some(u128::from_be_bytes(target.try_into().ok()?));
    let id = match affinity.target_type {
        TARGET_RESOURCE => number().map(|id| Id::Resource(ResourceId(id))),
        TARGET_LEASE => number().map(|id| Id::Lease(LeaseId(id))),
        TARGET_NODE => target.try_into().ok().map(|id| Id::Node(NodeId(id))),
        _ => None,
    };
    id.unwrap_or_else(|| Id::Label(std::str::from_utf8(target).unwrap_or_default()))
}

fn nobody_has(affinity: &Affinity) -> Refusal {
    let category = usize::from(affinity.category).wrapping_sub(1);
    let category = category::NAMES.get(category).unwrap_or(&"unknown");
    let target = match id_of(affinity) {
        Id::Resource(id) => format!("resource {id}"),
        Id::Lease(id) => format!("lease {id} of yours"),
        Id::Node(id) => format!("node {id}"),
        Id::Label(text) => format!("{text:?}"),
    };
    let why = format!(
        "no node that reports has what the required affinity to {category} names: {target}; try again later, or ask without it"
    );
    Refusal::new(LeaseError::Unavailable, RefusalClass::Transient, why)
}

#[cfg(test)]
mod tests;
