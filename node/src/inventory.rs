//! What the node says it has: what was detected, overlaid with what the operator offers and what
//! the table says is left of it.

use fabricbios_lease::{Availability, LeaseTable};
use fabricbios_wire::{
    Epoch, FlatEntry, InventoryExtension, MemArena, NodeId, ResourceId, ResourceInventory,
    ResourceType, Transport, health, resource_flags,
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
    /// Roads, best first.
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
    /// What is offered of memory.
    pub arenas: Vec<OfferedArena>,
}

impl Inventory {
    /// 36 bytes an entry.
    #[must_use]
    pub fn flat(&self, table: &LeaseTable) -> Vec<FlatEntry> {
        let mut entries = self.detected.flat(&self.node_id);
        for offered in table.availability() {
            entries.retain(|entry| entry.resource_id != offered.resource_id);
            entries.push(flat_entry(offered));
        }
        entries.sort_by_key(|entry| (entry.resource_type, entry.resource_id));
        entries
    }

    /// Typed fields.
    #[must_use]
    pub fn structured(&self, table: &LeaseTable) -> ResourceInventory {
        let mut inventory = self.detected.inventory(self.node_id, self.epoch);
        for offered in table.availability() {
            if let Some(arena) = self
                .arenas
                .iter()
                .find(|a| a.resource_id == offered.resource_id)
            {
                arena.overlay(&mut inventory, offered);
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

impl OfferedArena {
    /// Puts the arena in the place of what was merely detected.
    fn overlay(&self, inventory: &mut ResourceInventory, offered: Availability) {
        let id = self.resource_id;
        let health = if offered.fenced {
            health::FENCED
        } else {
            health::OK
        };
        inventory.health = inventory.health.max(health);
        inventory.mem_arenas.retain(|arena| arena.resource_id != id);
        inventory.mem_arenas.push(MemArena {
            resource_id: id,
            base: 0,
            len: offered.capacity,
            align: self.align_bytes,
            max_read: self.message_bytes_max,
            max_write: self.message_bytes_max,
            health,
        });
        inventory
            .extensions
            .retain(|extension| !speaks_of(extension, id));
        inventory.extensions.extend([
            InventoryExtension::Name(id, self.name.clone()),
            InventoryExtension::Available(id, offered.available),
            InventoryExtension::Transports(id, self.transports.clone()),
        ]);
    }
}

fn speaks_of(extension: &InventoryExtension, id: ResourceId) -> bool {
    match extension {
        InventoryExtension::Name(of, _)
        | InventoryExtension::Available(of, _)
        | InventoryExtension::Transports(of, _) => *of == id,
        InventoryExtension::Classes { resource_id, .. } => *resource_id == id,
    }
}

fn flat_entry(offered: Availability) -> FlatEntry {
    FlatEntry {
        resource_id: offered.resource_id,
        resource_type: offered.resource_type,
        flags: if offered.fenced {
            resource_flags::FENCED
        } else {
            0
        },
        capacity: offered.capacity,
        available: offered.available,
    }
}
