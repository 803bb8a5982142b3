//! Main memory: `/proc/meminfo`.

use fabricbios_kernfs::Tree;
use fabricbios_wire::{MemArena as Entry, ResourceId, ResourceInventory, ResourceType, health};

use super::MemArena;
use crate::{
    inventory::{
        detection::Found,
        hardware::{Hardware, Row, Warnings},
    },
    kinds::detect::Looking,
};

/// Alignment that is told of memory that is not on offer.
const PAGE_BYTES: u32 = 4096;

/// Main memory: one, `mem0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemFound {
    /// Memory that the kernel manages: installed memory without the parts that firmware and kernel occupy.
    pub(crate) bytes: u64,
}

impl Hardware for MemFound {
    fn row(&self) -> Row<'_> {
        Row {
            kind: ResourceType::Mem,
            name: MemArena::MEM0,
            capacity: self.bytes,
            degraded: false,
        }
    }

    fn add_to(&self, inventory: &mut ResourceInventory, resource_id: ResourceId) {
        inventory.mem_arenas.push(Entry {
            resource_id,
            base: 0,
            len: self.bytes,
            align: PAGE_BYTES,
            max_read: 0,
            max_write: 0,
            health: health::OK,
        });
    }
}

/// See [`crate::kinds::Kind::detect`].
pub(super) fn detect(looking: &Looking<'_>, found: &mut Found) {
    if looking.lists() {
        let memory = memory(&looking.sources.proc, &mut found.warnings);
        memory.into_iter().for_each(|it| found.list(it));
    }
}

fn memory(proc: &Tree, warnings: &mut Warnings) -> Option<MemFound> {
    let name = MemArena::MEM0;
    let text = warnings.keep(name, "not listed", proc.read("meminfo"))?;
    let bytes = total_bytes(&text);
    if bytes.is_none() {
        let reason = format!("{}/meminfo has no `MemTotal: N kB`", proc.root().display());
        warnings.add(name, "not listed", reason);
    }
    Some(MemFound { bytes: bytes? })
}

/// All memory of the machine, by `/proc/meminfo`.
pub(crate) fn total_bytes(meminfo: &str) -> Option<u64> {
    bytes_of(meminfo, "MemTotal:")
}

/// Memory available without swapping, by `/proc/meminfo`: `MemAvailable`, and the free huge pages, which it does not
/// include.
pub(super) fn available_bytes(meminfo: &str) -> Option<u64> {
    let free = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:"));
    let free: Option<u64> = free.and_then(|count| count.trim().parse().ok());
    let huge = free.unwrap_or(0) * bytes_of(meminfo, "Hugepagesize:").unwrap_or(0);
    bytes_of(meminfo, "MemAvailable:").map(|bytes| bytes.saturating_add(huge))
}

fn bytes_of(meminfo: &str, name: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_huge_pages_are_memory_to_spare() {
        let plain = "MemTotal: 9 kB\nMemAvailable:       4 kB\n";
        assert_eq!(available_bytes(plain), Some(4096));
        let huge = format!("{plain}HugePages_Free:        3\nHugepagesize:       2048 kB\n");
        assert_eq!(available_bytes(&huge), Some(4096 + 3 * (2 << 20)));
        assert_eq!(available_bytes("MemTotal: 9 kB"), None);
    }
}
