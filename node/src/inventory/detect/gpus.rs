//! GPUs: display controllers of NVIDIA or AMD on the PCI bus. Those of other vendors (server consoles, emulated VGA)
//! are left out.

use fabricbios_kernfs::Tree;

use super::Warnings;

const DEVICES: &str = "bus/pci/devices";

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFound {
    /// PCI address, such as `0000:01:00.0`.
    pub name: String,
    /// The vendor.
    pub vendor: GpuVendor,
    /// Bytes; 0 if only the vendor's library can read the size.
    pub vram_bytes: u64,
    /// The vendor's driver is bound to it, so that CUDA or ROCm can use it.
    pub driver_bound: bool,
}

/// Makers of GPUs that can be leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuVendor {
    /// PCI vendor 0x10de.
    Nvidia,
    /// PCI vendor 0x1002.
    Amd,
}

impl GpuVendor {
    fn from_pci(id: &str) -> Option<Self> {
        match id {
            "0x10de" => Some(Self::Nvidia),
            "0x1002" => Some(Self::Amd),
            _ => None,
        }
    }

    fn driver(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia",
            Self::Amd => "amdgpu",
        }
    }
}

pub(super) fn detect(sys: &Tree, warnings: &mut Warnings) -> Vec<GpuFound> {
    let names = warnings.names(sys, DEVICES, "GPUs");
    names
        .into_iter()
        .filter_map(|name| gpu(sys, name, warnings))
        .collect()
}

fn gpu(sys: &Tree, name: String, warnings: &mut Warnings) -> Option<GpuFound> {
    let path = |file: &str| format!("{DEVICES}/{name}/{file}");
    let class = warnings.keep(&name, "skipped", sys.read(path("class")))?;
    if !class.starts_with("0x03") {
        return None;
    }
    let vendor = warnings.keep(&name, "skipped", sys.read(path("vendor")))?;
    let vendor = GpuVendor::from_pci(&vendor)?;
    let driver_bound = sys
        .link_name(path("driver"))
        .is_ok_and(|name| name == vendor.driver());
    let vram_bytes = match sys.read_as(path("mem_info_vram_total")) {
        Err(e) if e.is_absent() => 0,
        read => warnings.keep(&name, "VRAM unknown", read).unwrap_or(0),
    };
    Some(GpuFound {
        vendor,
        vram_bytes,
        driver_bound,
        name,
    })
}
