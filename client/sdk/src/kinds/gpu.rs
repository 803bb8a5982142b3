//! GPUs.

use fabricbios_wire::{
    Binding, Effective, GPU_CUDA, GPU_ROCM, GpuBinding, GpuExclusivityClass, GpuExecutionMode,
    GpuTerms, GpuVendor, InventoryExtension, LeaseInfo, ResourceInventory,
};

use super::{Kind as _, sealed::Sealed};
use crate::{
    Builder, Error, Lease,
    inventory::{Entries, Resource},
    json::{Field, Object, field},
    unmet::Missing,
};

/// A GPU or part of one, for sessions.
#[derive(Clone, Copy, Debug)]
pub enum Gpu {}

/// Requests a lease of a GPU or of part of one.
///
/// ```compile_fail,E0599
/// fabricbios_client::GpuBuilder::new().grace_secs(1);
/// ```
pub type GpuBuilder = Builder<Gpu>;

/// A lease of a GPU or of part of one; [`crate::GpuSession`] uses it.
pub type GpuLease = Lease<Gpu>;

/// The slots of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuSlots {
    /// The parts into which its computing power is divided.
    pub compute_slices: u16,
    /// Free compute slices.
    pub compute_slices_free: u16,
    /// Leases, each with one session, that it can have at once.
    pub session_slots: u16,
    /// Free session slots.
    pub session_slots_free: u16,
    /// Streams that a session can have at once.
    pub queue_slots: u16,
}

impl Sealed for Gpu {
    type Terms = GpuTerms;
    const SIZED_BY: &'static str = "min_vram()";

    fn check(terms: &GpuTerms) -> Result<(), Error> {
        match terms.compute_slices {
            Some(0) => Err(Error::Usage(
                "a lease has at least 1 compute slice".to_owned(),
            )),
            _ => Ok(()),
        }
    }

    fn unmet(terms: &GpuTerms, _capacity: u64, info: &LeaseInfo, missing: &mut Missing) {
        let effective = &info.effective;
        missing.asked("GPU exclusivity", terms.exclusivity, |class| {
            let got = effective.gpu_exclusivity;
            got.is_some_and(|got| is_as_tight(got, class))
        });
        missing.asked("GPU execution mode", terms.execution_mode, |mode| {
            effective.gpu_execution_mode == Some(mode)
        });
        missing.asked("GPU compute slices", terms.compute_slices, |slices| {
            effective.gpu_compute_slices >= Some(slices)
        });
    }

    fn entries(structured: &ResourceInventory, entries: &mut Entries) {
        for gpu in &structured.gpus {
            let entry = (gpu.resource_id, gpu.vram_bytes, gpu.health);
            entries.add(Self::TYPE, entry, |it| it.gpu = Some(*gpu));
        }
    }

    fn extend(resource: &mut Resource, extension: &InventoryExtension) {
        if let InventoryExtension::GpuSlots {
            resource_id: _,
            compute_slices,
            compute_slices_free,
            session_slots,
            session_slots_free,
            queue_slots,
        } = *extension
        {
            resource.gpu_slots = Some(GpuSlots {
                compute_slices,
                compute_slices_free,
                session_slots,
                session_slots_free,
                queue_slots,
            });
        }
    }

    fn terms_json(it: &Effective) -> Vec<Field<'static>> {
        let class = it.gpu_exclusivity.map(GpuExclusivityClass::name);
        let mode = it.gpu_execution_mode.map(GpuExecutionMode::name);
        vec![
            field("gpu_exclusivity", class),
            field("gpu_execution_mode", mode),
            field("gpu_compute_slices", it.gpu_compute_slices),
        ]
    }

    fn binding_json(binding: &Binding) -> Vec<Field<'_>> {
        vec![field("gpu", binding.gpu().map(json))]
    }
}

/// A higher class is tighter, except a partition, which is not comparable with a whole device.
fn is_as_tight(got: GpuExclusivityClass, wanted: GpuExclusivityClass) -> bool {
    got == wanted || (got > wanted && got != GpuExclusivityClass::PartitionExclusive)
}

impl Resource {
    /// The vendor of a GPU.
    pub fn vendor(&self) -> Option<GpuVendor> {
        match self.gpu?.flags {
            flags if flags & GPU_CUDA != 0 => Some(GpuVendor::Nvidia),
            flags if flags & GPU_ROCM != 0 => Some(GpuVendor::Amd),
            _ => None,
        }
    }
}

impl GpuBuilder {
    /// Sets the memory in bytes that the lease needs. Required. A lease of a whole GPU gets all of its memory.
    pub fn min_vram(mut self, bytes: u64) -> Self {
        self.request.capacity = bytes;
        self
    }

    /// Sets with whom the GPU is shared; the policy of the node by default.
    pub fn exclusivity(mut self, class: GpuExclusivityClass) -> Self {
        self.terms.exclusivity = Some(class);
        self
    }

    /// States whether memory and modules stay until the session is closed, or go with the stream that made them. They stay
    /// by default.
    pub fn execution_mode(mut self, mode: GpuExecutionMode) -> Self {
        self.terms.execution_mode = Some(mode);
        self
    }

    /// Sets the compute slices that the lease needs; by default its share of the memory decides.
    pub fn compute_slices(mut self, slices: u16) -> Self {
        self.terms.compute_slices = Some(slices);
        self
    }
}

fn json(binding: &GpuBinding) -> Object<'_> {
    let endpoint = binding.session_endpoint.map(|it| it.to_string());
    Object::from([
        field("uuid", &*binding.uuid),
        field("vendor", binding.vendor.name()),
        field("vram_bytes", binding.vram_bytes),
        field("session_endpoint", endpoint),
        field("cdi_device", binding.cdi_device.as_deref()),
        field("compute_slices", binding.compute_slices),
        field("queue_slots", binding.queue_slots),
    ])
}
