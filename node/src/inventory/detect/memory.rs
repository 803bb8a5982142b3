//! Main memory: `/proc/meminfo`.

use fabricbios_kernfs::Tree;

use super::Warnings;

/// Main memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemFound {
    /// `mem0`.
    pub name: String,
    /// Memory that the kernel manages: installed memory without the parts that firmware and kernel occupy.
    pub bytes: u64,
}

pub(super) fn detect(proc: &Tree, warnings: &mut Warnings) -> Option<MemFound> {
    let text = warnings.keep("mem0", "not listed", proc.read("meminfo"))?;
    let bytes = total_bytes(&text);
    if bytes.is_none() {
        let reason = format!("{}/meminfo has no `MemTotal: N kB`", proc.root().display());
        warnings.add("mem0", "not listed", reason);
    }
    Some(MemFound {
        name: "mem0".to_owned(),
        bytes: bytes?,
    })
}

/// All memory of the machine, by `/proc/meminfo`.
pub(crate) fn total_bytes(meminfo: &str) -> Option<u64> {
    bytes_of(meminfo, "MemTotal:")
}

/// Memory available without swapping, by `/proc/meminfo`: `MemAvailable`, and the free huge pages, which it does not
/// include.
pub(crate) fn available_bytes(meminfo: &str) -> Option<u64> {
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
