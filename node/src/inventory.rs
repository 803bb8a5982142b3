//! What the node says it has: what was detected, overlaid with what the operator offers and what
//! the table says is left of it.

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

/// A memory arena that the operator offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedArena {
    /// Which resource.
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

/// A block pool that the operator offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedPool {
    /// Which resource.
    pub resource_id: ResourceId,
    /// What it is.
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
    /// What there is, offered or not.
    pub detected: Detected,
    /// What is said of each resource on offer.
    described: BTreeMap<ResourceId, Arc<dyn Described>>,
    /// Of what is offered, what does not do well.
    degraded: BTreeSet<ResourceId>,
}

/// What inventories say of a resource on offer.
pub trait Described: fmt::Debug + Send + Sync {
    /// Puts it in the place of what was merely detected; [`describe`] says what all kinds have.
    fn overlay(&self, inventory: &mut ResourceInventory, standing: Standing);

    /// Takes out what was detected and is told as part of this one.
    fn hide(&self, detected: &mut Detected);
}

/// What the table and the backend say of an offered resource.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// The table.
    pub available: Availability,
    /// The backend: something of it failed.
    pub degraded: bool,
}

impl Standing {
    /// Also as flags of a flat entry.
    fn state(&self) -> (u32, u16) {
        let degraded = self.degraded || self.available.partly_fenced;
        match (self.available.fenced, degraded) {
            (true, _) => (health::FENCED, resource_flags::FENCED),
            (false, true) => (health::DEGRADED, resource_flags::DEGRADED),
            (false, false) => (health::OK, 0),
        }
    }

    fn health(&self) -> u32 {
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
    /// Nothing is offered yet.
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

    /// From now on this is said of a resource on offer.
    pub fn describe(&mut self, id: ResourceId, described: Arc<dyn Described>) {
        described.hide(&mut self.detected);
        self.described.insert(id, described);
    }

    /// It is otherwise with a resource.
    pub fn note(&mut self, id: ResourceId, condition: &Condition) {
        match condition {
            Condition::Good => {
                tracing::info!(resource_id = %id, "does well again");
                self.degraded.remove(&id);
            }
            Condition::Degraded(why) => {
                tracing::warn!(resource_id = %id, why, "degraded");
                self.degraded.insert(id);
            }
        }
    }

    /// How it is with an offered resource.
    #[must_use]
    pub fn standing(&self, available: Availability) -> Standing {
        Standing {
            available,
            degraded: self.degraded.contains(&available.resource_id),
        }
    }

    /// 36 bytes an entry.
    #[must_use]
    pub fn flat(&self, offered: &[Standing]) -> Vec<FlatEntry> {
        let mut entries = self.detected.flat(&self.node_id);
        for standing in offered {
            entries.retain(|entry| entry.resource_id != standing.available.resource_id);
            entries.push(standing.flat_entry());
        }
        entries.sort_by_key(|entry| (entry.resource_type, entry.resource_id));
        entries
    }

    /// Typed fields.
    #[must_use]
    pub fn structured(&self, offered: &[Standing]) -> ResourceInventory {
        let mut inventory = self.detected.inventory(self.node_id, self.epoch);
        for standing in offered {
            if let Some(described) = self.described.get(&standing.available.resource_id) {
                described.overlay(&mut inventory, *standing);
            }
        }
        inventory
    }

    /// Kinds that are there, offered or not: a refusal tells the two apart.
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

    fn overlay(&self, inventory: &mut ResourceInventory, standing: Standing) {
        let id = self.resource_id;
        inventory.mem_arenas.retain(|arena| arena.resource_id != id);
        inventory.mem_arenas.push(MemArena {
            resource_id: id,
            base: 0,
            len: standing.available.capacity,
            align: self.align_bytes,
            max_read: self.message_bytes_max,
            max_write: self.message_bytes_max,
            health: standing.health(),
        });
        describe(inventory, standing, &self.name, &self.transports);
    }
}

impl Described for OfferedPool {
    /// A device on offer is told as a pool, not as what was merely found.
    fn hide(&self, detected: &mut Detected) {
        let is_its = |found: &str| self.facts.device.as_deref() == Some(found);
        detected.blocks.retain(|found| !is_its(&found.name));
    }

    fn overlay(&self, inventory: &mut ResourceInventory, standing: Standing) {
        let read_only = if self.facts.read_only { BLOCK_RO } else { 0 };
        let removable = if self.facts.removable {
            BLOCK_REMOVABLE
        } else {
            0
        };
        inventory.block_devs.push(BlockDev {
            resource_id: self.resource_id,
            block_size: self.facts.block_bytes,
            capacity: standing.available.capacity,
            flags: read_only | removable,
            health: standing.health(),
        });
        describe(inventory, standing, &self.facts.name, &self.transports);
    }
}

/// What every kind of resource has beside its own fields.
pub fn describe(
    inventory: &mut ResourceInventory,
    standing: Standing,
    name: &str,
    transports: &[Transport],
) {
    let id = standing.available.resource_id;
    inventory.health = inventory.health.max(standing.health());
    inventory
        .extensions
        .retain(|extension| !speaks_of(extension, id));
    inventory.extensions.extend([
        InventoryExtension::Name(id, name.to_owned()),
        InventoryExtension::Available(id, standing.available.available),
        InventoryExtension::Transports(id, transports.to_vec()),
    ]);
    let part = standing.available.fenced_part;
    let part = (part != 0).then_some(InventoryExtension::FencedPart(id, part));
    inventory.extensions.extend(part);
}

fn speaks_of(extension: &InventoryExtension, id: ResourceId) -> bool {
    match extension {
        InventoryExtension::Name(of, _)
        | InventoryExtension::Available(of, _)
        | InventoryExtension::Transports(of, _)
        | InventoryExtension::FencedPart(of, _) => *of == id,
        InventoryExtension::Classes { resource_id, .. } => *resource_id == id,
    }
}
