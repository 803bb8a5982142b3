//! The operator's settings of memory.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, ValueEnum};
use fabricbios_wire::Size;

use super::mem_arena::{MemArena, pages};
use crate::kinds::settings::{
    Conflicts, KindSettings, SharedSettings, UdpListen, has_double, real_path, values,
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

    /// Address of the RDMA device at which callers of rdma_cm join leases of memory with an attach code
    /// [default: none].
    #[arg(long, value_name = "IP:PORT", value_parser = values::listen_at)]
    pub rdma_cm_listen: Option<SocketAddr>,

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
pub(super) fn conflicts(settings: &KindSettings, conflicts: &mut Conflicts<'_>) {
    let (shared, it) = (&settings.shared, &settings.memory);
    if shared.is_bare_metal()
        && let Some((name, value)) = not_static(it)
    {
        let one = format!("{} {value}", conflicts.named(name));
        let other = format!("{} bare-metal", conflicts.named("profile"));
        let why = format_args!(
            "its memory is a static arena of {STATIC_ARENA_BYTES} bytes over UDP; leave it out, or leave out the profile"
        );
        return conflicts.both(one, other, why);
    }
    conflicts.needs(
        &[("mem-file", it.mem_file.is_some())],
        it.mem_bytes.is_some(),
        "--mem-bytes SIZE",
        "no memory is leased of it",
    );
    let rdma_device = it.rdma_device.as_deref().is_some_and(is_device);
    let all = it.arenas(shared);
    conflicts.needs(
        &[
            ("mem-per-tenant-max", it.mem_per_tenant_max.is_some()),
            ("rdma-device", rdma_device),
            ("rdma-strategy", it.rdma_strategy.is_some()),
            ("rdma-cm-listen", it.rdma_cm_listen.is_some()),
        ],
        !all.is_empty(),
        "--mem-bytes SIZE or --mem-arena NAME=SIZE",
        "no memory is leased",
    );
    if let Some(at) = it.rdma_cm_listen
        && it.rdma_device.as_deref() == Some("none")
    {
        let [listen, rdma] = ["rdma-cm-listen", "rdma-device"].map(|it| conflicts.named(it));
        conflicts.both(
            format!("{listen} {at}"),
            format!("{rdma} none"),
            "nothing is leased that callers could join; leave one of the two out",
        );
    }
    let of_arenas = it.mem_arena.iter().filter_map(|it| it.file.as_deref());
    conflicts.in_state_dir(
        "mem-file",
        it.mem_file.as_deref().into_iter(),
        shared.state_dir(),
    );
    conflicts.in_state_dir("mem-arena", of_arenas, shared.state_dir());
    arenas(it, &all, conflicts);
}

/// Checks all memory on offer together.
fn arenas(settings: &MemorySettings, all: &[MemArena], conflicts: &mut Conflicts<'_>) {
    let [mem_bytes, mem_arena] = ["mem-bytes", "mem-arena"].map(|it| conflicts.named(it));
    let names = settings.mem_arena.iter().map(|it| &*it.name);
    conflicts.once("mem-arena", "arena", names.clone());
    let mem0 = MemArena::MEM0;
    if settings.mem_bytes.is_some() && names.clone().any(|it| it == mem0) {
        let why = format_args!(
            "both are the arena {mem0}; give one of them another name with {mem_arena}, or leave one out"
        );
        conflicts.both(format!("{mem_arena} {mem0}"), mem_bytes.clone(), why);
    }
    let files = all.iter().filter_map(|it| it.file.as_ref());
    if has_double(files.map(|it| real_path(it))) {
        let mem_file = conflicts.named("mem-file");
        let why = format_args!(
            "names the same file twice, or that of {mem_file}: every arena needs a file of its own"
        );
        conflicts.values("mem-arena", why);
    }
    let has_no_path = settings.rdma_device.as_deref() == Some("none")
        && settings.fbmu_listen == Some(UdpListen::Off);
    let given = match &settings.mem_bytes {
        Some(_) => Some(mem_bytes),
        None => (!settings.mem_arena.is_empty()).then_some(mem_arena),
    };
    if let Some(given) = given.filter(|_| has_no_path) {
        let [rdma, udp] = ["rdma-device", "fbmu-listen"].map(|it| conflicts.named(it));
        conflicts.both(
            given,
            format!("{rdma} none and {udp} none"),
            "no transport leads to the memory; leave one of the two out",
        );
    }
}

/// A setting that would change the memory of the bare-metal profile, and its value.
fn not_static(settings: &MemorySettings) -> Option<(&'static str, String)> {
    let is_other = |it: &Size| it.0 != STATIC_ARENA_BYTES;
    if let Some(Size(bytes)) = settings.mem_bytes.filter(is_other) {
        Some(("mem-bytes", bytes.to_string()))
    } else if let Some(path) = &settings.mem_file {
        Some(("mem-file", path.display().to_string()))
    } else if let Some(arena) = settings.mem_arena.first() {
        Some(("mem-arena", arena.name.clone()))
    } else if let Some(at) = settings.rdma_cm_listen {
        Some(("rdma-cm-listen", at.to_string()))
    } else {
        let device = settings.rdma_device.clone();
        Some(("rdma-device", device.filter(|it| is_device(it))?))
    }
}

/// True if this value of `--rdma-device` names a device.
fn is_device(name: &str) -> bool {
    !matches!(name, "auto" | "none")
}

#[cfg(test)]
pub(super) mod tests;
