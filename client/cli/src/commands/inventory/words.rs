//! The words for flags and classes in an inventory.

use fabricbios_client::Resource;
use fabricbios_wire::{
    BLOCK_REMOVABLE, BLOCK_RO, CpuIsolationClass, GPU_CUDA, GPU_MIG, GPU_ROCM, GpuExclusivityClass,
    NIC_SRIOV, ResourceType, cpu_flags, resource_flags,
};

pub(super) fn arch(flags: u32) -> Option<&'static str> {
    match flags >> cpu_flags::ARCH_SHIFT & 0xff {
        cpu_flags::ARCH_AARCH64 => Some("aarch64"),
        cpu_flags::ARCH_X86_64 => Some("x86_64"),
        _ => None,
    }
}

pub(super) fn class(kind: ResourceType, byte: u8) -> String {
    let word = match kind {
        ResourceType::Cpu => CpuIsolationClass::from_byte(byte).map(CpuIsolationClass::name),
        ResourceType::Gpu => GpuExclusivityClass::from_byte(byte).map(GpuExclusivityClass::name),
        _ => None,
    };
    word.map_or_else(|| format!("unknown(0x{byte:02x})"), str::to_owned)
}

const RESOURCE_FLAGS: [(u32, &str); 2] = [
    (resource_flags::FENCED as u32, "fenced"),
    (resource_flags::DEGRADED as u32, "degraded"),
];

const BLOCK_FLAGS: [(u32, &str); 2] = [(BLOCK_RO, "read-only"), (BLOCK_REMOVABLE, "removable")];

const CPU_FLAGS: [(u32, &str); 6] = [
    (cpu_flags::TASKLET_HOST, "tasklet-host"),
    (cpu_flags::NEON, "neon"),
    (cpu_flags::CRC32, "crc32"),
    (cpu_flags::TOPOLOGY_COMPLETE, "topology-complete"),
    (cpu_flags::TOPOLOGY_AWARE_LEASING, "topology-aware-leasing"),
    (
        cpu_flags::REJECTS_WIDE_SINGLE_THREADED,
        "rejects-wide-single-threaded",
    ),
];

const GPU_FLAGS: [(u32, &str); 3] = [(GPU_CUDA, "cuda"), (GPU_ROCM, "rocm"), (GPU_MIG, "mig")];

const NIC_FLAGS: [(u32, &str); 1] = [(NIC_SRIOV, "sr-iov")];

/// The names of the flags; unknown ones of the flat form are shown as a number.
pub(super) fn flags(resource: &Resource) -> Vec<String> {
    let known = |bits: u32, names: &[(u32, &'static str)]| -> Vec<String> {
        let set = names.iter().filter(|(bit, _)| bits & bit != 0);
        set.map(|(_, name)| (*name).to_owned()).collect()
    };
    let mut words = known(resource.flags.into(), &RESOURCE_FLAGS);
    let rest = resource.flags & !(resource_flags::FENCED | resource_flags::DEGRADED);
    if rest != 0 {
        words.push(format!("unknown(0x{rest:04x})"));
    }
    words.extend(known(
        resource.blocks.map_or(0, |pool| pool.flags),
        &BLOCK_FLAGS,
    ));
    words.extend(known(resource.cpu.map_or(0, |cpu| cpu.flags), &CPU_FLAGS));
    words.extend(known(resource.nic.map_or(0, |nic| nic.flags), &NIC_FLAGS));
    words.extend(known(resource.gpu.map_or(0, |gpu| gpu.flags), &GPU_FLAGS));
    words
}
