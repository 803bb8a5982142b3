//! A pool on offer in inventories.

use fabricbios_pool::Facts;
use fabricbios_wire::{BlockDev, ResourceId, ResourceInventory, ResourceType, Transport};

use super::detect::flags;
use crate::inventory::{Described, ResourceStatus, describe, detection::Found, hardware::Hardware};

/// A block pool on offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OfferedPool {
    /// The resource.
    pub(super) resource_id: ResourceId,
    /// The pool's facts.
    pub(super) facts: Facts,
    /// Transports, best first.
    pub(super) transports: Vec<Transport>,
}

impl Described for OfferedPool {
    fn is_made_of(&self, hardware: &dyn Hardware) -> bool {
        let row = hardware.row();
        row.kind == ResourceType::Block && Some(row.name) == self.facts.device.as_deref()
    }

    fn overlay(&self, inventory: &mut ResourceInventory, status: ResourceStatus, _: &Found) {
        inventory.block_devs.push(BlockDev {
            resource_id: self.resource_id,
            block_size: self.facts.block_bytes,
            capacity: status.available.capacity,
            flags: flags(self.facts.read_only, self.facts.removable),
            health: status.health(),
        });
        describe(inventory, status, &self.facts.name, &self.transports);
    }
}
