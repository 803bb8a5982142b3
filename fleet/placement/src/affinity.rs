//! Affinities (0x0910): what a request should be near to, or far from. Each is resolved once for a request, into what tells
//! of one node and resource whether they are near.

use std::collections::BTreeSet;

use fabricbios_wire::{Affinity, LeaseError, LeaseId, NodeId, Refusal, RefusalClass, ResourceId};

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

/// One affinity.
#[derive(Debug)]
struct Near {
    strength: u8,
    /// Whether the resource must be near, and not only its node.
    is_of_resource: bool,
    target: Target,
}

/// What an affinity is to.
#[derive(Debug)]
enum Target {
    /// This resource, or the node that has it.
    Resource(ResourceId),
    /// Resources of certain nodes.
    Resources(BTreeSet<(NodeId, ResourceId)>),
    /// Nodes, with all their resources.
    Nodes(BTreeSet<NodeId>),
    /// Nodes with one of these labels, these nodes, and resources of this name.
    Labels {
        labels: [String; 2],
        nodes: BTreeSet<NodeId>,
        name: Option<String>,
    },
    /// Nodes with one of these labels `rack=…`.
    Racks(BTreeSet<String>),
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
        let weighed = self.0.iter().filter(|it| it.strength != REQUIRED);
        let weights = weighed.map(|it| match (it.has(member, offer), it.strength) {
            (false, _) => 0,
            (true, PREFERRED) => 1,
            (true, _) => -1,
        });
        weights.sum()
    }
}

impl Near {
    fn has(&self, member: &Member, offer: &Offer) -> bool {
        let node_id = member.told.node_id;
        match &self.target {
            Target::Resource(id) if self.is_of_resource => offer.resource_id == *id,
            Target::Resource(id) => member.shadow.offer(*id).is_some(),
            Target::Resources(all) => all.contains(&(node_id, offer.resource_id)),
            Target::Nodes(all) => all.contains(&node_id),
            Target::Labels {
                labels,
                nodes,
                name,
            } => {
                member.told.labels.iter().any(|it| labels.contains(it))
                    || nodes.contains(&node_id)
                    || (name.is_some() && offer.name == *name)
            }
            Target::Racks(all) => racks(member).any(|it| all.contains(it)),
        }
    }
}

impl View {
    /// The affinities of a request of this tenant. Of leases only the tenant's own count.
    pub(crate) fn affinities(&self, affinities: &[Affinity], tenant: &str) -> Affinities {
        let all = affinities.iter().map(|it| self.near(it, tenant));
        Affinities(all.collect())
    }

    /// Refuses what is required and no node has.
    ///
    /// # Errors
    /// The refusal is transient: a node that does not report now may have it.
    pub(crate) fn check_somewhere(
        &self,
        affinities: &[Affinity],
        resolved: &Affinities,
    ) -> Result<(), Refusal> {
        let is_somewhere = |near: &Near| {
            let mut members = self.members.values();
            members.any(|it| it.shadow.offers().iter().any(|offer| near.has(it, offer)))
        };
        let mut all = affinities.iter().zip(&resolved.0);
        match all.find(|(_, near)| near.strength == REQUIRED && !is_somewhere(near)) {
            Some((affinity, _)) => Err(nobody_has(affinity)),
            None => Ok(()),
        }
    }

    fn near(&self, affinity: &Affinity, tenant: &str) -> Near {
        let is_of_resource = affinity.category == category::RESOURCE;
        let target = match id_of(affinity) {
            Id::Resource(id) => Target::Resource(id),
            Id::Lease(id) => {
                let at = self.leases.of(id, Whose::Tenant(tenant));
                let at = at.map(|(node_id, known)| (node_id, known.resource_id));
                match is_of_resource {
                    true => Target::Resources(at.collect()),
                    false => Target::Nodes(at.map(|(node_id, _)| node_id).collect()),
                }
            }
            Id::Node(id) => Target::Nodes([id].into()),
            Id::Label(text) => {
                let name = category::NAMES.get(usize::from(affinity.category).wrapping_sub(1));
                // A target may be a whole label too, such as zone=a.
                let labels = [format!("{}={text}", name.unwrap_or(&"")), text.to_owned()];
                let is_own = affinity.category == category::TENANT && text == tenant;
                let nodes = is_own.then(|| self.leases.nodes_of(tenant));
                Target::Labels {
                    labels,
                    nodes: nodes.into_iter().flatten().collect(),
                    name: is_of_resource.then(|| text.to_owned()),
                }
            }
        };
        let target = match affinity.category {
            category::RACK => self.racks_of(target),
            _ => target,
        };
        Near {
            strength: affinity.strength,
            is_of_resource,
            target,
        }
    }

    /// For nodes that an id names, their racks.
    fn racks_of(&self, target: Target) -> Target {
        let of: Vec<&Member> = match &target {
            Target::Nodes(ids) => ids.iter().filter_map(|id| self.members.get(id)).collect(),
            Target::Resource(id) => {
                let members = self.members.values();
                members
                    .filter(|it| it.shadow.offer(*id).is_some())
                    .collect()
            }
            _ => return target,
        };
        Target::Racks(of.into_iter().flat_map(racks).map(str::to_owned).collect())
    }
}

/// The labels `rack=…` of a node.
fn racks(member: &Member) -> impl Iterator<Item = &str> {
    let labels = member.told.labels.iter().map(String::as_str);
    labels.filter(|it| it.starts_with("rack="))
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
