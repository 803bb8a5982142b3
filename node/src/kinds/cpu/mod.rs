//! CPU cores on offer.

pub(super) mod detect;
mod settings;

use std::{
    ffi::{OsStr, OsString},
    fs::{self, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, anyhow, bail};
use fabricbios_contract::{EndByName, Provider};
use fabricbios_cpu::{
    CONTROLLERS, CpuConfig, CpuEnd, CpuList, CpuPath, CpuStore, Group, Limits, Root, Topology,
    Wanted, default_root, list,
};
use fabricbios_kernfs::Tree;
use fabricbios_lease::{
    AllocationMode, ClassOffer, ClassState, Durability, FenceScope, Offer, OfferedClass,
};
use fabricbios_wire::{
    CpuCap, CpuIsolationClass, ResourceId, ResourceInventory, ResourceType, Size, Transport,
    cpu_flags,
};
use nix::unistd::geteuid;

use crate::{
    inventory::{
        Described, ResourceStatus, describe,
        detection::Found,
        hardware::{Sources, Warnings, resource_id},
    },
    kinds::{
        Continuity, Ending, Kind, Offered, Opened, Opening,
        memory::total_bytes,
        settings::{KindSettings, Profile},
    },
    process::check::{Checking, Findings},
};

use detect::{CpuFound, NAME as CPU_NAME};

pub use settings::{CpuIsolationPolicy, CpuSettings};

/// See [`crate::kinds::KINDS`].
pub(super) const KIND: Kind = Kind {
    resource_type: ResourceType::Cpu,
    conflicts: settings::conflicts,
    datagrams: |_| None,
    calls: Vec::new,
    open,
    check,
    detect: detect::detect,
    end: Some(end),
    #[cfg(test)]
    examples: &settings::tests::EXAMPLES,
};

/// The file in the state directory with the path of the root cgroup that the last run with `--cpus` used.
const LAST_ROOT: &str = "cpu-cgroup";

/// Opens the CPUs of `--cpus`.
///
/// # Errors
/// The CPUs cannot be offered, or the host has no cgroup v2 with `cpuset` and `cpu`.
pub fn open(opening: &Opening<'_>) -> anyhow::Result<Opened> {
    let Opening {
        node_id, watchdog, ..
    } = *opening;
    let KindSettings {
        shared,
        cpu: settings,
        ..
    } = opening.settings;
    let profile = shared.profile.unwrap_or_default();
    let at = cgroup(settings, &node_id);
    let last_root = shared.state_dir().join(LAST_ROOT);
    end_elsewhere(&last_root, &at, end_all)?;
    let Some(wanted) = &settings.cpus else {
        tracing::info!("no CPU cores are offered for lease; --cpus LIST offers some");
        if let Err(error) = end_all(&at) {
            tracing::error!(cgroup = %at.display(), %error, "something of earlier leases stays");
        }
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
    let resource_id = resource_id(&node_id, ResourceType::Cpu, CPU_NAME);
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
    let described = Arc::new(OfferedCpus { cap });
    let mut offered = Offered::new(ResourceType::Cpu, offer, described, Arc::new(provider));
    for resource in &mut offered.resources {
        // The cgroups record which lease has which CPUs, until a reboot.
        resource.continuity = Continuity::Known;
    }
    Ok(Opened {
        offered: Some(Offered {
            per_tenant_max: settings.cpu_per_tenant_max.map(u64::from),
            watchdog: Some(watchdog.clone()),
            ..offered
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

/// See [`crate::kinds::Kind::end`].
fn end(cgroup: &OsStr, _: &Ending<'_>) -> anyhow::Result<Box<dyn EndByName>> {
    let end = CpuEnd::at(Path::new(cgroup)).map_err(anyhow::Error::msg)?;
    Ok(Box::new(end))
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

/// The machine's CPUs, and those of its cores that are offered.
fn chosen(
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

/// Why requests that name no class are refused.
fn default_refused(classes: &ClassOffer) -> Option<String> {
    let mut offered = classes.classes.iter();
    match &offered.find(|it| it.class == classes.default)?.state {
        ClassState::Refused(why) => Some(format!(
            "--cpu-isolation-policy: requests that name no class are refused: {why}"
        )),
        _ => None,
    }
}

fn cgroup(settings: &CpuSettings, node_id: &fabricbios_wire::NodeId) -> PathBuf {
    let named = settings.cpu_cgroup.clone();
    named.unwrap_or_else(|| default_root(node_id))
}

/// Ends the leases in the root cgroup that the last run with `--cpus` used, unless that root cgroup is `at`.
fn end_elsewhere(
    last_root: &Path,
    at: &Path,
    end_all: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let last = match fs::read(last_root) {
        Ok(last) => PathBuf::from(OsString::from_vec(last)),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| last_root.display().to_string()),
    };
    if last == at {
        return Ok(());
    }
    end_all(&last).with_context(|| {
        let last = last.display();
        format!(
            "--cpu-cgroup: the last run had its leases of CPU cores in {last}, and they cannot be ended there; start \
             with --cpu-cgroup {last}, or end what is named below and remove {last}"
        )
    })
}

/// Stores the path of the root cgroup for the next start. The cgroups do not outlive the machine, so the file need not
/// be durable.
fn record(last_root: &Path, at: &Path) -> anyhow::Result<()> {
    let new = last_root.with_extension("new");
    let open = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new);
    open.and_then(|mut file| file.write_all(at.as_os_str().as_bytes()))
        .and_then(|()| fs::rename(&new, last_root))
        .with_context(|| last_root.display().to_string())
}

/// Ends the leases that an earlier run with `--cpus` has left in this root cgroup.
fn end_all(at: &Path) -> anyhow::Result<()> {
    if !at.exists() {
        return Ok(());
    }
    let root = Root::at(at).map_err(|why| anyhow!("{why}"))?;
    CpuStore::end_all(&root, Tree::new("/sys"), Tree::new("/proc"))?;
    Ok(())
}

/// Limits of the processes of a lease, for each of its logical CPUs. By default all leases together leave the node the
/// memory share of the CPUs that are never leased. The kernel has 1,024 process numbers for each CPU, and at least
/// 32,768.
fn limits(settings: &KindSettings, proc: &Tree, online: usize) -> anyhow::Result<Limits> {
    const PROCESSES: u32 = 1024;
    let KindSettings {
        shared,
        memory,
        cpu,
        ..
    } = settings;
    let memory_bytes = match cpu.cpu_memory_max {
        Some(Size(bytes)) => bytes,
        None => {
            let total = total_bytes(&proc.read("meminfo")?).with_context(|| {
                let at = proc.root().join("meminfo");
                format!(
                    "{}: no `MemTotal: N kB`; --cpu-memory-max says how much a lease can have",
                    at.display()
                )
            })?;
            let arenas = memory.arenas(shared).into_iter().map(|it| it.bytes.0);
            let leased = arenas.fold(0, u64::saturating_add);
            total.saturating_sub(leased) / (online.max(1) as u64)
        }
    };
    Ok(Limits {
        memory_bytes,
        processes: cpu.cpu_pids_max.unwrap_or(PROCESSES).into(),
    })
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

/// The classes, and why some are refused. No class is weakened: incomplete topology leaves only best_effort.
fn classes(
    profile: Profile,
    default: CpuIsolationClass,
    topology: &Topology,
    not_exclusive: Option<&str>,
) -> ClassOffer {
    let whole = match (profile, topology.is_complete(), not_exclusive) {
        (Profile::BareMetal, ..) => {
            Some("a bare-metal node has no runtime that enforces it".into())
        }
        (_, false, _) => Some(format!(
            "the CPU topology is incomplete: {}",
            topology.faults.join("; ")
        )),
        (.., Some(why)) => Some(why.to_owned()),
        _ => None,
    };
    let strict = whole.clone().or_else(|| {
        let smt = topology.groups.iter().find(|group| group.cpus.len() > 1)?;
        Some(format!(
            "an online core has more than one online thread (CPUs {}); switch SMT off, and start the node again",
            list(&smt.cpus)
        ))
    });
    let class = |class: CpuIsolationClass, refused: Option<String>| OfferedClass {
        class: class as u8,
        state: match (class, refused) {
            (_, Some(why)) => ClassState::Refused(why),
            (CpuIsolationClass::BestEffort, None) => ClassState::BestEffort,
            (_, None) => ClassState::Enforced,
        },
    };
    ClassOffer {
        default: default as u8,
        classes: vec![
            class(CpuIsolationClass::BestEffort, None),
            class(CpuIsolationClass::WholeCore, whole),
            class(CpuIsolationClass::StrictIsolated, strict),
        ],
    }
}

/// The capacity in the unit of a request without a class: logical CPUs for best_effort, else cores.
fn capacity(classes: &ClassOffer, cores: u16, cpus: usize) -> u64 {
    match classes.default == CpuIsolationClass::BestEffort as u8 {
        true => cpus as u64,
        false => cores.into(),
    }
}

/// The entry of the inventory: the cores that can be leased under the policy, 0 if its class is refused.
fn cap(
    profile: Profile,
    found: &CpuFound,
    resource_id: ResourceId,
    groups: usize,
    classes: &ClassOffer,
) -> CpuCap {
    let can_be_had = |class: u8| {
        let of_class = |it: &&OfferedClass| it.class == class;
        let found = classes.classes.iter().find(of_class);
        found.is_some_and(|it| it.state.can_be_had())
    };
    let cores = match can_be_had(classes.default) {
        true => groups,
        false => 0,
    };
    let aware = match can_be_had(CpuIsolationClass::WholeCore as u8) {
        true => cpu_flags::TOPOLOGY_AWARE_LEASING,
        false => 0,
    };
    let rejects_wide = match profile {
        Profile::BareMetal => cpu_flags::REJECTS_WIDE_SINGLE_THREADED,
        Profile::Linux => 0,
    };
    let policy = (u32::from(classes.default) + 1) << cpu_flags::ISOLATION_SHIFT;
    let detected = found.cap(resource_id);
    CpuCap {
        cores: u16::try_from(cores).unwrap_or(u16::MAX),
        flags: detected.flags | aware | rejects_wide | policy,
        ..detected
    }
}

/// The entry in inventories.
#[derive(Debug)]
struct OfferedCpus {
    cap: CpuCap,
}

impl Described for OfferedCpus {
    fn overlay(&self, inventory: &mut ResourceInventory, status: ResourceStatus, found: &Found) {
        let id = self.cap.resource_id;
        inventory.cpu_caps.retain(|cap| cap.resource_id != id);
        inventory.cpu_caps.push(CpuCap {
            threads: found.of::<CpuFound>().next().map_or(0, CpuFound::threads),
            health: status.health(),
            ..self.cap
        });
        describe(inventory, status, CPU_NAME, &[]);
    }

    fn trouble(&self, found: &Found) -> Option<String> {
        let Some(cpu) = found.of::<CpuFound>().next() else {
            return Some("the CPU topology cannot be read".into());
        };
        let faults = &cpu.topology.faults;
        (!cpu.topology.is_complete())
            .then(|| format!("the CPU topology is incomplete: {}", faults.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_cpu::CoreType;

    use super::*;

    fn topology(cores: &[&[u32]]) -> Topology {
        let group = |cpus: &&[u32]| Group {
            number: cpus[0],
            cpus: cpus.to_vec(),
            package: Some(0),
            node: 0,
            core_type: CoreType::Capacity(1024),
        };
        Topology {
            online: cores.concat(),
            groups: cores.iter().map(group).collect(),
            ..Topology::default()
        }
    }

    #[test]
    fn capacity_counts_what_a_request_without_a_class_counts() {
        let smt = topology(&[&[2, 3], &[4, 5]]);
        let of = |policy| {
            let classes = classes(Profile::Linux, policy, &smt, None);
            capacity(&classes, 2, 4)
        };
        assert_eq!(of(CpuIsolationClass::BestEffort), 4);
        assert_eq!(of(CpuIsolationClass::WholeCore), 2);
    }

    #[test]
    fn shared_time_is_best_effort_and_cores_are_enforced() {
        let whole = CpuIsolationClass::WholeCore;
        let offer = classes(Profile::Linux, whole, &topology(&[&[2], &[3]]), None);
        let states: Vec<_> = offer.classes.into_iter().map(|it| it.state).collect();
        let enforced = ClassState::Enforced;
        assert_eq!(states, [ClassState::BestEffort, enforced.clone(), enforced]);
    }

    /// The text of each refusal, by class.
    fn refusals(profile: Profile, topology: &Topology, not_exclusive: Option<&str>) -> [String; 3] {
        let whole = CpuIsolationClass::WholeCore;
        let offer = classes(profile, whole, topology, not_exclusive);
        let why = |it: &OfferedClass| match &it.state {
            ClassState::Refused(why) => why.clone(),
            _ => String::new(),
        };
        let all: Vec<String> = offer.classes.iter().map(why).collect();
        all.try_into().unwrap()
    }

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

    #[test]
    fn a_root_cgroup_that_is_not_used_any_more_has_its_leases_ended_first() {
        let state_dir = tempfile::tempdir().unwrap();
        let file = state_dir.path().join(LAST_ROOT);
        let nothing = |_: &Path| -> anyhow::Result<()> { panic!("nothing is to be ended") };
        let (old, new) = (Path::new("/cgroup/old"), Path::new("/cgroup/new"));
        end_elsewhere(&file, old, nothing).unwrap();
        record(&file, old).unwrap();
        end_elsewhere(&file, old, nothing).unwrap();
        let fails = |_: &Path| bail!("pid 7 does not die");
        let error = format!("{:#}", end_elsewhere(&file, new, fails).unwrap_err());
        for text in ["--cpu-cgroup /cgroup/old", "pid 7 does not die"] {
            assert!(error.contains(text), "{error}");
        }
        let mut ended = Vec::new();
        let ends = |at: &Path| {
            ended.push(at.to_owned());
            Ok(())
        };
        end_elsewhere(&file, new, ends).unwrap();
        assert_eq!(ended, [old]);
        record(&file, new).unwrap();
        end_elsewhere(&file, new, nothing).unwrap();
    }

    #[test]
    fn a_class_that_cannot_be_enforced_is_refused_with_the_reason() {
        let linux = Profile::Linux;
        let plain = topology(&[&[0], &[1]]);
        assert_eq!(refusals(linux, &plain, None), ["", "", ""]);
        let smt = topology(&[&[0, 2], &[1]]);
        let [best_effort, whole, strict] = refusals(linux, &smt, None);
        assert_eq!((&*best_effort, &*whole), ("", ""));
        assert!(strict.contains("CPUs 0,2"), "{strict}");
        let mut holed = smt.clone();
        holed.online.push(9);
        holed.faults.push("logical CPU 9: no file".into());
        for (profile, topology, not_exclusive, text) in [
            (linux, &plain, Some("no cpuset.cpus.exclusive"), "no cpuset"),
            (linux, &holed, None, "logical CPU 9"),
            (Profile::BareMetal, &plain, None, "bare-metal"),
        ] {
            let [best_effort, whole, strict] = refusals(profile, topology, not_exclusive);
            assert_eq!(best_effort, "");
            assert!(
                whole.contains(text) && strict.contains(text),
                "{whole}, {strict}"
            );
        }
    }

    /// Cores and policy (class + 1) of the inventory entry, and its flags for topology-aware leasing and the refusal of
    /// wide leases.
    fn told(
        profile: Profile,
        policy: Option<CpuIsolationPolicy>,
        topology: Topology,
    ) -> (u16, u32, bool, bool) {
        let settings = CpuSettings {
            cpu_isolation_policy: policy,
            ..CpuSettings::default()
        };
        let classes = classes(profile, settings.policy(profile), &topology, None);
        let found = CpuFound {
            topology,
            max_mhz: 0,
            arch_flags: 0,
        };
        let cap = cap(profile, &found, ResourceId(1), 3, &classes);
        (
            cap.cores,
            cap.flags >> cpu_flags::ISOLATION_SHIFT & 0b111,
            cap.flags & cpu_flags::TOPOLOGY_AWARE_LEASING != 0,
            cap.flags & cpu_flags::REJECTS_WIDE_SINGLE_THREADED != 0,
        )
    }

    #[test]
    fn the_cores_in_the_inventory_are_those_that_the_policy_can_lease() {
        let linux = |policy, topology| told(Profile::Linux, policy, topology);
        let smt = || topology(&[&[0, 2], &[1]]);
        assert_eq!(linux(None, smt()), (3, 2, true, false));
        let strict = Some(CpuIsolationPolicy::Strict);
        assert_eq!(linux(strict, smt()), (0, 3, true, false));
        assert_eq!(linux(strict, topology(&[&[0], &[1]])), (3, 3, true, false));
        let mut holed = smt();
        holed.online.push(9);
        assert_eq!(linux(None, holed.clone()), (0, 2, false, false));
        let best_effort = Some(CpuIsolationPolicy::BestEffort);
        assert_eq!(linux(best_effort, holed), (3, 1, false, false));
        assert_eq!(told(Profile::BareMetal, None, smt()), (3, 1, false, true));
    }
}
