//! The node's inventory: detected hardware, overlaid with the resources on offer and their free capacity.

mod classes;
pub mod detection;
pub mod hardware;

use std::{collections::BTreeMap, fmt, sync::Arc};

use fabricbios_lease::Availability;
use fabricbios_wire::{
    Epoch, FlatEntry, InventoryExtension, InventoryForm, NodeId, Reply, ResourceId,
    ResourceInventory, ResourceType, Transport, health, resource_flags,
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

    /// The inventory in this form. `offered`: from the table. `trouble`: a defect of the node itself.
    #[must_use]
    pub fn told(
        &self,
        form: InventoryForm,
        offered: impl Iterator<Item = Availability>,
        trouble: Option<String>,
    ) -> Reply {
        let (found, silence) = self.detection.latest();
        let offered = offered.map(|available| self.status(available, &found));
        let offered: Vec<ResourceStatus> = offered.collect();
        let mut listed = found.listed.clone();
        listed.retain(|it| !{ self.described.values() }.any(|of| of.is_made_of(&**it)));
        match form {
            InventoryForm::Flat => {
                Reply::FlatInventory(flat(hardware::flat(&listed, &self.node_id), offered))
            }
            InventoryForm::Structured => {
                let trouble = trouble.or_else(|| found.state_dir.clone()).or(silence);
                let mut inventory = hardware::structured(&listed, self.node_id, self.epoch);
                if let Some(why) = trouble {
                    inventory.health = inventory.health.max(health::DEGRADED);
                    let why = InventoryExtension::HealthReason(ResourceId(0), why);
                    inventory.extensions.push(why);
                }
                for status in offered {
                    if let Some(described) = self.described.get(&status.available.resource_id) {
                        described.overlay(&mut inventory, status, &found);
                    }
                }
                Reply::Inventory(inventory)
            }
        }
    }

    fn status(&self, mut available: Availability, found: &Found) -> ResourceStatus {
        let described = self.described.get(&available.resource_id);
        let of_hardware = described.and_then(|it| it.trouble(found));
        available.trouble = available.trouble.or(of_hardware);
        ResourceStatus { available }
    }

    /// The kinds of detected hardware, on offer or not: a refusal distinguishes the two.
    #[must_use]
    pub fn kinds(&self) -> Vec<ResourceType> {
        let (found, _) = self.detection.latest();
        found.listed.iter().map(|it| it.row().kind).collect()
    }
}

/// The flat form, 36 bytes per entry: resources on offer replace detected hardware.
fn flat(mut entries: Vec<FlatEntry>, offered: Vec<ResourceStatus>) -> Vec<FlatEntry> {
    for status in offered {
        entries.retain(|entry| entry.resource_id != status.available.resource_id);
        entries.push(status.flat_entry());
    }
    entries.sort_by_key(|entry| (entry.resource_type, entry.resource_id));
    entries
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
    inventory.extensions.extend([
        InventoryExtension::Name(id, name.to_owned()),
        InventoryExtension::Available(id, status.available.available),
        InventoryExtension::Transports(id, transports.to_vec()),
    ]);
    inventory
        .extensions
        .extend(classes::told(&status.available));
    let why = status.available.trouble;
    let why = why.map(|why| InventoryExtension::HealthReason(id, why));
    inventory.extensions.extend(why);
    let part = status.available.fenced_part;
    let part = (part != 0).then_some(InventoryExtension::FencedPart(id, part));
    inventory.extensions.extend(part);
}
