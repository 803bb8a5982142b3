//! Opens the arenas, and checks beforehand what opening them needs.

use std::sync::Arc;

use anyhow::{Context, bail};
use fabricbios_arena::{Arena, Source, check_file};
use fabricbios_cpu::CpuList;
use fabricbios_kernfs::Tree;
use fabricbios_rdma::numa_node;
use fabricbios_wire::{NodeId, ResourceId, ResourceType};

use super::{MemArena, MemorySettings, detect::available_bytes};
use crate::{
    inventory::hardware::resource_id,
    kinds::settings::KindSettings,
    process::check::{Checking, Findings},
};

/// An arena of the settings.
pub(super) struct OpenArena {
    pub(super) name: String,
    pub(super) resource_id: ResourceId,
    pub(super) arena: Arc<Arena>,
}

/// Opens every arena of the settings.
///
/// # Errors
/// The machine does not have that much memory or no such NUMA node, or a file cannot be opened.
pub(super) fn open(settings: &KindSettings, node_id: &NodeId) -> anyhow::Result<Vec<OpenArena>> {
    let KindSettings { shared, memory, .. } = settings;
    let all = memory.arenas(shared);
    if all.is_empty() {
        return Ok(Vec::new());
    }
    check_there_is(memory, &all)?;
    let device = memory.rdma_device(shared);
    let near = device.and_then(|device| numa_node(device.as_deref()));
    let opened = all.into_iter().map(|it| {
        check_node(&Tree::new("/sys"), &it)?;
        Ok(OpenArena {
            resource_id: resource_id(node_id, ResourceType::Mem, &it.name),
            arena: Arc::new(open_one(memory, &it, near)?),
            name: it.name,
        })
    });
    opened.collect()
}

/// `near`: the NUMA node of an arena that names none.
fn open_one(
    settings: &MemorySettings,
    arena: &MemArena,
    near: Option<u32>,
) -> anyhow::Result<Arena> {
    let (name, bytes) = (&arena.name, arena.bytes.0);
    let source = Source {
        file: arena.file.clone(),
        numa_node: arena.numa_node.or(near),
    };
    let file = source.file.as_deref().map(|it| it.display());
    tracing::info!(
        name,
        bytes,
        file = file.map(tracing::field::display),
        "preparing the memory on offer"
    );
    Arena::open(&source, bytes)
        .with_context(|| format!("{}: {bytes} bytes of memory", setting(settings, arena)))
}

/// The setting that defines an arena, for errors.
fn setting(settings: &MemorySettings, arena: &MemArena) -> String {
    match &arena.file {
        _ if settings.mem_arena.contains(arena) => format!("--mem-arena {}", arena.name),
        Some(path) => format!("--mem-file {}", path.display()),
        None => format!("--mem-bytes {}", arena.bytes.0),
    }
}

/// Refuses more memory than the machine has: otherwise the kernel kills the daemon when tenants use the memory.
fn check_there_is(settings: &MemorySettings, all: &[MemArena]) -> anyhow::Result<()> {
    let in_memory = || all.iter().filter(|it| it.file.is_none());
    let wanted = in_memory().fold(0, |sum: u64, it| sum.saturating_add(it.bytes.0));
    if wanted == 0 {
        return Ok(());
    }
    let meminfo = Tree::new("/proc").read("meminfo")?;
    match available_bytes(&meminfo) {
        Some(available) if wanted > available => {
            let from: Vec<_> = in_memory().map(|it| setting(settings, it)).collect();
            bail!(
                "{}: {wanted} bytes of memory are wanted, and this machine has {available} to spare (MemAvailable, and free \
                 huge pages); offer less",
                from.join(", ")
            )
        }
        _ => Ok(()),
    }
}

/// Refuses a NUMA node that has no memory.
fn check_node(sys: &Tree, arena: &MemArena) -> anyhow::Result<()> {
    let Some(node) = arena.numa_node else {
        return Ok(());
    };
    let about = || format!("--mem-arena {}: numa-node={node}", arena.name);
    let listed = sys.read("devices/system/node/has_memory");
    let listed = listed.with_context(about)?;
    let nodes: Option<CpuList> = listed.trim().parse().ok();
    match nodes.is_some_and(|CpuList(nodes)| nodes.contains(&node)) {
        true => Ok(()),
        false => bail!(
            "{}: the NUMA nodes with memory of this machine are {}; name one of them, or leave numa-node out",
            about(),
            listed.trim()
        ),
    }
}

/// True if no transport would lead to the memory. `devices`: the RDMA devices.
fn has_no_path(settings: &KindSettings, devices: &[String]) -> bool {
    let KindSettings { shared, memory, .. } = settings;
    let has_rdma = match memory.rdma_device(shared) {
        Some(None) => !devices.is_empty(),
        Some(Some(_)) => true,
        None => false,
    };
    !has_rdma && memory.fbmu_listen(shared).is_none()
}

pub(super) const NO_PATH: &str = "memory is not leasable on this node: no transport leads to it";

/// See [`crate::kinds::Kind::check`].
pub(super) fn check(checking: &Checking<'_>, found: &mut Findings) {
    let KindSettings { shared, memory, .. } = checking.settings;
    let all = memory.arenas(shared);
    if all.is_empty() {
        return;
    }
    for arena in &all {
        if let Some(path) = &arena.file {
            let file = check_file(path).with_context(|| path.display().to_string());
            found.refused_if(file.with_context(|| setting(memory, arena)));
        }
        found.lacks_if(check_node(&Tree::new("/sys"), arena));
    }
    if !checking.has_daemon {
        found.lacks_if(check_there_is(memory, &all));
    }
    let devices = Tree::new("/sys/class")
        .list("infiniband")
        .unwrap_or_default();
    if has_no_path(checking.settings, &devices) {
        found.warns(NO_PATH);
    }
    match memory.rdma_device(shared) {
        Some(Some(name)) if !devices.contains(&name) => found.lacks(format_args!(
            "--rdma-device {name}: this machine has no such RDMA device; it has {}",
            match devices.is_empty() {
                true => "none".to_owned(),
                false => devices.join(", "),
            }
        )),
        Some(None) if devices.is_empty() => {
            found.warns("no memory is leased over RDMA: this machine has no RDMA device");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use fabricbios_wire::Size;

    use super::*;
    use crate::kinds::settings::{SharedSettings, UdpListen};

    #[test]
    fn a_numa_node_without_memory_is_refused_with_those_that_have_some() {
        let sys = tempfile::tempdir().unwrap();
        let nodes = sys.path().join("devices/system/node");
        fs::create_dir_all(&nodes).unwrap();
        fs::write(nodes.join("has_memory"), "0,2-3\n").unwrap();
        let tree = Tree::new(sys.path());
        let on =
            |node: u32| check_node(&tree, &format!("a=4096,numa-node={node}").parse().unwrap());
        for node in [0, 2, 3] {
            on(node).unwrap();
        }
        for node in [1, 4, u32::MAX] {
            let error = on(node).unwrap_err().to_string();
            let words = format!("--mem-arena a: numa-node={node}: ");
            assert!(
                error.starts_with(&words) && error.contains("0,2-3"),
                "{error}"
            );
        }
        fs::remove_file(nodes.join("has_memory")).unwrap();
        let error = format!("{:#}", on(0).unwrap_err());
        assert!(
            error.contains("--mem-arena a") && error.contains("has_memory"),
            "{error}"
        );
    }

    #[test]
    fn memory_without_a_path_to_it_is_found_before_the_start() {
        let devices = ["mlx5_0".to_owned()];
        let with = |fbmu: UdpListen, rdma: Option<&str>| KindSettings {
            memory: MemorySettings {
                fbmu_listen: Some(fbmu),
                rdma_device: rdma.map(str::to_owned),
                ..MemorySettings::default()
            },
            ..KindSettings::default()
        };
        let off = |rdma| with(UdpListen::Off, rdma);
        assert!(has_no_path(&off(None), &[]));
        assert!(has_no_path(&off(Some("none")), &devices));
        assert!(!has_no_path(&off(None), &devices));
        let on = UdpListen::At(([127, 0, 0, 1], 0).into());
        assert!(!has_no_path(&with(on, None), &[]));
    }

    #[test]
    fn arenas_without_a_file_are_counted_together() {
        let shared = SharedSettings::default();
        let of = |mem_arena: &[&str]| MemorySettings {
            mem_bytes: Some(Size(1 << 49)),
            mem_arena: mem_arena.iter().map(|it| it.parse().unwrap()).collect(),
            ..MemorySettings::default()
        };
        let settings = of(&["a=512TiB", "b=4096", "c=1024TiB,file=/c"]);
        let error = check_there_is(&settings, &settings.arenas(&shared)).unwrap_err();
        let all = format!(
            "--mem-bytes {0}, --mem-arena a, --mem-arena b: {1} bytes",
            1_u64 << 49,
            (1_u64 << 50) + 4096
        );
        assert!(error.to_string().starts_with(&all), "{error}");
        let in_files = MemorySettings {
            mem_bytes: None,
            mem_arena: vec!["c=1024TiB,file=/c".parse().unwrap()],
            ..MemorySettings::default()
        };
        check_there_is(&in_files, &in_files.arenas(&shared)).unwrap();
    }
}
