//! GPUs.

use clap::Args;
use fabricbios_client::{GpuSlots, Node, Resource, ResourceHealth};
use fabricbios_wire::{
    Effective, GPU_CUDA, GPU_MIG, GPU_ROCM, GpuBinding, GpuExclusivityClass, GpuExecutionMode,
    GpuTerms, GpuVendor, LeaseAllocRequest, LeaseInfo, ResourceId, Size,
};

use super::{Face, words};
use crate::{
    args::{NoGrace, Term},
    commands::{all_resources, not_found, request_of},
    failure::Failure,
    json::{Field, Object, field},
    lease_text::{named, row},
    output::one_line,
    values,
};

/// A GPU or part of one
#[derive(Args, Debug)]
pub(crate) struct Alloc {
    /// The memory: bytes, or with K, M, G, T (1024 each) or KB, MB, GB, TB (1000 each)
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    vram: u64,
    #[command(flatten)]
    term: Term,
    #[command(flatten)]
    class: GpuClass,
    #[command(flatten)]
    no_grace: NoGrace,
}

impl Alloc {
    pub(super) fn request(self, node: &Node) -> Result<LeaseAllocRequest, Failure> {
        gpu_request(node, self.vram, self.term, self.class)
    }
}

/// What GPU a lease wants, whom it shares the GPU with, and how it is used.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct GpuClass {
    /// shared: other leases may have parts of the same GPU; device: nobody else; session: nobody else, and
    /// the device is wiped after each session too, not only after the lease; partition: refused, MIG
    /// partitions are resources of their own. The node's policy if not given, see `fabricctl inventory`
    #[arg(long, value_name = "CLASS")]
    pub(crate) exclusivity: Option<GpuExclusivityClass>,
    /// session: memory and modules stay until the session is closed or the lease ends; one_shot: memory and modules
    /// go with the connection that made them. session if not given
    #[arg(long, value_name = "MODE")]
    pub(crate) execution_mode: Option<GpuExecutionMode>,
    /// Compute slices of the GPU, see `fabricctl inventory`; in proportion to the memory if not given
    #[arg(long, value_name = "N", value_parser = values::count)]
    pub(crate) compute_slices: Option<u16>,
    /// The vendor: nvidia or amd; any if not given
    #[arg(long, value_name = "VENDOR", conflicts_with = "resource")]
    pub(crate) vendor: Option<GpuVendor>,
}

/// A request for a GPU or part of one.
pub(crate) fn gpu_request(
    node: &Node,
    vram: u64,
    term: Term,
    class: GpuClass,
) -> Result<LeaseAllocRequest, Failure> {
    let GpuClass {
        exclusivity,
        execution_mode,
        compute_slices,
        vendor,
    } = class;
    let class = exclusivity.map(|class| class as u8);
    let of_vendor = vendor.map(|vendor| of_vendor(node, vendor, vram, class));
    let terms = GpuTerms {
        exclusivity,
        execution_mode,
        compute_slices,
    };
    let request = request_of(node, terms, vram, term)?;
    Ok(LeaseAllocRequest {
        resource_id: of_vendor.transpose()?.or(request.resource_id),
        ..request
    })
}

/// A GPU of this vendor: the first with at least `vram` bytes for a lease of this class, or else the one with the most.
/// A failed or fenced GPU comes last; if it is chosen, the node's refusal has the reason.
fn of_vendor(
    node: &Node,
    vendor: GpuVendor,
    vram: u64,
    class: Option<u8>,
) -> Result<ResourceId, Failure> {
    let mut there = all_resources(node)?;
    there.retain(|it| it.vendor() == Some(vendor));
    let is_good = |it: &&Resource| it.health == Some(ResourceHealth::Ok);
    let fits = |it: &&Resource| it.available_of(class) >= vram;
    let good = there.iter().filter(is_good).find(fits);
    let fits = good.or_else(|| there.iter().find(fits));
    let most = || there.iter().max_by_key(|it| it.available_of(class));
    fits.or_else(most).map(|it| it.id).ok_or_else(|| {
        not_found(format!(
            "there is no GPU of {vendor}; see `fabricctl inventory`"
        ))
    })
}

pub(super) struct Gpu;

impl Face for Gpu {
    fn enforced(&self, effective: &Effective) -> Vec<Option<String>> {
        let slices = effective.gpu_compute_slices;
        vec![
            named("gpu exclusivity", effective.gpu_exclusivity),
            named("gpu execution mode", effective.gpu_execution_mode),
            slices.map(|slices| format!("{slices} gpu compute slices")),
        ]
    }

    fn rows(&self, info: &LeaseInfo) -> Vec<Vec<String>> {
        info.binding.gpu().map_or_else(Vec::new, rows)
    }

    /// Leases that share a GPU are for sessions only.
    fn how_to_use(&self, info: &LeaseInfo) -> Option<String> {
        let (lease_id, gpu) = (info.lease_id, info.binding.gpu()?);
        let here = match gpu.cdi_device {
            Some(_) => {
                format!("; or, on the node, `fabricctl run --lease {lease_id} -- COMMAND`")
            }
            None => String::new(),
        };
        Some(format!(
            "`fabricctl gpu run --lease {lease_id} --ptx FILE --kernel NAME …`{here}"
        ))
    }

    fn rounding(&self) -> &'static str {
        "a lease of this class has the whole GPU"
    }

    fn runs_commands(&self) -> bool {
        true
    }

    fn class(&self, byte: u8) -> Option<&'static str> {
        GpuExclusivityClass::from_byte(byte).map(GpuExclusivityClass::name)
    }

    fn flags(&self, resource: &Resource) -> Vec<&'static str> {
        const FLAGS: [(u32, &str); 3] = [(GPU_CUDA, "cuda"), (GPU_ROCM, "rocm"), (GPU_MIG, "mig")];
        words(resource.gpu.map_or(0, |gpu| gpu.flags), &FLAGS)
    }

    fn capacity(&self, resource: &Resource) -> Vec<String> {
        let units = resource.gpu.map_or(0, |gpu| gpu.compute_units);
        match units {
            0 => Vec::new(),
            units => vec![format!("{units} compute units")],
        }
    }

    fn lines(&self, resource: &Resource) -> Vec<(&'static str, String)> {
        let (Some(_), Some(slots)) = (resource.gpu, resource.gpu_slots) else {
            return Vec::new();
        };
        let GpuSlots {
            compute_slices,
            compute_slices_free,
            session_slots,
            session_slots_free,
            queue_slots,
        } = slots;
        vec![
            (
                "slots",
                format!("{compute_slices_free} of {compute_slices} compute slices free"),
            ),
            (
                "",
                format!(
                    "{session_slots_free} of {session_slots} sessions free, {queue_slots} queues in each"
                ),
            ),
        ]
    }

    /// Memory and compute units are absent if the node does not know them. `queue_slots`: of each session.
    fn resource_json(&self, resource: &Resource) -> Vec<Field<'static>> {
        let slots = resource.gpu_slots.map(|slots| {
            [
                field("compute_slices", slots.compute_slices),
                field("compute_slices_free", slots.compute_slices_free),
                field("session_slots", slots.session_slots),
                field("session_slots_free", slots.session_slots_free),
                field("queue_slots", slots.queue_slots),
            ]
        });
        let gpu = resource.gpu.map(|gpu| {
            let units = Some(gpu.compute_units).filter(|units| *units != 0);
            let vram = Some(gpu.vram_bytes).filter(|bytes| *bytes != 0);
            Object::from([field("vram_bytes", vram), field("compute_units", units)])
                .with(slots.into_iter().flatten())
        });
        vec![field("gpu", gpu)]
    }
}

fn rows(gpu: &GpuBinding) -> Vec<Vec<String>> {
    let mut parts = vec![format!("{} of memory", Size(gpu.vram_bytes))];
    parts.extend(
        gpu.compute_slices
            .map(|slices| format!("{slices} compute slices")),
    );
    parts.push(format!("{} queues in a session", gpu.queue_slots));
    let mut rows = vec![
        row("gpu", format!("{}, {}", one_line(&gpu.uuid), gpu.vendor)),
        row("", parts.join(", ")),
    ];
    let endpoint = gpu.session_endpoint;
    rows.extend(endpoint.map(|endpoint| row("sessions", format!("at {endpoint}"))));
    let device = gpu.cdi_device.as_deref();
    rows.extend(device.map(|device| row("cdi device", one_line(device))));
    rows
}
