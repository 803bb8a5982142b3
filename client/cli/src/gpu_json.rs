//! The JSON of the binding of a GPU.

use fabricbios_wire::GpuBinding;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct GpuJson<'a> {
    uuid: &'a str,
    vendor: &'static str,
    vram_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cdi_device: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compute_slices: Option<u16>,
    queue_slots: u16,
}

impl<'a> From<&'a GpuBinding> for GpuJson<'a> {
    fn from(binding: &'a GpuBinding) -> Self {
        Self {
            uuid: &binding.uuid,
            vendor: binding.vendor.name(),
            vram_bytes: binding.vram_bytes,
            session_endpoint: binding.session_endpoint.map(|it| it.to_string()),
            cdi_device: binding.cdi_device.as_deref(),
            compute_slices: binding.compute_slices,
            queue_slots: binding.queue_slots,
        }
    }
}
