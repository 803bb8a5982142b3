//! GPUs: display controllers of NVIDIA or AMD on the PCI bus. Those of other vendors (server consoles, emulated VGA)
//! are left out.

use fabricbios_gpu::{Device, Health};
use fabricbios_kernfs::Tree;
use fabricbios_wire::{
    GPU_CUDA, GPU_ROCM, GpuInfo, GpuVendor, ResourceId, ResourceInventory, ResourceType, health,
};

use crate::{
    inventory::{
        detection::Found,
        hardware::{Hardware, Row, Warnings},
    },
    kinds::detect::Looking,
};

const DEVICES: &str = "bus/pci/devices";

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GpuFound {
    /// PCI address, such as `0000:01:00.0`.
    pub(crate) name: String,
    /// The vendor.
    pub(crate) vendor: GpuVendor,
    /// Bytes; 0 if only the vendor's library can read the size.
    pub(crate) vram_bytes: u64,
    /// The vendor's driver is bound to it, so that CUDA or ROCm can use it.
    pub(crate) driver_bound: bool,
}

impl Hardware for GpuFound {
    fn row(&self) -> Row<'_> {
        Row {
            kind: ResourceType::Gpu,
            name: &self.name,
            capacity: self.vram_bytes,
            degraded: false,
        }
    }

    fn add_to(&self, inventory: &mut ResourceInventory, resource_id: ResourceId) {
        inventory.gpus.push(GpuInfo {
            resource_id,
            vram_bytes: self.vram_bytes,
            compute_units: 0,
            flags: match (self.driver_bound, self.vendor) {
                (false, _) => 0,
                (true, GpuVendor::Nvidia) => GPU_CUDA,
                (true, GpuVendor::Amd) => GPU_ROCM,
            },
            health: health::OK,
        });
    }
}

/// A GPU that a vendor's library reports.
impl Hardware for Device {
    fn row(&self) -> Row<'_> {
        Row {
            kind: ResourceType::Gpu,
            name: &self.uuid,
            capacity: self.vram_bytes,
            degraded: self.health != Health::Good,
        }
    }

    fn add_to(&self, inventory: &mut ResourceInventory, resource_id: ResourceId) {
        inventory.gpus.push(self.info(resource_id));
    }
}

/// See [`crate::kinds::Kind::detect`]. GPUs that a vendor's library reports replace the kernel's entries for the same
/// devices.
pub(super) fn detect(looking: &Looking<'_>, found: &mut Found) {
    if looking.lists() {
        let (sys, known) = (&looking.sources.sys, looking.gpus.list());
        let is_known = |name: &str| known.iter().any(|it| it.pci.as_deref() == Some(name));
        for name in found.warnings.names(sys, DEVICES, "GPUs") {
            let gpu = gpu(sys, name, &mut found.warnings);
            let gpu = gpu.filter(|it| !is_known(&it.name));
            gpu.into_iter().for_each(|it| found.list(it));
        }
        known.into_iter().for_each(|it| found.list(it));
    }
}

/// The vendor of a PCI id, and its driver.
fn vendor(id: &str) -> Option<(GpuVendor, &'static str)> {
    match id {
        "0x10de" => Some((GpuVendor::Nvidia, "nvidia")),
        "0x1002" => Some((GpuVendor::Amd, "amdgpu")),
        _ => None,
    }
}

fn gpu(sys: &Tree, name: String, warnings: &mut Warnings) -> Option<GpuFound> {
    let path = |file: &str| format!("{DEVICES}/{name}/{file}");
    let class = warnings.keep(&name, "skipped", sys.read(path("class")))?;
    if !class.starts_with("0x03") {
        return None;
    }
    let id = warnings.keep(&name, "skipped", sys.read(path("vendor")))?;
    let (vendor, driver) = vendor(&id)?;
    let bound = sys.link_name(path("driver"));
    let driver_bound = bound.is_ok_and(|name| name == driver);
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
