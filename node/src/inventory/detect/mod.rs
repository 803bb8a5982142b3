//! Detects the machine's hardware from procfs and sysfs (000, "Auto-Detection").
//!
//! Detection only reads the two given trees. Detected hardware is advertised with nothing available until the operator
//! offers it, so that nobody leases a root disk or a management NIC by accident. A missing or malformed file costs one
//! item or one property, with a warning. Only physical devices are listed: a NIC or disk without a `device` link (lo,
//! veth, loop, zram, dm, md) is left out.

mod blocks;
mod cpu;
mod gpus;
mod inventory;
mod memory;
mod nics;

use std::fmt;

use fabricbios_gpu::Device;
use fabricbios_kernfs::Tree;

use crate::inventory::vendor::VendorResource;

pub use blocks::BlockFound;
pub use cpu::CpuFound;
pub(crate) use cpu::NAME as CPU_NAME;
pub use gpus::{GpuFound, GpuVendor};
pub use inventory::resource_id;
pub use memory::MemFound;
pub(crate) use memory::{available_bytes, total_bytes};
pub use nics::NicFound;

/// The trees that detection reads.
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

/// The detected hardware. Names are as stable as the kernel's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detected {
    /// Main memory: one, `mem0`.
    pub mem: Vec<MemFound>,
    /// Processors: one, `cpu0`.
    pub cpus: Vec<CpuFound>,
    /// By interface name.
    pub nics: Vec<NicFound>,
    /// By PCI address.
    pub gpus: Vec<GpuFound>,
    /// The GPUs that the vendors' libraries report; none of them is in `gpus`.
    pub known_gpus: Vec<Device>,
    /// By device name.
    pub blocks: Vec<BlockFound>,
    /// The resources of `--advertise-vendor`.
    pub vendors: Vec<VendorResource>,
    /// Skipped or degraded items with the reason, for the log.
    pub warnings: Vec<String>,
}

/// Detects everything. Unreadable items are left out with a warning.
#[must_use]
pub fn detect(sources: &Sources) -> Detected {
    let mut warnings = Warnings::default();
    let mut found = Detected {
        mem: memory::detect(&sources.proc, &mut warnings)
            .into_iter()
            .collect(),
        cpus: cpu::detect(sources, &mut warnings).into_iter().collect(),
        nics: nics::detect(&sources.sys, &mut warnings),
        gpus: gpus::detect(&sources.sys, &mut warnings),
        known_gpus: Vec::new(),
        blocks: blocks::detect(&sources.sys, &mut warnings),
        vendors: Vec::new(),
        warnings: Vec::new(),
    };
    found.warnings = warnings.0;
    found
}

impl Detected {
    /// Lists the GPUs that the vendors' libraries report, in place of the kernel's entries for the same devices.
    pub(crate) fn list_gpus(&mut self, known: &[Device]) {
        let is_known = |name: &str| known.iter().any(|it| it.pci.as_deref() == Some(name));
        self.gpus.retain(|found| !is_known(&found.name));
        self.known_gpus = known.to_vec();
    }
}

/// Detects the processors alone; warnings as in [`Detected`].
pub(crate) fn detect_cpu(sources: &Sources) -> (Option<CpuFound>, Vec<String>) {
    let mut warnings = Warnings::default();
    (cpu::detect(sources, &mut warnings), warnings.0)
}

/// Detects one network interface alone, physical or not; warnings as in [`Detected`].
pub(crate) fn detect_nic(sources: &Sources, name: &str) -> (NicFound, Vec<String>) {
    let mut warnings = Warnings::default();
    let found = nics::nic(&sources.sys, name.to_owned(), &mut warnings);
    (found, warnings.0)
}

#[derive(Default)]
struct Warnings(Vec<String>);

impl Warnings {
    fn add(&mut self, item: &str, consequence: &str, reason: impl fmt::Display) {
        self.0.push(format!("{item}: {consequence}: {reason}"));
    }

    /// The value; on an error a warning and `None`.
    fn keep<T>(
        &mut self,
        item: &str,
        consequence: &str,
        result: Result<T, fabricbios_kernfs::Error>,
    ) -> Option<T> {
        result.map_err(|e| self.add(item, consequence, e)).ok()
    }

    /// Names in a directory; on an error a warning and no names.
    fn names(&mut self, sys: &Tree, directory: &str, kind: &str) -> Vec<String> {
        self.keep(kind, "none detected", sys.list(directory))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
