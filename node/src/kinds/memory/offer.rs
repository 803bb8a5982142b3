//! Memory on offer in inventories.

use std::sync::Arc;

use fabricbios_lease::Offer;
use fabricbios_wire::{MemArena as Entry, ResourceId, ResourceInventory, ResourceType, Transport};

use crate::inventory::{Described, ResourceStatus, describe, detection::Found, hardware::Hardware};

/// A memory arena on offer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OfferedArena {
    /// The resource.
    resource_id: ResourceId,
    /// A name for people.
    name: String,
    /// Granularity of leases, bytes.
    align_bytes: u32,
    /// Most bytes in one operation of the data plane.
    message_bytes_max: u32,
    /// Transports, best first.
    transports: Vec<Transport>,
}

impl Described for OfferedArena {
    /// Arenas are parts of the machine's memory: listing both would count it twice.
    fn is_made_of(&self, hardware: &dyn Hardware) -> bool {
        hardware.row().kind == ResourceType::Mem
    }

    fn overlay(&self, inventory: &mut ResourceInventory, status: ResourceStatus, _: &Found) {
        inventory.mem_arenas.push(Entry {
            resource_id: self.resource_id,
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

pub(super) fn described(name: &str, offer: &Offer, message_bytes_max: u32) -> Arc<dyn Described> {
    Arc::new(OfferedArena {
        resource_id: offer.resource_id,
        name: name.into(),
        align_bytes: u32::try_from(offer.align).unwrap_or(u32::MAX),
        message_bytes_max,
        transports: offer.transports.clone(),
    })
}
