//! Main memory: `/proc/meminfo`.

use fabricbios_kernfs::Tree;

use super::Warnings;

/// Main memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemFound {
    /// `mem0`.
    pub name: String,
    /// What the kernel manages: installed memory less what firmware and kernel keep.
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

fn total_bytes(meminfo: &str) -> Option<u64> {
    let total = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
