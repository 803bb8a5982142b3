//! CPU cores on offer.

pub(super) mod detect;
mod end;
mod offer;
mod settings;
mod wanted;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, anyhow, bail};
use fabricbios_contract::Provider;
use fabricbios_cpu::{CONTROLLERS, CpuConfig, CpuPath, CpuStore, Root, default_root, list};
use fabricbios_lease::{AllocationMode, Durability, FenceScope, Offer};
use fabricbios_wire::{NodeId, ResourceType, Transport};
use nix::unistd::geteuid;

use crate::{
    inventory::hardware::{Sources, resource_id},
    kinds::{Continuity, Kind, Offered, OfferedResource, Opened, Opening},
    process::check::{Checking, Findings},
};

use end::{LAST_ROOT, end_all, end_elsewhere, end_in, record};
use offer::{OfferedCpus, cap, capacity, classes, default_refused};
use wanted::{chosen, limits};

pub use settings::{CpuIsolationPolicy, CpuSettings};

/// See [`crate::kinds::KINDS`].
pub(super) const KIND: Kind = Kind {
    resource_type: ResourceType::Cpu,
    conflicts: settings::conflicts,
    datagrams: |_| None,
    per_tenant_max: |settings| settings.cpu.cpu_per_tenant_max.map(u64::from),
    calls: Vec::new,
    open,
    check,
    detect: detect::detect,
    end: Some(end::end),
    #[cfg(test)]
    examples: &settings::tests::EXAMPLES,
};

/// Opens the CPUs of `--cpus`.
///
/// # Errors
/// The CPUs cannot be offered, or the host has no cgroup v2 with `cpuset` and `cpu`.
pub fn open(opening: &Opening<'_>) -> anyhow::Result<Opened> {
    let Opening {
        node_id, watchdog, ..
    } = *opening;
    let (shared, settings) = (&opening.settings.shared, &opening.settings.cpu);
    let profile = shared.profile.unwrap_or_default();
    let at = cgroup(settings, &node_id);
    let last_root = shared.state_dir().join(LAST_ROOT);
    end_elsewhere(&last_root, &at, end_all)?;
    let Some(wanted) = &settings.cpus else {
        tracing::info!("no CPU cores are offered for lease; --cpus LIST offers some");
        end_in(&at, end_all)?;
        return Ok(Opened::nothing());
    };
    let root = usable_root(&at)?;
    record(&last_root, &at)?;
    let sources = Sources::of_this_machine();
    let (found, groups) = chosen(settings, wanted, &root, &sources)?;
    let cpus: Vec<u32> = groups.iter().flat_map(|it| it.cpus.clone()).collect();
    let store = CpuStore::open(CpuConfig {
        root: root.clone(),
        groups,
        limits: limits(opening.settings, &sources.proc, found.topology.online.len())?,
        sys: sources.sys,
        proc: sources.proc.clone(),
    })
    .map_err(|error| anyhow!("--cpus: {error}"))?;
    let policy = settings.policy(profile);
    let classes = classes(profile, policy, &found.topology, store.not_exclusive());
    if let Some(why) = default_refused(&classes) {
        tracing::warn!("{why}");
    }
    let resource_id = resource_id(&node_id, ResourceType::Cpu, detect::NAME);
    let cap = cap(
        profile,
        &found,
        resource_id,
        store.core_groups().len(),
        &classes,
    );
    let offer = Offer {
        resource_id,
        capacity: capacity(&classes, cap.cores, cpus.len()),
        align: 1,
        transports: Vec::new(),
        durability: Durability::Boot,
        // A partition is exclusive whatever the cgroups beside it do. A best_effort lease that could not be cut keeps
        // its share in the table. Its processes stay in `shared`, and `shared` loses CPUs before an exclusive lease
        // receives them.
        fence_scope: FenceScope::Separate,
        cut_within: None,
        allocation_mode: AllocationMode::Cores {
            groups: store.core_groups(),
        },
        read_only: false,
        classes: Some(classes),
        rate: None,
        needs_vlan: None,
    };
    watchdog.ends(ResourceType::Cpu, at.clone());
    let guard = watchdog.guard(ResourceType::Cpu);
    let path = Arc::new(CpuPath::of(root, sources.proc, guard));
    let provider = Provider::new()
        .with_store(resource_id, Arc::new(store))
        .with_path("cgroup", &[Transport::Auto], path.clone());
    tracing::info!(cpus = list(&cpus), cgroup = %at.display(), "CPU cores are leased");
    let resource = OfferedResource {
        offer,
        described: Arc::new(OfferedCpus { cap }),
        // The cgroups record which lease has which CPUs, until a reboot.
        continuity: Continuity::Known,
    };
    Ok(Opened {
        offered: Some(Offered {
            watchdog: Some(watchdog.clone()),
            ..Offered::new(ResourceType::Cpu, vec![resource], Arc::new(provider))
        }),
        local: Some(path),
        ..Opened::nothing()
    })
}

/// See [`crate::kinds::Kind::check`].
fn check(checking: &Checking<'_>, found: &mut Findings) {
    let settings = &checking.settings.cpu;
    let profile = checking.settings.shared.profile.unwrap_or_default();
    let Some(wanted) = &settings.cpus else { return };
    let at = cgroup(settings, &checking.node_id);
    let Some(root) = found.lacks_if(usable_root(&at)) else {
        return;
    };
    found.lacks_if(controllers(&at));
    let sources = Sources::of_this_machine();
    let Some((cpus, _groups)) = found.refused_if(chosen(settings, wanted, &root, &sources)) else {
        return;
    };
    let limits = limits(checking.settings, &sources.proc, cpus.topology.online.len());
    found.refused_if(limits);
    if let Some(why) = default_refused(&classes(
        profile,
        settings.policy(profile),
        &cpus.topology,
        None,
    )) {
        found.warns(why);
    }
}

/// The root cgroup of the leases, which need not exist.
fn usable_root(at: &Path) -> anyhow::Result<Root> {
    if !geteuid().is_root() {
        bail!("--cpus: only root can lease CPU cores");
    }
    Root::at(at).map_err(|why| anyhow!("--cpus: {why}"))
}

/// Checks that the cgroup above `at` makes the controllers available that leases need.
fn controllers(at: &Path) -> anyhow::Result<()> {
    let list = at.with_file_name("cgroup.controllers");
    let there = fs::read_to_string(&list).with_context(|| format!("--cpus: {}", list.display()))?;
    let has = |wanted: &&str| there.split_whitespace().any(|it| it == *wanted);
    let missing: Vec<&str> = CONTROLLERS.into_iter().filter(|it| !has(it)).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => bail!("--cpus: {} lacks {}", list.display(), missing.join(", ")),
    }
}

fn cgroup(settings: &CpuSettings, node_id: &NodeId) -> PathBuf {
    let named = settings.cpu_cgroup.clone();
    named.unwrap_or_else(|| default_root(node_id))
}
