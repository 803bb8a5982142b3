//! A GPU, or a partition of one.

use fabricbios_cgroup::nodes::Node;
use fabricbios_wire::{GPU_CUDA, GPU_MIG, GPU_ROCM, GpuInfo, GpuVendor, ResourceId, health};
use serde::{Deserialize, Serialize};

/// Compute slices of a whole device: as many as MIG divides one into.
pub const WHOLE_SLICES: u16 = 7;

/// A GPU, or a MIG partition of one, as the vendor's library reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// The vendor's UUID: `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// The maker.
    pub vendor: GpuVendor,
    /// The name of the model.
    pub name: String,
    /// PCI address, such as `0000:01:00.0`. A partition has the address of its device.
    pub pci: Option<String>,
    /// All memory, bytes.
    pub vram_bytes: u64,
    /// CUDA cores or stream processors; 0 if unknown.
    pub compute_units: u32,
    /// The number of parts into which leases divide its computing power.
    pub compute_slices: u16,
    /// Of a partition: the UUID of its device.
    pub partition_of: Option<String>,
    /// The device is divided into partitions (MIG), and only the partitions can be leased.
    pub has_partitions: bool,
    /// The device nodes that a program needs to use this device and no other.
    pub nodes: Vec<Node>,
    /// The value of CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES that shows this device alone.
    pub visible: String,
    /// As the vendor's library reports it.
    pub health: Health,
}

/// The health of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Health {
    /// No fault is known.
    #[default]
    Good,
    /// The device works with a fault; the text describes it, for people.
    Degraded(String),
    /// The library does not answer, so no lease of the device can be made or cleaned. The text says since when, for
    /// people.
    Silent(String),
    /// The device cannot be used until it is reset or replaced. The text says why, for people.
    Failed(String),
}

impl Health {
    /// The health code of inventories.
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            Self::Good => health::OK,
            Self::Degraded(_) | Self::Silent(_) => health::DEGRADED,
            Self::Failed(_) => health::FENCED,
        }
    }
}

/// Environment variable with the vendor of the GPU, for programs in a lease.
const VENDOR: &str = "FABRICBIOS_GPU_VENDOR";

impl Device {
    /// Variables for programs, with their values: one shows them only this device, the other names its vendor.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, &str); 2] {
        let variable = match self.vendor {
            GpuVendor::Nvidia => "CUDA_VISIBLE_DEVICES",
            GpuVendor::Amd => "ROCR_VISIBLE_DEVICES",
        };
        [(variable, &self.visible), (VENDOR, self.vendor.name())]
    }

    /// The nodes that only users of this device open.
    pub(crate) fn own_nodes(&self) -> Vec<Node> {
        let own = self.nodes.iter().filter(|it| !it.is_shared);
        own.cloned().collect()
    }

    /// The entry of inventories.
    #[must_use]
    pub fn info(&self, resource_id: ResourceId) -> GpuInfo {
        let vendor = match self.vendor {
            GpuVendor::Nvidia => GPU_CUDA,
            GpuVendor::Amd => GPU_ROCM,
        };
        let is_partition = self.partition_of.is_some();
        GpuInfo {
            resource_id,
            vram_bytes: self.vram_bytes,
            compute_units: self.compute_units,
            flags: vendor | if is_partition { GPU_MIG } else { 0 },
            health: self.health.code(),
        }
    }
}
