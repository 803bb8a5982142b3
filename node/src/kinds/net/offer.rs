//! An interface on offer in inventories.

use fabricbios_sriov::vf::DIMENSION;
use fabricbios_wire::{InventoryExtension, NicInfo, ResourceInventory};

use super::{Interface, detect::interface};
use crate::inventory::{Described, ResourceStatus, describe, detection::Found};

/// See the module.
#[derive(Debug)]
pub(super) struct OfferedInterface {
    speed_bps: u64,
    name: String,
    functions: Option<u32>,
}

impl OfferedInterface {
    pub(super) fn new(interface: &Interface) -> Self {
        Self {
            speed_bps: interface.offer.capacity,
            name: interface.name.clone(),
            functions: interface.functions,
        }
    }
}

impl Described for OfferedInterface {
    fn overlay(&self, inventory: &mut ResourceInventory, status: ResourceStatus, found: &Found) {
        let resource_id = status.available.resource_id;
        let info = interface(found, &self.name).map(|it| it.info(resource_id));
        inventory.nics.retain(|it| it.resource_id != resource_id);
        inventory.nics.push(NicInfo {
            resource_id,
            speed_bps: self.speed_bps,
            mtu: info.map_or(0, |it| it.mtu),
            flags: info.map_or(0, |it| it.flags),
            health: status.health(),
        });
        let mut dimensions = status.available.free_dimensions.iter();
        let free = dimensions.find(|it| it.name == DIMENSION);
        let free = free.and_then(|it| u32::try_from(it.amount).ok());
        describe(inventory, status, &self.name, &[]);
        let functions = self
            .functions
            .map(|total| InventoryExtension::VirtualFunctions {
                resource_id,
                total,
                free: free.unwrap_or_default(),
            });
        inventory.extensions.extend(functions);
    }

    fn trouble(&self, found: &Found) -> Option<String> {
        let what = match interface(found, &self.name) {
            None => "its state cannot be read, or it is gone",
            Some(it) if it.degraded => "its state cannot be read, or it is gone",
            Some(it) if !it.link_up => "its link is down: leases of it reach nothing",
            Some(_) => return None,
        };
        Some(format!("{}: {what}", self.name))
    }
}
