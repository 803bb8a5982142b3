//! Checks for settings that contradict each other, whatever their source.

use std::{
    collections::HashSet,
    hash::Hash,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use fabricbios_wire::Size;

use super::{STATIC_ARENA_BYTES, Settings};
use crate::kinds::{memory::MemArena, net::rights, udp_listen::UdpListen};

/// Checks the settings. `Err` names the setting and its source.
pub(super) fn check(settings: &Settings) -> Result<(), String> {
    if settings.is_bare_metal() {
        static_arena(settings)?;
    }
    without_effect(settings)?;
    rights::check(settings)
        .map_err(|(setting, why)| format!("{} {why}", settings.named(setting)))?;
    let twice = |name, what| {
        Err(format!(
            "{} names the same {what} twice",
            settings.named(name)
        ))
    };
    if has_double(settings.block_pool.iter().map(|path| real_path(path))) {
        return twice("block-pool", "path");
    }
    let offered: HashSet<_> = settings.block_pool.iter().map(|it| real_path(it)).collect();
    let mut without = settings.without_pool.iter();
    if let Some(path) = without.find(|it| offered.contains(&real_path(it))) {
        return Err(format!(
            "--without-pool {0} with {1} {0}: leave one of the two out",
            path.display(),
            settings.named("block-pool")
        ));
    }
    if has_double(settings.sriov_pf.iter().map(|it| &it.interface)) {
        return twice("sriov-pf", "interface");
    }
    if has_double(settings.macvlan_parent.iter().map(|it| &it.interface)) {
        return twice("macvlan-parent", "interface");
    }
    if has_double(settings.advertise_vendor.iter().map(|it| &it.name)) {
        return twice("advertise-vendor", "resource");
    }
    addresses(settings)?;
    arenas(settings)
}

/// Checks that every UDP socket has its own address.
fn addresses(settings: &Settings) -> Result<(), String> {
    let memory = settings
        .fbmu_listen()
        .filter(|_| !settings.arenas().is_empty());
    let blocks = settings
        .fbbu_listen()
        .filter(|_| !settings.block_pool.is_empty());
    let all = [
        ("listen", Some(settings.listen())),
        ("fbmu-listen", memory),
        ("fbbu-listen", blocks),
    ];
    let used = all.into_iter().filter_map(|(name, at)| Some((name, at?)));
    let used: Vec<_> = used.collect();
    for (index, (name, at)) in used.iter().enumerate() {
        for (other, its) in used.iter().skip(index + 1) {
            if clash(*at, *its) {
                return Err(format!(
                    "{} {at} and {} {its} are the same address: give one of them another port",
                    settings.named(name),
                    settings.named(other),
                ));
            }
        }
    }
    Ok(())
}

/// True if two sockets cannot have both addresses. `[::]` stands for every address, of IPv4 too.
fn clash(one: SocketAddr, other: SocketAddr) -> bool {
    let covers =
        |wide: IpAddr, ip: IpAddr| wide.is_unspecified() && (wide.is_ipv6() || ip.is_ipv4());
    let (ip, its) = (one.ip(), other.ip());
    let same_ip = ip == its || covers(ip, its) || covers(its, ip);
    same_ip && one.port() == other.port() && one.port() != 0
}

/// Checks all memory on offer together.
fn arenas(settings: &Settings) -> Result<(), String> {
    let all = settings.arenas();
    let named = |is_mem0: bool| settings.named(if is_mem0 { "mem-bytes" } else { "mem-arena" });
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
            settings.named("mem-file"),
        ));
    }
    let has_no_path = settings.rdma_device.as_deref() == Some("none")
        && settings.fbmu_listen == Some(UdpListen::Off);
    let is_given = settings.mem_bytes.is_some() || !settings.mem_arena.is_empty();
    match is_given && has_no_path {
        true => Err(format!(
            "{} with {} none and {} none: no transport leads to the memory; leave one of the two out",
            named(settings.mem_bytes.is_some()),
            settings.named("rdma-device"),
            settings.named("fbmu-listen"),
        )),
        false => Ok(()),
    }
}

/// Refuses a setting that has no effect without another.
fn without_effect(settings: &Settings) -> Result<(), String> {
    let it = settings;
    let names_device = |it: &str| !matches!(it, "auto" | "none");
    let file: &[(&str, bool)] = &[("mem-file", it.mem_file.is_some())];
    let memory: &[(&str, bool)] = &[
        ("mem-per-tenant-max", it.mem_per_tenant_max.is_some()),
        (
            "rdma-device",
            it.rdma_device.as_deref().is_some_and(names_device),
        ),
        ("rdma-strategy", it.rdma_strategy.is_some()),
    ];
    let blocks: &[(&str, bool)] = &[
        ("nvmet", !it.nvmet.is_empty()),
        ("nvme-host", !it.nvme_host.is_empty()),
        ("fbbu-half-sent-max", it.fbbu_half_sent_max.is_some()),
        ("block-per-tenant-max", it.block_per_tenant_max.is_some()),
    ];
    let cpus: &[(&str, bool)] = &[
        ("cpu-reserve", it.cpu_reserve.is_some()),
        ("cpu-cgroup", it.cpu_cgroup.is_some()),
        ("cpu-memory-max", it.cpu_memory_max.is_some()),
        ("cpu-pids-max", it.cpu_pids_max.is_some()),
        ("cpu-isolation-policy", it.cpu_isolation_policy.is_some()),
        ("cpu-per-tenant-max", it.cpu_per_tenant_max.is_some()),
    ];
    let gpus: &[(&str, bool)] = &[
        ("gpu-share-mode", it.gpu_share_mode.is_some()),
        ("gpu-worker-memory-max", it.gpu_worker_memory_max.is_some()),
        ("gpu-per-tenant-max", it.gpu_per_tenant_max.is_some()),
    ];
    let functions: &[(&str, bool)] = &[
        ("net-vlan", !it.net_vlan.is_empty()),
        ("net-mac", !it.net_mac.is_empty()),
        ("net-per-tenant-max", it.net_per_tenant_max.is_some()),
    ];
    let has_functions = !it.macvlan_parent.is_empty() || !it.sriov_pf.is_empty();
    let devices: &[(&str, bool)] = &[("cdi-dir", it.cdi_dir.is_some())];
    let datagrams: &[(&str, bool)] = &[("fbmu-ops-max", it.fbmu_ops_max.is_some())];
    let users: &[(&str, bool)] = &[("tenant-uid", !it.tenant_uid.is_empty())];
    let has_memory = !it.arenas().is_empty();
    // Settings that have no effect without another one: whether the other is given, its name, and what is missing
    // without it.
    let needs = [
        (
            file,
            it.mem_bytes.is_some(),
            "--mem-bytes SIZE",
            "no memory is leased of it",
        ),
        (
            memory,
            has_memory,
            "--mem-bytes SIZE or --mem-arena NAME=SIZE",
            "no memory is leased",
        ),
        (
            blocks,
            !it.block_pool.is_empty(),
            "--block-pool PATH",
            "there is nothing to serve",
        ),
        (cpus, it.cpus.is_some(), "--cpus LIST", "no CPU is leased"),
        (gpus, it.gpus.is_some(), "--gpus LIST", "no GPU is leased"),
        (
            functions,
            has_functions,
            "--macvlan-parent IFNAME or --sriov-pf IFNAME",
            "no network function is leased",
        ),
        (
            devices,
            it.gpus.is_some() || !it.sriov_pf.is_empty(),
            "--gpus LIST or --sriov-pf IFNAME",
            "no lease has a device for a container",
        ),
        (
            datagrams,
            has_memory || !it.block_pool.is_empty(),
            "--mem-bytes SIZE, --mem-arena NAME=SIZE or --block-pool PATH",
            "nothing is leased over UDP",
        ),
        (
            users,
            it.local_socket.is_some(),
            "--local-socket PATH",
            "users have no socket at which to enter leases",
        ),
    ];
    for (given, has_effect, needed, why) in needs {
        let given = given.iter().find(|(_, is_given)| *is_given);
        if let Some((name, _)) = given.filter(|_| !has_effect) {
            return Err(format!(
                "{} without {needed}: {why}; give that too, or leave this out",
                settings.named(name)
            ));
        }
    }
    Ok(())
}

/// Refuses settings that would change the memory of the bare-metal profile.
fn static_arena(settings: &Settings) -> Result<(), String> {
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
        settings.named(name),
        settings.named("profile"),
    ))
}

fn has_double<T: Eq + Hash>(mut all: impl Iterator<Item = T>) -> bool {
    let mut seen = HashSet::new();
    !all.all(|one| seen.insert(one))
}

/// The path with links resolved; if the path does not exist, as written.
fn real_path(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
