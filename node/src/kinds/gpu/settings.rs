//! The operator's settings of GPUs.

use std::ops::RangeInclusive;

use clap::{Args, ValueEnum};
use fabricbios_wire::Size;

use super::wanted::WantedGpus;
use crate::kinds::settings::{Conflicts, KindSettings, values};

/// Memory of the worker of a lease: a context does not fit into less.
const WORKER_MEMORY: RangeInclusive<Size> = Size(64 << 20)..=values::MOST;

/// The settings of GPUs.
#[derive(Args, Clone, Debug, Default)]
pub struct GpuSettings {
    /// GPUs to offer for lease: `all`, or UUIDs as in `fabricctl inventory`, with commas between. Of a GPU that is divided
    /// into partitions (MIG) only the partitions are offered [default: none].
    #[arg(long, value_name = "LIST")]
    pub gpus: Option<WantedGpus>,

    /// Whether a GPU may be shared. `exclusive`: one lease a GPU. `fractional`: leases that name no class share it
    /// [default: exclusive].
    #[arg(long, value_enum)]
    pub gpu_share_mode: Option<GpuShareMode>,

    /// Most memory of this machine that the worker of a GPU lease takes, together with the lease's programs on the node
    /// [default: 4GiB].
    #[arg(long, value_name = "SIZE", value_parser = values::size(WORKER_MEMORY, "4GiB"))]
    pub gpu_worker_memory_max: Option<Size>,

    /// Most GPU memory that the leases of one tenant may hold; a lease of a whole GPU holds all of its memory [default: all
    /// that is on offer].
    #[arg(long, value_name = "SIZE", value_parser = values::size(values::ANY, "80GiB"))]
    pub gpu_per_tenant_max: Option<Size>,
}

/// Whether a GPU may be shared (000, "Share Modes").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum GpuShareMode {
    /// One lease a GPU.
    #[default]
    Exclusive,
    /// Several, by VRAM.
    Fractional,
}

/// See [`crate::kinds::Kind::conflicts`].
pub(super) fn conflicts(settings: &KindSettings, conflicts: &mut Conflicts<'_>) {
    let it = &settings.gpu;
    conflicts.needs(
        &[
            ("gpu-share-mode", it.gpu_share_mode.is_some()),
            ("gpu-worker-memory-max", it.gpu_worker_memory_max.is_some()),
            ("gpu-per-tenant-max", it.gpu_per_tenant_max.is_some()),
        ],
        it.gpus.is_some(),
        "--gpus LIST",
        "no GPU is leased",
    );
}

#[cfg(test)]
pub(super) mod tests;
