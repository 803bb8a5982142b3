//! Processors: `/sys/devices/system/cpu`, and `/proc/cpuinfo` for the rest.

use std::collections::{BTreeMap, BTreeSet};

use fabricbios_kernfs::Tree;
use fabricbios_wire::cpu_flags;

use super::{Sources, Warnings};

const CPUS: &str = "devices/system/cpu";

/// The start of `/proc/cpuinfo` is enough: it is long and repeats the same for every CPU.
const CPUINFO_BYTES: usize = 64 << 10;

/// All processors of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuFound {
    /// `cpu0`.
    pub name: String,
    /// Online logical CPUs.
    pub online: Vec<u32>,
    /// Online siblings, one group for each physical core whose siblings are known and consistent.
    pub core_groups: Vec<Vec<u32>>,
    /// Every online CPU is in one group. Otherwise whole-core leases must be refused (000).
    pub topology_complete: bool,
    /// Highest frequency, 0 if unknown.
    pub max_mhz: u32,
    /// Instruction-set and architecture bits of [`cpu_flags`].
    pub arch_flags: u32,
}

pub(super) fn detect(sources: &Sources, warnings: &mut Warnings) -> Option<CpuFound> {
    let sys = &sources.sys;
    let online = warnings.keep(
        "cpu0",
        "not listed",
        sys.read_list(format!("{CPUS}/online")),
    )?;
    if online.is_empty() {
        warnings.add("cpu0", "not listed", "no CPU is online");
        return None;
    }
    let core_groups = core_groups(sys, &online, warnings);
    let topology_complete = core_groups.iter().map(Vec::len).sum::<usize>() == online.len();
    let cpuinfo = sources.proc.read_head("cpuinfo", CPUINFO_BYTES);
    let cpuinfo = warnings
        .keep("cpu0", "flags unknown", cpuinfo)
        .unwrap_or_default();
    Some(CpuFound {
        name: "cpu0".to_owned(),
        max_mhz: max_mhz(sys, &online)
            .or_else(|| cpuinfo_mhz(&cpuinfo))
            .unwrap_or(0),
        arch_flags: arch_flags(&cpuinfo),
        online,
        core_groups,
        topology_complete,
    })
}

/// A group counts if each of its members names the same group: otherwise a core could be leased without one of its
/// threads.
fn core_groups(sys: &Tree, online: &[u32], warnings: &mut Warnings) -> Vec<Vec<u32>> {
    let online: BTreeSet<u32> = online.iter().copied().collect();
    let mut claimed_by: BTreeMap<Vec<u32>, BTreeSet<u32>> = BTreeMap::new();
    for &cpu in &online {
        let siblings = sys.read_list(format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list"));
        let item = format!("cpu0 (logical CPU {cpu})");
        if let Some(mut group) = warnings.keep(&item, "topology incomplete", siblings) {
            group.retain(|sibling| online.contains(sibling));
            claimed_by.entry(group).or_default().insert(cpu);
        }
    }
    let (whole, torn): (Vec<_>, Vec<_>) = claimed_by
        .into_iter()
        .partition(|(group, members)| group.iter().eq(members));
    for (group, members) in torn {
        let reason = format!("CPUs {members:?} say that their core is {group:?}");
        warnings.add("cpu0", "topology incomplete", reason);
    }
    whole.into_iter().map(|(group, _)| group).collect()
}

/// CPUs without a frequency driver (most virtual machines) have no such file, which is no defect.
fn max_mhz(sys: &Tree, online: &[u32]) -> Option<u32> {
    let max_khz = |cpu| sys.read_as::<u32>(format!("{CPUS}/cpu{cpu}/cpufreq/cpuinfo_max_freq"));
    online
        .iter()
        .filter_map(|cpu| max_khz(cpu).ok())
        .max()
        .map(|khz| khz / 1000)
}

fn cpuinfo_mhz(cpuinfo: &str) -> Option<u32> {
    let mhz = |text: &str| text.split('.').next()?.parse::<u32>().ok();
    fields(cpuinfo, "cpu MHz").filter_map(mhz).max()
}

/// The key of the feature line differs by architecture, and so tells it.
fn arch_flags(cpuinfo: &str) -> u32 {
    let has = |line: &str, word: &str| line.split_whitespace().any(|flag| flag == word);
    let bit = |set: bool, bit: u32| if set { bit } else { 0 };
    if let Some(flags) = fields(cpuinfo, "flags").next() {
        // The CRC32 instruction of x86 came with SSE 4.2; `lm` is its 64-bit mode.
        return bit(has(flags, "sse4_2"), cpu_flags::CRC32)
            | bit(
                has(flags, "lm"),
                cpu_flags::ARCH_X86_64 << cpu_flags::ARCH_SHIFT,
            );
    }
    let Some(features) = fields(cpuinfo, "Features").next() else {
        return 0;
    };
    // `asimd` is what the kernel calls NEON on AArch64, and 32-bit ARM has no such word.
    bit(has(features, "asimd"), cpu_flags::NEON)
        | bit(has(features, "crc32"), cpu_flags::CRC32)
        | bit(
            has(features, "asimd"),
            cpu_flags::ARCH_AARCH64 << cpu_flags::ARCH_SHIFT,
        )
}

fn fields<'a>(cpuinfo: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    let pairs = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    pairs
        .filter(move |(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim())
}
