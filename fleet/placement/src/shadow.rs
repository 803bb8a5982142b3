//! What admission sees of a node that reports: the shadow of its table.

use fabricbios_lease::{Chosen, NodeLimits, Offered, Profile, Refuses, Removed, Sight};
use fabricbios_wire::{
    InventoryExtension, LeaseAllocRequest, ResourceId, ResourceInventory, ResourceType,
};

use crate::Offer;

/// A node as it has reported itself. It is made anew of each report, which has the whole inventory, so nothing in it
/// can be left over.
#[derive(Clone, Debug)]
pub struct Shadow {
    offers: Vec<Offer>,
    limits: Option<NodeLimits<'static>>,
    /// The kinds that the node has, on offer or not.
    detected: Vec<ResourceType>,
}

impl Shadow {
    /// The shadow of the node that has reported this inventory.
    #[must_use]
    pub fn new(inventory: &ResourceInventory) -> Self {
        let limits = inventory.extensions.iter().find_map(|it| match *it {
            InventoryExtension::Limits {
                lease_secs_max,
                grace_secs_max,
                bare_metal,
            } => Some(NodeLimits {
                lease_secs_max,
                grace_secs_max,
                profile: if bare_metal {
                    Profile::BareMetal
                } else {
                    Profile::Linux
                },
                detected: &[],
            }),
            _ => None,
        });
        let has = [
            (ResourceType::Mem, !inventory.mem_arenas.is_empty()),
            (ResourceType::Block, !inventory.block_devs.is_empty()),
            (ResourceType::Cpu, !inventory.cpu_caps.is_empty()),
            (ResourceType::Net, !inventory.nics.is_empty()),
            (ResourceType::Gpu, !inventory.gpus.is_empty()),
        ];
        let detected = has.into_iter().filter(|(_, has)| *has);
        Self {
            offers: Offer::all(inventory),
            limits,
            detected: detected.map(|(kind, _)| kind).collect(),
        }
    }

    /// The resources on offer, ascending by id.
    #[must_use]
    pub fn offers(&self) -> &[Offer] {
        &self.offers
    }

    /// The resource of this id, if it is on offer.
    pub(crate) fn offer(&self, id: ResourceId) -> Option<&Offer> {
        let at = self.offers.binary_search_by_key(&id, |it| it.resource_id);
        self.offers.get(at.ok()?)
    }

    /// What the node's table would answer, but for what depends on the tenant.
    ///
    /// # Errors
    /// It would refuse: why.
    pub fn verdict<R: Refuses>(&self, request: &LeaseAllocRequest) -> Result<&Offer, Removed<R>> {
        let sight = Sight {
            limits: NodeLimits {
                detected: &self.detected,
                ..self.limits.unwrap_or(NodeLimits::UNKNOWN)
            },
            resources: { self.offers.iter() }
                .map(|it| it as &dyn Offered)
                .collect(),
        };
        let Chosen { resource, .. } = sight.verdict(request)?;
        debug_assert!(self.may_grant(request), "granted above the ceiling");
        let id = resource.id();
        let place = self.offers.binary_search_by_key(&id, |it| it.resource_id);
        Ok(&self.offers[place.unwrap_or_default()])
    }

    /// Whether the verdict may be a grant; `false`: it is a refusal, of which this does not say the words.
    pub(crate) fn may_grant(&self, request: &LeaseAllocRequest) -> bool {
        let kind = request.resource_type();
        let mut of_kind = self.offers.iter().filter(|it| it.kind == kind);
        of_kind.any(|it| it.may_have(request.capacity))
    }

    /// Whether the node has said all that it decides by. An earlier version does not, nor does a node with very many
    /// resources.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.limits.is_some() && self.offers.iter().all(Offer::is_told_whole)
    }
}
