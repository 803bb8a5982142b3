//! Processors: their topology, and `/proc/cpuinfo` for the rest.

use fabricbios_cpu::Topology;
use fabricbios_wire::{CpuCap, ResourceId, ResourceInventory, ResourceType, cpu_flags};

use crate::{
    inventory::{
        detection::Found,
        hardware::{Hardware, Row, Sources, Warnings, health_of},
    },
    kinds::detect::Looking,
};

/// The start of `/proc/cpuinfo` is enough: it is long and repeats the same for every CPU.
const CPUINFO_BYTES: usize = 64 << 10;

/// All processors of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpuFound {
    /// Cores and logical CPUs.
    pub(crate) topology: Topology,
    /// Highest frequency, 0 if unknown.
    pub(crate) max_mhz: u32,
    /// Instruction-set and architecture bits of [`cpu_flags`].
    pub(crate) arch_flags: u32,
}

/// Name of a node's only CPU resource, detected or offered.
pub(super) const NAME: &str = "cpu0";

impl CpuFound {
    /// Physical cores; 0 if the topology is incomplete.
    pub(crate) fn cores(&self) -> u16 {
        match self.topology.is_complete() {
            true => u16::try_from(self.topology.groups.len()).unwrap_or(u16::MAX),
            false => 0,
        }
    }

    /// Logical CPUs that are online.
    pub(super) fn threads(&self) -> u16 {
        u16::try_from(self.topology.online.len()).unwrap_or(u16::MAX)
    }

    /// The entry of processors that are not on offer. It has no isolation policy, so clients know that they cannot
    /// lease these cores.
    pub(super) fn cap(&self, resource_id: ResourceId) -> CpuCap {
        let is_complete = self.topology.is_complete();
        let complete = match is_complete {
            true => cpu_flags::TOPOLOGY_COMPLETE,
            false => 0,
        };
        CpuCap {
            resource_id,
            cores: 0,
            threads: self.threads(),
            max_mhz: self.max_mhz,
            flags: self.arch_flags | complete,
            health: health_of(!is_complete),
        }
    }
}

impl Hardware for CpuFound {
    fn row(&self) -> Row<'_> {
        Row {
            kind: ResourceType::Cpu,
            name: NAME,
            capacity: self.cores().into(),
            degraded: !self.topology.is_complete(),
        }
    }

    fn add_to(&self, inventory: &mut ResourceInventory, resource_id: ResourceId) {
        inventory.cpu_caps.push(self.cap(resource_id));
    }
}

/// See [`crate::kinds::Kind::detect`].
pub(super) fn detect(looking: &Looking<'_>, found: &mut Found) {
    if looking.lists() {
        let cpu = read(looking.sources, &mut found.warnings);
        cpu.into_iter().for_each(|it| found.list(it));
    } else if looking.settings.cpu.cpus.is_some() {
        let cpu = read(looking.sources, &mut Warnings::default());
        cpu.into_iter().for_each(|it| found.offer(it));
    }
}

/// The processors of the machine.
pub(super) fn read(sources: &Sources, warnings: &mut Warnings) -> Option<CpuFound> {
    let sys = &sources.sys;
    let topology = warnings.keep(NAME, "not listed", Topology::read(sys))?;
    if topology.online.is_empty() {
        warnings.add(NAME, "not listed", "no CPU is online");
        return None;
    }
    for fault in &topology.faults {
        warnings.add(NAME, "topology incomplete", fault);
    }
    let cpuinfo = sources.proc.read_head("cpuinfo", CPUINFO_BYTES);
    let cpuinfo = warnings
        .keep(NAME, "flags unknown", cpuinfo)
        .unwrap_or_default();
    Some(CpuFound {
        max_mhz: topology
            .max_mhz(sys)
            .or_else(|| cpuinfo_mhz(&cpuinfo))
            .unwrap_or(0),
        arch_flags: arch_flags(&cpuinfo),
        topology,
    })
}

fn cpuinfo_mhz(cpuinfo: &str) -> Option<u32> {
    let mhz = |text: &str| text.split('.').next()?.parse::<u32>().ok();
    fields(cpuinfo, "cpu MHz").filter_map(mhz).max()
}

/// Reads the feature line, whose key differs by architecture and so identifies it.
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
    // `asimd` is the kernel's name of NEON on AArch64; 32-bit ARM has no such word.
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
