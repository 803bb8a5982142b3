//! Physical block devices of this machine with a size, from `/sys/block`. An empty card reader has no size, and a
//! namespace over NVMe-oF belongs to another machine.

use fabricbios_kernfs::Tree;

use super::Warnings;

/// The kernel's unit of sizes, independent of the block size of the device.
const SECTOR_BYTES: u64 = 512;

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockFound {
    /// Such as `nvme0n1`.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
    /// Bytes per logical block.
    pub block_size: u32,
    /// The device refuses writes.
    pub read_only: bool,
    /// The medium can be removed.
    pub removable: bool,
    /// A property could not be read.
    pub degraded: bool,
}

pub(super) fn detect(sys: &Tree, warnings: &mut Warnings) -> Vec<BlockFound> {
    let names = warnings.names(sys, "block", "block devices");
    names
        .into_iter()
        .filter_map(|name| block(sys, name, warnings))
        .collect()
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
