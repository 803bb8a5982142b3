//! Leases of a GPU: the terms of a request (0x0903, 0x090C, 0x090D) and the coordinates in an answer (0x0501–0x0507).
//! Reserved bytes fail closed, and so does a wrong length (docs/spec/gpu-exclusivity-wire-format.md §3).

mod operation;
mod session;

use alloc::string::{String, ToString};
use core::ops::RangeInclusive;

pub use operation::*;
pub use session::*;

use super::{Coordinates, Terms};
use crate::{
    CDI_DEVICE_BYTES_MAX, Effective, Endpoint, Size, endpoint, names::words, read::Decoded,
    structured::entry, tlv::TlvArea, write::Writer,
};

/// The tags of the kind.
pub(crate) mod tag {
    crate::tag::tags! {
        /// ASCII, 1 to 96 bytes.
        GPU_UUID = 0x0501, "UUID of the GPU";
        /// `u8`, [`crate::GpuVendor`].
        GPU_VENDOR = 0x0502, "vendor of the GPU";
        /// `u64`.
        GPU_VRAM_BYTES = 0x0503, "bytes of GPU memory";
        /// `[u8; 16], u16`.
        GPU_SESSION_ENDPOINT = 0x0504, "endpoint of sessions";
        /// ASCII, 1 to 128 bytes.
        GPU_CDI_DEVICE = 0x0505, "CDI device of the GPU";
        /// `u16`, at least 1.
        GPU_COMPUTE_SLICES = 0x0506, "compute slices";
        /// `u16`.
        GPU_QUEUE_SLOTS = 0x0507, "queue slots";
        /// `u8`, [`crate::GpuExclusivityClass`].
        LEASE_GPU_EXCLUSIVITY = 0x0903, "GPU exclusivity";
        /// `u8`, [`crate::GpuExecutionMode`].
        LEASE_GPU_EXECUTION_MODE = 0x090C, "GPU execution mode";
        /// `u16`, at least 1.
        LEASE_GPU_COMPUTE_SLICES = 0x090D, "GPU compute slices";
    }
}

/// Longest UUID of a GPU, bytes: that of a MIG partition has 40, or 80 in the form of older drivers.
pub const GPU_UUID_BYTES_MAX: usize = 96;

words! {
    /// GPU exclusivity, value of `TLV_LEASE_GPU_EXCLUSIVITY` (003 §2.1).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum GpuExclusivityClass: u8, "GPU exclusivity class", from_byte {
        /// The device may multiplex other tenants.
        Shared = 0, "shared" | "Shared";
        /// Exclusive residency for the life of a session.
        SessionExclusive = 1, "session" | "session_exclusive" | "SessionExclusive";
        /// The whole device for the life of the lease.
        DeviceExclusive = 2, "device" | "device_exclusive" | "DeviceExclusive";
        /// Reserved by the specification for partition mode.
        PartitionExclusive = 3, "partition" | "partition_exclusive" | "PartitionExclusive";
    }
}

words! {
    /// How a lease of a GPU is used (001 §5.2). Value of 0x090C.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum GpuExecutionMode: u8, "GPU execution mode", from_byte {
        /// Everything that a stream has made is wiped and freed at its end.
        OneShot = 0, "one_shot" | "OneShot";
        /// Memory and modules stay until the session is closed or the lease ends.
        Session = 1, "session" | "Session";
    }
}

words! {
    /// The maker of a GPU, whose libraries use it. Value of 0x0502.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum GpuVendor: u8, "GPU vendor", from_byte {
        /// NVIDIA: CUDA.
        Nvidia = 0, "nvidia";
        /// AMD: ROCm.
        Amd = 1, "amd";
    }
}

entry! {
    /// A GPU.
    pub struct GpuInfo, "gpus" {
        /// Memory, bytes; 0 if unknown.
        vram_bytes: u64,
        /// CUDA cores or stream processors, 0 if unknown.
        compute_units: u32,
        /// Bit 0 `GPU_CUDA`, bit 1 `GPU_ROCM`, bit 2 `GPU_MIG`.
        flags: u32,
        /// [`crate::health`].
        health: u32,
    }
}

/// `GPU_CUDA`, bit 0 of [`GpuInfo::flags`].
pub const GPU_CUDA: u32 = 1 << 0;
/// `GPU_ROCM`, bit 1 of [`GpuInfo::flags`].
pub const GPU_ROCM: u32 = 1 << 1;
/// `GPU_MIG`, bit 2 of [`GpuInfo::flags`] (003 §7).
pub const GPU_MIG: u32 = 1 << 2;

/// The terms of a lease of GPU memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GpuTerms {
    /// 0x0903 (003). Absent: the node's policy chooses the class.
    pub exclusivity: Option<GpuExclusivityClass>,
    /// 0x090C (001 §5.2). Absent: a session.
    pub execution_mode: Option<GpuExecutionMode>,
    /// 0x090D (001 §5.1): at least 1. Absent: the share of the memory.
    pub compute_slices: Option<u16>,
}

/// 0x0501–0x0507: where a lease of a GPU is used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GpuBinding {
    /// 0x0501: the vendor's UUID of the device or partition, such as `GPU-…` or `MIG-…`; ASCII, 1 to 96 bytes.
    pub uuid: String,
    /// 0x0502.
    pub vendor: GpuVendor,
    /// 0x0503: the most bytes that a session can allocate.
    pub vram_bytes: u64,
    /// 0x0504: the address for opening sessions. Absent while it is unknown.
    pub session_endpoint: Option<Endpoint>,
    /// 0x0505: the name of the device for container engines on the node; ASCII, 1 to 128 bytes.
    pub cdi_device: Option<String>,
    /// 0x0506: the compute slices of the lease.
    pub compute_slices: Option<u16>,
    /// 0x0507: how many streams a session can have at once.
    pub queue_slots: u16,
}

impl Terms for GpuTerms {
    fn find(area: &TlvArea<'_>) -> Decoded<Self> {
        Ok(Self {
            exclusivity: area.read(tag::LEASE_GPU_EXCLUSIVITY, |tlv| {
                tlv.byte_of("class", "0 to 3", GpuExclusivityClass::from_byte)
            })?,
            execution_mode: area.read(tag::LEASE_GPU_EXECUTION_MODE, |tlv| {
                tlv.byte_of("execution mode", "0 or 1", GpuExecutionMode::from_byte)
            })?,
            compute_slices: area.read(tag::LEASE_GPU_COMPUTE_SLICES, |tlv| {
                tlv.at_least_1("compute slices")
            })?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.tlv_if(
            tag::LEASE_GPU_EXCLUSIVITY,
            self.exclusivity.map(|class| [class as u8]),
        );
        w.tlv_if(
            tag::LEASE_GPU_EXECUTION_MODE,
            self.execution_mode.map(|mode| [mode as u8]),
        );
        w.tlv_if(
            tag::LEASE_GPU_COMPUTE_SLICES,
            self.compute_slices.map(u16::to_be_bytes),
        );
    }

    fn amount(bytes: u64) -> String {
        Size(bytes).to_string()
    }

    fn find_effective(area: &TlvArea<'_>, effective: &mut Effective) -> Decoded<()> {
        let terms = Self::find(area)?;
        effective.gpu_exclusivity = terms.exclusivity;
        effective.gpu_execution_mode = terms.execution_mode;
        effective.gpu_compute_slices = terms.compute_slices;
        Ok(())
    }

    fn write_effective(effective: &Effective, w: &mut Writer) {
        let terms = Self {
            exclusivity: effective.gpu_exclusivity,
            execution_mode: effective.gpu_execution_mode,
            compute_slices: effective.gpu_compute_slices,
        };
        terms.write(w);
    }
}

impl Coordinates for GpuBinding {
    const TAGS: RangeInclusive<u16> = tag::GPU_UUID..=tag::GPU_QUEUE_SLOTS;

    fn read(area: &TlvArea<'_>) -> Decoded<Self> {
        Ok(Self {
            uuid: area.require(tag::GPU_UUID, |tlv| {
                tlv.word(GPU_UUID_BYTES_MAX).map(String::from)
            })?,
            vendor: area.require(tag::GPU_VENDOR, |tlv| {
                tlv.byte_of("vendor", "0 or 1", GpuVendor::from_byte)
            })?,
            vram_bytes: area.require(tag::GPU_VRAM_BYTES, |tlv| {
                tlv.fixed().map(u64::from_be_bytes)
            })?,
            session_endpoint: area.read(tag::GPU_SESSION_ENDPOINT, endpoint::read_tlv)?,
            cdi_device: area.read(tag::GPU_CDI_DEVICE, |tlv| {
                tlv.word(CDI_DEVICE_BYTES_MAX).map(String::from)
            })?,
            compute_slices: area.read(tag::GPU_COMPUTE_SLICES, |tlv| {
                tlv.at_least_1("compute slices")
            })?,
            queue_slots: area.require(tag::GPU_QUEUE_SLOTS, |tlv| {
                tlv.fixed().map(u16::from_be_bytes)
            })?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.tlv(tag::GPU_UUID, self.uuid.as_bytes());
        w.tlv(tag::GPU_VENDOR, &[self.vendor as u8]);
        w.tlv(tag::GPU_VRAM_BYTES, &self.vram_bytes.to_be_bytes());
        w.tlv_if(
            tag::GPU_SESSION_ENDPOINT,
            self.session_endpoint.map(|endpoint| endpoint.bytes()),
        );
        if let Some(device) = &self.cdi_device {
            w.tlv(tag::GPU_CDI_DEVICE, device.as_bytes());
        }
        w.tlv_if(
            tag::GPU_COMPUTE_SLICES,
            self.compute_slices.map(u16::to_be_bytes),
        );
        w.tlv(tag::GPU_QUEUE_SLOTS, &self.queue_slots.to_be_bytes());
    }
}
