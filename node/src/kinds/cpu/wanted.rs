//! The cores that the operator names, and the limits of their leases.

use anyhow::{Context, anyhow, bail};
use fabricbios_cpu::{CpuList, CpuStore, Group, Limits, Root, Topology, Wanted, list};
use fabricbios_kernfs::Tree;
use fabricbios_wire::Size;

use super::{
    CpuSettings,
    detect::{self, CpuFound},
};
use crate::{
    inventory::hardware::{Sources, Warnings},
    kinds::{memory::total_bytes, settings::KindSettings},
};

/// The machine's CPUs, and those of its cores that are offered.
pub(super) fn chosen(
    settings: &CpuSettings,
    wanted: &Wanted,
    root: &Root,
    sources: &Sources,
) -> anyhow::Result<(CpuFound, Vec<Group>)> {
    let mut warnings = Warnings::default();
    let Some(found) = detect::read(sources, &mut warnings) else {
        bail!("--cpus: {}", warnings.0.join("; "));
    };
    let groups = groups(settings, wanted, &found.topology, root)?;
    Ok((found, groups))
}

fn groups(
    settings: &CpuSettings,
    wanted: &Wanted,
    topology: &Topology,
    root: &Root,
) -> anyhow::Result<Vec<Group>> {
    let reserve = match &settings.cpu_reserve {
        Some(CpuList(cpus)) => cpus.clone(),
        None => Vec::new(),
    };
    let known = |cpu: &u32| topology.online.contains(cpu) || topology.offline.contains(cpu);
    let unknown: Vec<u32> = reserve.iter().copied().filter(|cpu| !known(cpu)).collect();
    if !unknown.is_empty() {
        bail!("--cpu-reserve: this machine has no CPUs {}", list(&unknown));
    }
    let held = CpuStore::held(root)?;
    let groups = topology.select(wanted, &reserve, &held);
    let groups = groups.map_err(|why| anyhow!("--cpus: {why}"))?;
    if groups.is_empty() {
        bail!(
            "--cpus: nothing is left to offer: the core of the boot CPU and those of --cpu-reserve are never leased, \
             and the others are not online or isolated"
        );
    }
    if let Wanted::These(CpuList(named)) = wanted {
        let is_offered = |cpu: &&u32| groups.iter().any(|group| group.cpus.contains(cpu));
        let left_out: Vec<u32> = named.iter().filter(|it| !is_offered(it)).copied().collect();
        if !left_out.is_empty() {
            tracing::info!(
                cpus = list(&left_out),
                "--cpus: not offered, as the core of the boot CPU and those of --cpu-reserve are never leased"
            );
        }
    }
    Ok(groups)
}

/// Limits of the processes of a lease, for each of its logical CPUs. By default all leases together leave the node the
/// memory share of the CPUs that are never leased. The kernel has 1,024 process numbers for each CPU, and at least
/// 32,768.
pub(super) fn limits(
    settings: &KindSettings,
    proc: &Tree,
    online: usize,
) -> anyhow::Result<Limits> {
    const PROCESSES: u32 = 1024;
    let memory_bytes = match settings.cpu.cpu_memory_max {
        Some(Size(bytes)) => bytes,
        None => {
            let total = total_bytes(&proc.read("meminfo")?).with_context(|| {
                let at = proc.root().join("meminfo");
                format!(
                    "{}: no `MemTotal: N kB`; --cpu-memory-max says how much a lease can have",
                    at.display()
                )
            })?;
            let arenas = settings.memory.arenas(&settings.shared);
            let bytes = arenas.iter().map(|it| it.bytes.0);
            let leased = bytes.fold(0, u64::saturating_add);
            total.saturating_sub(leased) / (online.max(1) as u64)
        }
    };
    Ok(Limits {
        memory_bytes,
        processes: settings.cpu.cpu_pids_max.unwrap_or(PROCESSES).into(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_limits_of_all_leases_leave_the_node_its_share() {
        let place = tempfile::tempdir().unwrap();
        let proc = Tree::new(place.path());
        let of =
            |settings: &KindSettings| limits(settings, &proc, 8).map_err(|it| format!("{it:#}"));
        fs::write(place.path().join("meminfo"), "MemTotal: lots").unwrap();
        let error = of(&KindSettings::default()).unwrap_err();
        assert!(error.contains("--cpu-memory-max"), "{error}");
        fs::write(place.path().join("meminfo"), "MemTotal: 4096 kB\n").unwrap();
        let defaults = of(&KindSettings::default()).unwrap();
        assert_eq!(
            (defaults.memory_bytes, defaults.processes),
            (512 << 10, 1024)
        );
        let mut settings = KindSettings::default();
        settings.memory.mem_bytes = Some(Size(1 << 20));
        settings.memory.mem_arena = vec!["more=1MiB".parse().unwrap()];
        settings.cpu.cpu_pids_max = Some(9);
        let given = of(&settings).unwrap();
        assert_eq!((given.memory_bytes, given.processes), (256 << 10, 9));
        settings.cpu.cpu_memory_max = Some(Size(7 << 20));
        let named = of(&settings);
        assert_eq!(named.unwrap().memory_bytes, 7 << 20);
    }
}
