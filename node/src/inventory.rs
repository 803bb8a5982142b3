//! The node's inventory: detected hardware, overlaid with the resources on offer and their free capacity.

mod classes;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use fabricbios_lease::{Availability, Condition};
use fabricbios_pool::Facts;
use fabricbios_wire::{
    BLOCK_REMOVABLE, BLOCK_RO, BlockDev, Epoch, FlatEntry, InventoryExtension, MemArena, NodeId,
    ResourceId, ResourceInventory, ResourceType, Transport, health, resource_flags,
};

use crate::detect::Detected;

/// A memory arena on offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedArena {
    /// The resource.
    pub resource_id: ResourceId,
    /// A name for people.
    pub name: String,
    /// Granularity of leases, bytes.
    pub align_bytes: u32,
    /// Most bytes in one operation of the data plane.
    pub message_bytes_max: u32,
    /// Transports, best first.
    pub transports: Vec<Transport>,
}

/// A block pool on offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedPool {
    /// The resource.
    pub resource_id: ResourceId,
    /// The pool's facts.
    pub facts: Facts,
    /// Transports, best first.
    pub transports: Vec<Transport>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// The node.
    pub node_id: NodeId,
    /// This start of the daemon.
    pub epoch: Epoch,
    /// Detected hardware, on offer or not.
    pub detected: Detected,
    /// Describes each resource on offer.
    described: BTreeMap<ResourceId, Arc<dyn Described>>,
    /// Resources on offer that are degraded.
    degraded: BTreeSet<ResourceId>,
}

/// Describes a resource on offer in inventories.
pub trait Described: fmt::Debug + Send + Sync {
    /// Replaces the detected entry by the resource. [`describe`] adds the fields that all kinds have.
    fn overlay(&self, inventory: &mut ResourceInventory, status: ResourceStatus);

    /// Removes detected hardware that is part of this resource.
    fn hide(&self, detected: &mut Detected);
}

/// The state of a resource on offer.
#[derive(Clone, Debug)]
pub struct ResourceStatus {
    /// Free capacity and fences, from the table.
    pub available: Availability,
    /// The provider reported that a part of it failed.
    pub degraded: bool,
}

impl ResourceStatus {
    /// As the health of a typed entry and as the flags of a flat one.
    fn state(&self) -> (u32, u16) {
        let degraded = self.degraded || self.available.partly_fenced;
        match (self.available.fenced, degraded) {
            (true, _) => (health::FENCED, resource_flags::FENCED),
            (false, true) => (health::DEGRADED, resource_flags::DEGRADED),
            (false, false) => (health::OK, 0),
        }
    }

    /// As the health of a typed entry.
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
    pub fn new(node_id: NodeId, epoch: Epoch, detected: Detected) -> Self {
        Self {
            node_id,
            epoch,
            detected,
            described: BTreeMap::new(),
            degraded: BTreeSet::new(),
        }
    }

    /// Adds a resource on offer.
    pub fn describe(&mut self, id: ResourceId, described: Arc<dyn Described>) {
        described.hide(&mut self.detected);
        self.described.insert(id, described);
    }

    /// Notes the condition of a resource.
    pub fn note(&mut self, id: ResourceId, condition: &Condition) {
        match condition {
            Condition::Good => {
                tracing::info!(resource_id = %id, "does well again");
                self.degraded.remove(&id);
            }
            Condition::Degraded(why) | Condition::Lost { why, .. } => {
                tracing::warn!(resource_id = %id, why, "degraded");
                self.degraded.insert(id);
            }
        }
    }

    /// The status of a resource on offer.
    #[must_use]
    pub fn status(&self, available: Availability) -> ResourceStatus {
        ResourceStatus {
            degraded: self.degraded.contains(&available.resource_id),
            available,
        }
    }

    /// The flat form, 36 bytes an entry.
    #[must_use]
    pub fn flat(&self, offered: &[ResourceStatus]) -> Vec<FlatEntry> {
        let mut entries = self.detected.flat(&self.node_id);
        for status in offered {
            entries.retain(|entry| entry.resource_id != status.available.resource_id);
            entries.push(status.flat_entry());
        }
        entries.sort_by_key(|entry| (entry.resource_type, entry.resource_id));
        entries
    }

    /// The typed form.
    #[must_use]
    pub fn structured(&self, offered: &[ResourceStatus]) -> ResourceInventory {
        let mut inventory = self.detected.inventory(self.node_id, self.epoch);
        for status in offered {
            if let Some(described) = self.described.get(&status.available.resource_id) {
                described.overlay(&mut inventory, status.clone());
            }
        }
        inventory
    }

    /// Detected kinds, on offer or not: a refusal distinguishes the two.
    #[must_use]
    pub fn kinds(&self) -> Vec<ResourceType> {
        self.detected
            .flat(&self.node_id)
            .iter()
            .map(|entry| entry.resource_type)
            .collect()
    }
}

impl Described for OfferedArena {
    fn hide(&self, _detected: &mut Detected) {}

    fn overlay(&self, inventory: &mut ResourceInventory, status: ResourceStatus) {
        let id = self.resource_id;
        inventory.mem_arenas.retain(|arena| arena.resource_id != id);
        inventory.mem_arenas.push(MemArena {
            resource_id: id,
            base: 0,
            len: status.available.capacity,
            align: self.align_bytes,
            max_read: self.message_bytes_max,
            max_write: self.message_bytes_max,
            health: status.health(),
        });
        describe(inventory, status, &self.name, &self.transports);
    }
}

impl Described for OfferedPool {
    /// A device on offer is listed as a pool, not as a detected device.
    fn hide(&self, detected: &mut Detected) {
        let is_its = |found: &str| self.facts.device.as_deref() == Some(found);
        detected.blocks.retain(|found| !is_its(&found.name));
    }

    fn overlay(&self, inventory: &mut ResourceInventory, status: ResourceStatus) {
        let read_only = if self.facts.read_only { BLOCK_RO } else { 0 };
        let removable = if self.facts.removable {
            BLOCK_REMOVABLE
        } else {
            0
        };
        inventory.block_devs.push(BlockDev {
            resource_id: self.resource_id,
            block_size: self.facts.block_bytes,
            capacity: status.available.capacity,
            flags: read_only | removable,
            health: status.health(),
        });
        describe(inventory, status, &self.facts.name, &self.transports);
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
    inventory
        .extensions
        .retain(|extension| !speaks_of(extension, id));
    inventory.extensions.extend([
        InventoryExtension::Name(id, name.to_owned()),
        InventoryExtension::Available(id, status.available.available),
        InventoryExtension::Transports(id, transports.to_vec()),
    ]);
    inventory
        .extensions
        .extend(classes::told(&status.available));
    let part = status.available.fenced_part;
    let part = (part != 0).then_some(InventoryExtension::FencedPart(id, part));
    inventory.extensions.extend(part);
}

fn speaks_of(extension: &InventoryExtension, id: ResourceId) -> bool {
    match extension {
        InventoryExtension::Name(of, _)
        | InventoryExtension::Available(of, _)
        | InventoryExtension::Transports(of, _)
        | InventoryExtension::FencedPart(of, _)
        | InventoryExtension::ClassEnforcement(of, _)
        | InventoryExtension::ClassAvailable(of, _) => *of == id,
        InventoryExtension::Classes { resource_id, .. }
        | InventoryExtension::VirtualFunctions { resource_id, .. }
        | InventoryExtension::GpuSlots { resource_id, .. } => *resource_id == id,
    }
}
