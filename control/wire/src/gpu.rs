//! Leases of a GPU: the terms of a request (0x0903, 0x090C, 0x090D) and the coordinates in an answer (0x0501–0x0507).
//! Reserved bytes fail closed, and so does a wrong length (docs/spec/gpu-exclusivity-wire-format.md §3).

use alloc::string::String;

use crate::{
    CDI_DEVICE_BYTES_MAX, DecodeError, Endpoint, GPU_UUID_BYTES_MAX, GpuExclusivityClass,
    GpuExecutionMode, GpuVendor, binding_tlv, tag,
    tlv::{Tlv, TlvArea},
    write::Writer,
};

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

/// Reads the class. `None`: the node's policy chooses it.
pub(crate) fn find(params: &TlvArea<'_>) -> Result<Option<GpuExclusivityClass>, DecodeError> {
    params.read(tag::LEASE_GPU_EXCLUSIVITY, |tlv| {
        tlv.byte_of("class", "0 to 3", GpuExclusivityClass::from_byte)
    })
}

pub(crate) fn find_execution_mode(
    area: &TlvArea<'_>,
) -> Result<Option<GpuExecutionMode>, DecodeError> {
    area.read(tag::LEASE_GPU_EXECUTION_MODE, |tlv| {
        tlv.byte_of("execution mode", "0 or 1", GpuExecutionMode::from_byte)
    })
}

pub(crate) fn find_compute_slices(area: &TlvArea<'_>) -> Result<Option<u16>, DecodeError> {
    area.read(tag::LEASE_GPU_COMPUTE_SLICES, read_slices)
}

fn read_slices(tlv: &Tlv<'_>) -> Result<u16, DecodeError> {
    match u16::from_be_bytes(tlv.fixed()?) {
        0 => Err(tlv.unknown_value(0, "compute slices", "at least 1", 0)),
        slices => Ok(slices),
    }
}

pub(crate) fn find_terms(params: &TlvArea<'_>) -> Result<GpuTerms, DecodeError> {
    Ok(GpuTerms {
        exclusivity: find(params)?,
        execution_mode: find_execution_mode(params)?,
        compute_slices: find_compute_slices(params)?,
    })
}

pub(crate) fn write(w: &mut Writer, class: Option<GpuExclusivityClass>) {
    w.tlv_if(tag::LEASE_GPU_EXCLUSIVITY, class.map(|class| [class as u8]));
}

pub(crate) fn write_execution(w: &mut Writer, mode: Option<GpuExecutionMode>, slices: Option<u16>) {
    w.tlv_if(tag::LEASE_GPU_EXECUTION_MODE, mode.map(|mode| [mode as u8]));
    w.tlv_if(tag::LEASE_GPU_COMPUTE_SLICES, slices.map(u16::to_be_bytes));
}

pub(crate) fn has_binding(area: &TlvArea<'_>) -> bool {
    let tags = tag::GPU_UUID..=tag::GPU_QUEUE_SLOTS;
    area.iter().any(|tlv| tags.contains(&tlv.tag))
}

pub(crate) fn read_binding(area: &TlvArea<'_>) -> Result<GpuBinding, DecodeError> {
    Ok(GpuBinding {
        uuid: area.require(tag::GPU_UUID, |tlv| {
            tlv.word(GPU_UUID_BYTES_MAX).map(String::from)
        })?,
        vendor: area.require(tag::GPU_VENDOR, |tlv| {
            tlv.byte_of("vendor", "0 or 1", GpuVendor::from_byte)
        })?,
        vram_bytes: area.require(tag::GPU_VRAM_BYTES, |tlv| {
            tlv.fixed().map(u64::from_be_bytes)
        })?,
        session_endpoint: area.read(tag::GPU_SESSION_ENDPOINT, binding_tlv::read_endpoint)?,
        cdi_device: area.read(tag::GPU_CDI_DEVICE, |tlv| {
            tlv.word(CDI_DEVICE_BYTES_MAX).map(String::from)
        })?,
        compute_slices: area.read(tag::GPU_COMPUTE_SLICES, read_slices)?,
        queue_slots: area.require(tag::GPU_QUEUE_SLOTS, |tlv| {
            tlv.fixed().map(u16::from_be_bytes)
        })?,
    })
}

pub(crate) fn write_binding(w: &mut Writer, gpu: &GpuBinding) {
    w.tlv(tag::GPU_UUID, gpu.uuid.as_bytes());
    w.tlv(tag::GPU_VENDOR, &[gpu.vendor as u8]);
    w.tlv(tag::GPU_VRAM_BYTES, &gpu.vram_bytes.to_be_bytes());
    w.tlv_if(
        tag::GPU_SESSION_ENDPOINT,
        gpu.session_endpoint.map(|endpoint| endpoint.bytes()),
    );
    if let Some(device) = &gpu.cdi_device {
        w.tlv(tag::GPU_CDI_DEVICE, device.as_bytes());
    }
    w.tlv_if(
        tag::GPU_COMPUTE_SLICES,
        gpu.compute_slices.map(u16::to_be_bytes),
    );
    w.tlv(tag::GPU_QUEUE_SLOTS, &gpu.queue_slots.to_be_bytes());
}
