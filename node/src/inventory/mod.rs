//! The node's inventory: detected hardware, overlaid with the resources on offer and their free capacity.

pub mod detection;
pub mod hardware;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use fabricbios_lease::{Availability, NodeLimits, Trouble};
use fabricbios_wire::{
    Epoch, FlatEntry, InventoryExtension, NodeId, REPORT_BYTES_MAX, ResourceId, ResourceInventory,
    ResourceType, Transport, encode_structured, health, resource_flags,
};

use crate::inventory::{
    detection::{Detection, Found},
    hardware::Hardware,
};

/// See the module.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// The node.
    pub node_id: NodeId,
    /// This start of the daemon.
    pub epoch: Epoch,
    /// The hardware, on offer or not.
    detection: Arc<Detection>,
    /// Describes each resource on offer.
    described: BTreeMap<ResourceId, Arc<dyn Described>>,
}

/// Describes a resource on offer in inventories.
pub trait Described: fmt::Debug + Send + Sync {
    /// Replaces the detected entry by the entry of this resource. [`describe`] adds the fields that all kinds have.
    fn overlay(&self, inventory: &mut ResourceInventory, status: ResourceStatus, found: &Found);

    /// True if the resource is made of this hardware, which is not listed beside it.
    fn is_made_of(&self, _hardware: &dyn Hardware) -> bool {
        false
    }

    /// A defect of the hardware, for people. `None`: there is none.
    fn trouble(&self, _found: &Found) -> Option<String> {
        None
    }
}

/// The state of a resource on offer, the same in every form.
#[derive(Clone, Debug)]
pub struct ResourceStatus {
    /// Free capacity and fences, from the table. `trouble` includes defects of the hardware.
    pub available: Availability,
}

impl ResourceStatus {
    /// The health of a typed entry, and the flags of a flat entry.
    fn state(&self) -> (u32, u16) {
        match (self.available.fenced, &self.available.trouble) {
            (true, _) => (health::FENCED, resource_flags::FENCED),
            (false, Some(_)) => (health::DEGRADED, resource_flags::DEGRADED),
            (false, None) => (health::OK, 0),
        }
    }

    /// The health of a typed entry.
    pub(crate) fn health(&self) -> u32 {
        self.state().0
    }

    fn flat_entry(&self) -> FlatEntry {
        FlatEntry {
            resource_id: self.available.resource_id,
            resource_type: self.available.resource_type,
            flags: self.state().1,
            capacity: self.available.capacity,
            available: self.available.available,
        }
    }
}

impl Inventory {
    /// An inventory without resources on offer.
    #[must_use]
    pub fn new(node_id: NodeId, epoch: Epoch, detection: Arc<Detection>) -> Self {
        Self {
            node_id,
            epoch,
            detection,
            described: BTreeMap::new(),
        }
    }

    /// Adds a resource on offer.
    pub fn describe(&mut self, id: ResourceId, described: Arc<dyn Described>) {
        self.described.insert(id, described);
    }

    /// The resources that are on offer, not merely listed.
    #[must_use]
    pub fn on_offer(&self) -> BTreeSet<ResourceId> {
        self.described.keys().copied().collect()
    }

    /// The flat form: the resources on offer and the hardware that is listed, 36 bytes per entry. `offered`: from the table.
    /// `failing`: why leases of a resource cannot be made.
    #[must_use]
    pub fn flat(
        &self,
        offered: impl Iterator<Item = Availability>,
        failing: &dyn Fn(ResourceId) -> Option<String>,
    ) -> Vec<FlatEntry> {
        let (found, _) = self.detection.latest();
        let mut entries = hardware::flat(&self.listed(&found), &self.node_id);
        for available in offered {
            let status = self.status(available, &found, failing);
            entries.retain(|entry| entry.resource_id != status.available.resource_id);
            entries.push(status.flat_entry());
        }
        entries.sort_by_key(|entry| (entry.resource_type, entry.resource_id));
        entries
    }

    /// The structured form. `limits`: those of the table. `trouble`: a defect of the node itself.
    #[must_use]
    pub fn structured(
        &self,
        offered: impl Iterator<Item = Availability>,
        limits: NodeLimits<'_>,
        trouble: Option<String>,
        failing: &dyn Fn(ResourceId) -> Option<String>,
    ) -> ResourceInventory {
        let (found, silence) = self.detection.latest();
        let trouble = trouble.or_else(|| found.of_node.clone()).or(silence);
        let mut inventory = hardware::structured(&self.listed(&found), self.node_id, self.epoch);
        if let Some(why) = trouble {
            inventory.health = inventory.health.max(health::DEGRADED);
            let why = InventoryExtension::HealthReason(ResourceId(0), why);
            inventory.extensions.push(why);
        }
        for available in offered {
            if let Some(described) = self.described.get(&available.resource_id) {
                let status = self.status(available, &found, failing);
                described.overlay(&mut inventory, status, &found);
            }
        }
        inventory.extensions.push(limits.to_wire());
        keep_short(&mut inventory);
        inventory
    }

    /// The hardware that is listed beside the resources on offer.
    fn listed(&self, found: &Found) -> Vec<Arc<dyn Hardware>> {
        let mut listed = found.listed.clone();
        listed.retain(|it| !{ self.described.values() }.any(|of| of.is_made_of(&**it)));
        listed
    }

    fn status(
        &self,
        mut available: Availability,
        found: &Found,
        failing: &dyn Fn(ResourceId) -> Option<String>,
    ) -> ResourceStatus {
        let id = available.resource_id;
        let of_hardware = self.described.get(&id).and_then(|it| it.trouble(found));
        // What explains the failures comes first.
        available.trouble = { available.trouble }
            .or_else(|| of_hardware.or_else(|| failing(id)).map(Trouble::Resource));
        ResourceStatus { available }
    }

    /// The kinds of detected hardware, on offer or not: a refusal distinguishes the two.
    #[must_use]
    pub fn kinds(&self) -> Vec<ResourceType> {
        let (found, _) = self.detection.latest();
        found.listed.iter().map(|it| it.row().kind).collect()
    }
}

/// Leaves out what only schedulers read if a report could not have it.
fn keep_short(inventory: &mut ResourceInventory) {
    let fits = encode_structured(inventory).is_some_and(|it| it.len() <= REPORT_BYTES_MAX);
    if !fits {
        let is_for_schedulers = |it: &InventoryExtension| {
            matches!(
                it,
                InventoryExtension::Limits { .. } | InventoryExtension::Admission { .. }
            )
        };
        inventory.extensions.retain(|it| !is_for_schedulers(it));
    }
}

/// Adds the fields that every kind of resource has.
pub fn describe(
    inventory: &mut ResourceInventory,
    status: ResourceStatus,
    name: &str,
    transports: &[Transport],
) {
    let id = status.available.resource_id;
    inventory.health = inventory.health.max(status.health());
    inventory.extensions.retain(|it| it.resource_id() != id);
    let name = InventoryExtension::Name(id, name.to_owned());
    inventory.extensions.push(name);
    let told = status.available.to_wire(transports);
    inventory.extensions.extend(told);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many resources with short names.
    fn inventory(resources: u128) -> ResourceInventory {
        let of_one = |number| {
            let resource_id = ResourceId(number);
            [
                InventoryExtension::Name(resource_id, "gpu".into()),
                InventoryExtension::Admission {
                    resource_id,
                    flags: 0,
                    forbidden: Vec::new(),
                    most: vec![(0, 1, 1)],
                },
            ]
        };
        ResourceInventory {
            node_id: NodeId([1; 32]),
            epoch: Epoch(1),
            health: health::OK,
            mem_arenas: Vec::new(),
            block_devs: Vec::new(),
            cpu_caps: Vec::new(),
            nics: Vec::new(),
            gpus: Vec::new(),
            extensions: (1..=resources).flat_map(of_one).collect(),
        }
    }

    /// A node with very many resources reports as it did before inventories said that much.
    #[test]
    fn what_only_schedulers_read_is_left_out_where_a_report_could_not_have_it() {
        for (resources, left) in [(100, 200), (1000, 1000)] {
            let mut told = inventory(resources);
            keep_short(&mut told);
            assert_eq!(told.extensions.len(), left);
            assert!(encode_structured(&told).unwrap().len() <= REPORT_BYTES_MAX);
        }
    }
}
