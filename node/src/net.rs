//! Network functions on offer.

pub mod sriov;

use std::path::{Path, PathBuf};

use fabricbios_contract::EndByName;
use fabricbios_lease::StepError;
use fabricbios_sriov::vf::{DIMENSION, Places, VfEnd};
use fabricbios_wire::{
    InventoryExtension, LeaseId, NodeId, ResourceId, ResourceInventory, ResourceType,
};

use crate::{
    detect::{Detected, resource_id},
    inventory::{Described, ResourceStatus, describe},
};

/// Bytes of the node's id in the name of its directory.
const ID_BYTES: usize = 4;

/// The records of network functions; a reboot empties the directory.
pub(crate) fn records(node_id: &NodeId) -> PathBuf {
    let id: String = node_id
        .0
        .iter()
        .take(ID_BYTES)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    PathBuf::from(format!("/run/fabricbios-{id}/net"))
}

/// Ends leases of network functions in the watchdog.
#[derive(Debug)]
pub struct NetEnd {
    functions: VfEnd,
}

impl NetEnd {
    /// With records in this directory.
    #[must_use]
    pub fn new(records: &Path) -> Self {
        Self {
            functions: VfEnd::new(&places(records)),
        }
    }
}

impl EndByName for NetEnd {
    fn end(&self, lease: LeaseId) -> Result<(), StepError> {
        self.functions.end(lease)
    }
}

fn places(records: &Path) -> Places {
    Places {
        sysfs: "/sys".into(),
        dev: "/dev".into(),
        records: records.into(),
    }
}

/// An interface on offer: the detected entry with the same id, with what is leased of it.
#[derive(Debug)]
struct OfferedInterface {
    resource_id: ResourceId,
    name: String,
    /// How many virtual functions are on offer.
    functions: u32,
}

impl OfferedInterface {
    fn new(node_id: &NodeId, name: &str, functions: u32) -> Self {
        Self {
            resource_id: resource_id(node_id, ResourceType::Net, name),
            name: name.to_owned(),
            functions,
        }
    }
}

impl Described for OfferedInterface {
    fn overlay(&self, inventory: &mut ResourceInventory, status: ResourceStatus) {
        let id = self.resource_id;
        if let Some(nic) = inventory.nics.iter_mut().find(|it| it.resource_id == id) {
            nic.speed_bps = status.available.capacity;
            nic.health = nic.health.max(status.health());
        }
        let mut dimensions = status.available.free_dimensions.iter();
        let free = dimensions.find(|it| it.name == DIMENSION);
        let free = free.and_then(|it| u32::try_from(it.amount).ok());
        describe(inventory, status, &self.name, &[]);
        let functions = InventoryExtension::VirtualFunctions {
            resource_id: id,
            total: self.functions,
            free: free.unwrap_or_default(),
        };
        inventory.extensions.push(functions);
    }

    /// The detected entry has the same id.
    fn hide(&self, _detected: &mut Detected) {}
}
