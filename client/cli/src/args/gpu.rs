//! `gpu …`: leased GPUs.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use fabricbios_wire::LeaseId;

use crate::{
    kinds::GpuClass,
    values::{self, KernelArgument, Named},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Gpu {
    /// Run one kernel: copy its inputs to the device, launch it, wait, and copy its outputs back
    Run(GpuRun),
    /// End the session of a lease: its memory is wiped and freed
    Close(GpuClose),
}

/// A lease that is there, or one for this command.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("where").args(["lease", "vram"]).required(true)))]
pub(crate) struct GpuPlace {
    /// The lease
    #[arg(long, value_name = "LEASE", value_parser = values::lease_id)]
    pub(crate) lease: Option<LeaseId>,
    /// The memory of a new lease, which is given back in the end: bytes, or with K, M, G, T (1024
    /// each) or KB, MB, GB, TB (1000 each)
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub(crate) vram: Option<u64>,
    /// Term of the new lease in seconds, in which all has to be done; 60 if not given
    #[arg(long, value_name = "SECS", value_parser = values::secs, conflicts_with = "lease")]
    pub(crate) secs: Option<u32>,
    /// The GPU of the new lease, by name or id as `fabricctl inventory` shows them; any if not
    /// given
    #[arg(long, value_name = "NAME|ID", value_parser = values::resource,
          conflicts_with = "lease")]
    pub(crate) resource: Option<Named>,
    #[command(flatten)]
    pub(crate) class: GpuClass,
    /// Reach the session at this --local-socket of the node, which is this machine, and not over the
    /// network. With --lease the command needs no identity
    #[arg(long, value_name = "PATH")]
    pub(crate) local_socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct GpuRun {
    #[command(flatten)]
    pub(crate) place: GpuPlace,
    /// The module: PTX or a cubin for a GPU of NVIDIA, a code object for one of AMD
    #[arg(long, value_name = "FILE")]
    pub(crate) ptx: PathBuf,
    /// The kernel in the module
    #[arg(long, value_name = "NAME")]
    pub(crate) kernel: String,
    /// Blocks in the grid
    #[arg(long, value_name = "X[,Y[,Z]]", default_value = "1", value_parser = values::dimensions)]
    pub(crate) grid: [u32; 3],
    /// Threads in a block
    #[arg(long, value_name = "X[,Y[,Z]]", default_value = "1", value_parser = values::dimensions)]
    pub(crate) block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = values::number::<0, { u32::MAX }>)]
    pub(crate) shared_bytes: u32,
    /// An argument of the kernel; repeat the flag for each, in the order of the kernel. Numbers: u32:N, u64:N, i32:N, f32:X,
    /// f64:X. Pointers to memory: in:FILE, a copy of the file; out:SIZE:FILE, which becomes the file;
    /// inout:FILE:FILE2, a copy of the first, which becomes the second; zero:SIZE
    #[arg(long = "arg", value_name = "SPEC", value_parser = values::kernel_argument,
          allow_hyphen_values = true)]
    pub(crate) arguments: Vec<KernelArgument>,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").args(["id", "lease"]).required(true)))]
pub(crate) struct GpuClose {
    /// The lease
    #[arg(value_name = "LEASE", value_parser = values::lease_id)]
    pub(crate) id: Option<LeaseId>,
    /// As LEASE
    #[arg(long, value_name = "LEASE", value_parser = values::lease_id, hide = true)]
    pub(crate) lease: Option<LeaseId>,
    /// Reach the session at this --local-socket of the node, which is this machine, without an identity
    #[arg(long, value_name = "PATH")]
    pub(crate) local_socket: Option<PathBuf>,
}

impl GpuClose {
    pub(crate) fn lease(&self) -> Option<LeaseId> {
        self.id.or(self.lease)
    }
}

impl GpuPlace {
    /// The first flag of a new lease that is given with an existing lease, where it would change nothing.
    pub(crate) fn of_new_lease(&self) -> Option<&'static str> {
        self.lease?;
        let GpuClass {
            exclusivity,
            execution_mode,
            compute_slices,
            vendor,
        } = self.class;
        let flags = [
            exclusivity.map(|_| "--exclusivity"),
            execution_mode.map(|_| "--execution-mode"),
            compute_slices.map(|_| "--compute-slices"),
            vendor.map(|_| "--vendor"),
        ];
        flags.into_iter().flatten().next()
    }
}

impl Gpu {
    /// Whether the command uses the node's local socket only, without an identity.
    pub(crate) fn is_local(&self) -> bool {
        let (lease, socket) = match self {
            Self::Run(GpuRun { place, .. }) => (place.lease, &place.local_socket),
            Self::Close(close) => (close.lease(), &close.local_socket),
        };
        lease.is_some() && socket.is_some()
    }

    /// Whether the command requests a new lease.
    pub(crate) fn is_leasing(&self) -> bool {
        match self {
            Self::Run(GpuRun { place, .. }) => place.vram.is_some(),
            Self::Close(_) => false,
        }
    }
}
