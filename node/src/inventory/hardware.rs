//! Hardware that a look has found (000, "Auto-Detection"), and its entries in inventories.
//!
//! Nothing of it is available until the operator offers it, so that nobody leases a root disk or a management NIC by
//! accident. A missing or malformed file costs one item or one property, with a warning.

use std::{any::Any, fmt, sync::Arc};

use fabricbios_kernfs::Tree;
use fabricbios_wire::{
    Epoch, FlatEntry, InventoryExtension, NodeId, ResourceId, ResourceInventory, ResourceType,
    health, resource_flags,
};
use sha2::{Digest, Sha256};

const RESOURCE_ID_DOMAIN: &[u8] = b"fabricbios-resource-v0";

/// The trees that a look reads.
#[derive(Clone, Debug)]
pub struct Sources {
    /// `/proc`.
    pub proc: Tree,
    /// `/sys`.
    pub sys: Tree,
}

impl Sources {
    /// The trees of the running kernel.
    #[must_use]
    pub fn of_this_machine() -> Self {
        Self {
            proc: Tree::new("/proc"),
            sys: Tree::new("/sys"),
        }
    }
}

/// A piece of the machine's hardware.
pub trait Hardware: Any + fmt::Debug + Send + Sync {
    /// The fields that both forms of an inventory have.
    fn row(&self) -> Row<'_>;

    /// Adds its entry to the structured form, with nothing available. `id`: that of [`Row::id`].
    fn add_to(&self, inventory: &mut ResourceInventory, id: ResourceId);
}

/// See [`Hardware::row`].
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The kind of resource.
    pub kind: ResourceType,
    /// As stable as the kernel's name.
    pub name: &'a str,
    /// In the unit of the kind.
    pub capacity: u64,
    /// A property could not be read, or the hardware has a defect.
    pub degraded: bool,
}

impl Row<'_> {
    /// The id of the resource.
    #[must_use]
    pub fn id(&self, node: &NodeId) -> ResourceId {
        resource_id(node, self.kind, self.name)
    }

    fn flat(&self, node: &NodeId) -> FlatEntry {
        FlatEntry {
            resource_id: self.id(node),
            resource_type: self.kind,
            flags: match self.degraded {
                true => resource_flags::DEGRADED,
                false => 0,
            },
            capacity: self.capacity,
            available: 0,
        }
    }
}

/// The structured form. Each resource has a name and nothing available.
pub(crate) fn structured(
    listed: &[Arc<dyn Hardware>],
    node: NodeId,
    epoch: Epoch,
) -> ResourceInventory {
    let mut inventory = ResourceInventory {
        node_id: node,
        epoch,
        health: health_of(listed.iter().any(|it| it.row().degraded)),
        mem_arenas: Vec::new(),
        block_devs: Vec::new(),
        cpu_caps: Vec::new(),
        nics: Vec::new(),
        gpus: Vec::new(),
        extensions: Vec::new(),
    };
    for row in listed.iter().map(|it| it.row()) {
        inventory.extensions.extend([
            InventoryExtension::Name(row.id(&node), row.name.to_owned()),
            InventoryExtension::Available(row.id(&node), 0),
        ]);
    }
    for it in listed {
        it.add_to(&mut inventory, it.row().id(&node));
    }
    inventory
}

/// The flat form: capacity as found, nothing available.
pub(crate) fn flat(listed: &[Arc<dyn Hardware>], node: &NodeId) -> Vec<FlatEntry> {
    listed.iter().map(|it| it.row().flat(node)).collect()
}

/// The health of an entry.
pub(crate) fn health_of(degraded: bool) -> u32 {
    match degraded {
        true => health::DEGRADED,
        false => health::OK,
    }
}

/// The id of a node's resource, by kind and name: the same after every restart, never zero. The first 16 bytes of
/// SHA-256 over domain, node id, type code (big-endian) and name.
#[must_use]
pub fn resource_id(node: &NodeId, kind: ResourceType, name: &str) -> ResourceId {
    let mut hash = Sha256::new_with_prefix(RESOURCE_ID_DOMAIN);
    hash.update(node.0);
    hash.update(kind.code().to_be_bytes());
    hash.update(name.as_bytes());
    let digest = hash.finalize();
    let id = digest
        .iter()
        .take(16)
        .fold(0, |id: u128, &byte| id << 8 | u128::from(byte));
    ResourceId(id.max(1))
}

/// Skipped or degraded items with the reason, for the log.
#[derive(Clone, Debug, Default)]
pub struct Warnings(pub(crate) Vec<String>);

impl Warnings {
    pub(crate) fn add(&mut self, item: &str, consequence: &str, reason: impl fmt::Display) {
        self.0.push(format!("{item}: {consequence}: {reason}"));
    }

    /// The value; on an error a warning and `None`.
    pub(crate) fn keep<T>(
        &mut self,
        item: &str,
        consequence: &str,
        result: Result<T, fabricbios_kernfs::Error>,
    ) -> Option<T> {
        result.map_err(|e| self.add(item, consequence, e)).ok()
    }

    /// Names in a directory; on an error a warning and no names.
    pub(crate) fn names(&mut self, sys: &Tree, directory: &str, kind: &str) -> Vec<String> {
        self.keep(kind, "none detected", sys.list(directory))
            .unwrap_or_default()
    }
}
