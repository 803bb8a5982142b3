//! Physical block devices of this machine with a size, from `/sys/block`. An empty card reader has no size, and a
//! namespace over NVMe-oF belongs to another machine.

use fabricbios_kernfs::Tree;
use fabricbios_wire::{
    BLOCK_REMOVABLE, BLOCK_RO, BlockDev, ResourceId, ResourceInventory, ResourceType,
};

use crate::{
    inventory::{
        detection::Found,
        hardware::{Hardware, Row, Warnings, health_of},
    },
    kinds::detect::Looking,
};

/// The kernel's unit of sizes, independent of the block size of the device.
const SECTOR_BYTES: u64 = 512;

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockFound {
    /// Such as `nvme0n1`.
    pub(crate) name: String,
    /// Bytes.
    pub(crate) bytes: u64,
    /// Bytes per logical block.
    pub(crate) block_size: u32,
    /// The device refuses writes.
    pub(crate) read_only: bool,
    /// The medium can be removed.
    pub(crate) removable: bool,
    /// A property could not be read.
    pub(crate) degraded: bool,
}

impl Hardware for BlockFound {
    fn row(&self) -> Row<'_> {
        Row {
            kind: ResourceType::Block,
            name: &self.name,
            capacity: self.bytes,
            degraded: self.degraded,
        }
    }

    fn add_to(&self, inventory: &mut ResourceInventory, resource_id: ResourceId) {
        inventory.block_devs.push(BlockDev {
            resource_id,
            block_size: self.block_size,
            capacity: self.bytes,
            flags: flags(self.read_only, self.removable),
            health: health_of(self.degraded),
        });
    }
}

/// The flags of an entry in inventories.
pub(super) fn flags(read_only: bool, removable: bool) -> u32 {
    let read_only = if read_only { BLOCK_RO } else { 0 };
    let removable = if removable { BLOCK_REMOVABLE } else { 0 };
    read_only | removable
}

/// See [`crate::kinds::Kind::detect`].
pub(super) fn detect(looking: &Looking<'_>, found: &mut Found) {
    if looking.lists() {
        let sys = &looking.sources.sys;
        for name in found.warnings.names(sys, "block", "block devices") {
            let block = block(sys, name, &mut found.warnings);
            block.into_iter().for_each(|it| found.list(it));
        }
    }
}

fn block(sys: &Tree, name: String, warnings: &mut Warnings) -> Option<BlockFound> {
    let path = |file: &str| format!("block/{name}/{file}");
    // The kernel hides the single paths of a multipath disk; the disk itself is visible.
    let hidden = sys.read(path("hidden")).is_ok_and(|hidden| hidden == "1");
    if hidden || !sys.exists(path("device")).unwrap_or(false) || is_over_fabrics(sys, &name) {
        return None;
    }
    let sectors: u64 = warnings.keep(&name, "skipped", sys.read_as(path("size")))?;
    let Some(bytes) = sectors.checked_mul(SECTOR_BYTES) else {
        warnings.add(&name, "skipped", format!("{sectors} sectors cannot be"));
        return None;
    };
    let size = warnings.keep(
        &name,
        "block size unknown",
        sys.read_as(path("queue/logical_block_size")),
    );
    let read_only = flag(sys, &name, "ro", warnings);
    let removable = flag(sys, &name, "removable", warnings);
    (bytes > 0).then(|| BlockFound {
        degraded: size.is_none() || read_only.is_none() || removable.is_none(),
        bytes,
        block_size: size.unwrap_or(512),
        // A disk counts as read-only if the property cannot be read.
        read_only: read_only.unwrap_or(true),
        removable: removable.unwrap_or(false),
        name,
    })
}

/// The device of a disk is its controller or, with multipath, the subsystem with the controllers below it
/// (`drivers/nvme/host/sysfs.c`).
fn is_over_fabrics(sys: &Tree, name: &str) -> bool {
    let device = format!("block/{name}/device");
    let over_fabrics = |controller: &str| {
        let transport = sys.read(format!("{controller}/transport"));
        transport.is_ok_and(|it| ["tcp", "rdma", "fc", "loop"].contains(&it.as_str()))
    };
    let is_nvme = name.starts_with("nvme");
    let below = || sys.list(&device).unwrap_or_default().into_iter();
    is_nvme
        && (over_fabrics(&device)
            || below().any(|entry| over_fabrics(&format!("{device}/{entry}"))))
}

fn flag(sys: &Tree, name: &str, file: &str, warnings: &mut Warnings) -> Option<bool> {
    let value: u8 = warnings.keep(
        name,
        &format!("`{file}` unknown"),
        sys.read_as(format!("block/{name}/{file}")),
    )?;
    Some(value != 0)
}
