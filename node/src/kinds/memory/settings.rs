//! The operator's settings of memory.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, ValueEnum};
use fabricbios_wire::Size;

use super::mem_arena::{MemArena, pages};
use crate::kinds::settings::{
    KindSettings, Named, SharedSettings, UdpListen, has_double, real_path, values,
};

/// Bytes of a lease of the memory of the bare-metal profile.
pub(super) const SLOT_BYTES: u64 = 8_192;

/// Memory of the bare-metal profile (000, MEM): 8 slots of 8 KiB.
const STATIC_ARENA_BYTES: u64 = 8 * SLOT_BYTES;

/// The port of FBMU (published facts §3).
const FBMU_PORT: u16 = 5702;

/// The settings of memory.
#[derive(Args, Clone, Debug, Default)]
pub struct MemorySettings {
    /// Memory to offer for lease: the arena mem0, such as 256MiB; whole pages of 4096 bytes
    /// [default: none].
    #[arg(long, value_name = "SIZE", value_parser = pages)]
    pub mem_bytes: Option<Size>,

    /// File that holds the memory on offer, such as one in tmpfs or hugetlbfs. Leases over UDP then
    /// outlive a restart of the daemon; without it memory ends with the process.
    #[arg(long, value_name = "PATH")]
    pub mem_file: Option<PathBuf>,

    /// More memory to offer for lease, as a resource of its own: NAME=SIZE, then file=PATH for a file that holds it (a path
    /// without commas), and numa-node=N for the node from which it is taken, if it has free memory, such as
    /// near=64GiB,file=/dev/shm/near,numa-node=1. Without numa-node it is near the RDMA device [repeatable; default: none].
    #[arg(long, value_name = "NAME=SIZE[,file=PATH][,numa-node=N]")]
    pub mem_arena: Vec<MemArena>,

    /// Address of the data plane over UDP, or `none` [default: the IP of --listen, port 5702].
    #[arg(long, value_name = "IP:PORT")]
    pub fbmu_listen: Option<UdpListen>,

    /// RDMA device that serves memory leases: a name, `auto` or `none` [default: auto].
    #[arg(long, value_name = "NAME", value_parser = values::name("mlx5_0, auto or none"))]
    pub rdma_device: Option<String>,

    /// How RDMA access is given out [default: auto].
    #[arg(long, value_enum)]
    pub rdma_strategy: Option<RdmaStrategy>,

    /// Most memory that the leases of one tenant may hold [default: all that is on offer].
    #[arg(long, value_name = "SIZE", value_parser = values::size(values::ANY, "64GiB"))]
    pub mem_per_tenant_max: Option<Size>,
}

/// How RDMA access is given out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RdmaStrategy {
    /// Windows where the device has them, else regions.
    #[default]
    Auto,
    /// A type 2B memory window per queue pair, all over one registered arena.
    Window,
    /// A protection domain and a memory region per lease, for devices without windows.
    Region,
}

impl MemorySettings {
    /// The listen address of FBMU; `None`: not offered.
    #[must_use]
    pub fn fbmu_listen(&self, shared: &SharedSettings) -> Option<SocketAddr> {
        shared.udp_listen(self.fbmu_listen, FBMU_PORT)
    }

    /// All memory on offer; the arena of `--mem-bytes` comes first.
    #[must_use]
    pub fn arenas(&self, shared: &SharedSettings) -> Vec<MemArena> {
        let bytes = match shared.is_bare_metal() {
            true => Some(Size(STATIC_ARENA_BYTES)),
            false => self.mem_bytes,
        };
        let mem0 = bytes.map(|bytes| MemArena {
            name: MemArena::MEM0.into(),
            bytes,
            file: self.mem_file.clone(),
            numa_node: None,
        });
        mem0.into_iter().chain(self.mem_arena.clone()).collect()
    }

    /// The RDMA device to use: `None` for no device, `Some(None)` for the first that works.
    #[must_use]
    pub fn rdma_device(&self, shared: &SharedSettings) -> Option<Option<String>> {
        match self.rdma_device.as_deref() {
            _ if shared.is_bare_metal() => None,
            Some("none") => None,
            None | Some("auto") => Some(None),
            Some(name) => Some(Some(name.to_owned())),
        }
    }
}

/// See [`crate::kinds::Kind::datagrams`].
pub(super) fn datagrams(settings: &KindSettings) -> Option<(&'static str, SocketAddr)> {
    let KindSettings { shared, memory, .. } = settings;
    let address = memory.fbmu_listen(shared);
    Some(("fbmu-listen", address?)).filter(|_| !memory.arenas(shared).is_empty())
}

/// See [`crate::kinds::Kind::conflicts`].
pub(super) fn conflicts(settings: &KindSettings, named: &Named<'_>) -> Result<(), String> {
    let (shared, it) = (&settings.shared, &settings.memory);
    if shared.is_bare_metal() {
        static_arena(it, named)?;
    }
    named.needs(
        &[("mem-file", it.mem_file.is_some())],
        it.mem_bytes.is_some(),
        "--mem-bytes SIZE",
        "no memory is leased of it",
    )?;
    let names_device = |it: &str| !matches!(it, "auto" | "none");
    let rdma_device = it.rdma_device.as_deref().is_some_and(names_device);
    let all = it.arenas(shared);
    named.needs(
        &[
            ("mem-per-tenant-max", it.mem_per_tenant_max.is_some()),
            ("rdma-device", rdma_device),
            ("rdma-strategy", it.rdma_strategy.is_some()),
        ],
        !all.is_empty(),
        "--mem-bytes SIZE or --mem-arena NAME=SIZE",
        "no memory is leased",
    )?;
    arenas(it, &all, named)
}

/// Checks all memory on offer together.
fn arenas(settings: &MemorySettings, all: &[MemArena], names: &Named<'_>) -> Result<(), String> {
    let named = |is_mem0: bool| names.of(if is_mem0 { "mem-bytes" } else { "mem-arena" });
    let of_setting = settings.mem_arena.iter();
    if settings.mem_bytes.is_some() && of_setting.clone().any(|it| it.name == MemArena::MEM0) {
        return Err(format!(
            "{} {} with {}: both are the arena {1}; give one of them another name with {0}, or leave one out",
            named(false),
            MemArena::MEM0,
            named(true),
        ));
    }
    if has_double(of_setting.map(|it| &it.name)) {
        return Err(format!("{} names the same arena twice", named(false)));
    }
    if has_double(
        all.iter()
            .filter_map(|it| Some(real_path(it.file.as_ref()?))),
    ) {
        return Err(format!(
            "{} names the same file twice, or that of {}: every arena needs a file of its own",
            named(false),
            names.of("mem-file"),
        ));
    }
    let has_no_path = settings.rdma_device.as_deref() == Some("none")
        && settings.fbmu_listen == Some(UdpListen::Off);
    let is_given = settings.mem_bytes.is_some() || !settings.mem_arena.is_empty();
    match is_given && has_no_path {
        true => Err(format!(
            "{} with {} none and {} none: no transport leads to the memory; leave one of the two out",
            named(settings.mem_bytes.is_some()),
            names.of("rdma-device"),
            names.of("fbmu-listen"),
        )),
        false => Ok(()),
    }
}

/// Refuses settings that would change the memory of the bare-metal profile.
fn static_arena(settings: &MemorySettings, named: &Named<'_>) -> Result<(), String> {
    let is_other = |it: &Size| it.0 != STATIC_ARENA_BYTES;
    let is_device = |it: &&str| !matches!(*it, "auto" | "none");
    let (name, value) = if let Some(Size(bytes)) = settings.mem_bytes.filter(is_other) {
        ("mem-bytes", bytes.to_string())
    } else if let Some(path) = &settings.mem_file {
        ("mem-file", path.display().to_string())
    } else if let Some(arena) = settings.mem_arena.first() {
        ("mem-arena", arena.name.clone())
    } else if let Some(name) = settings.rdma_device.as_deref().filter(is_device) {
        ("rdma-device", name.to_owned())
    } else {
        return Ok(());
    };
    Err(format!(
        "{} {value} with {} bare-metal: its memory is a static arena of {STATIC_ARENA_BYTES} bytes over UDP; \
         leave it out, or leave out the profile",
        named.of(name),
        named.of("profile"),
    ))
}

#[cfg(test)]
pub(super) mod tests;
