//! The store of CPU cores: a cgroup for each lease. The cgroups are the record of which lease has which CPUs.

use std::{
    collections::BTreeSet,
    fmt::Display,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use fabricbios_cgroup::{LEASE, Limits, Root, described, end_processes};
use fabricbios_contract::{Part, Store, TellCondition, stray_binding_id};
use fabricbios_kernfs::Tree;
use fabricbios_lease::{BindError, BindOrder, BindingId, CoreGroup, Placement, Proof, StepError};
use fabricbios_wire::{CpuIsolationClass, CpuPartition, LeaseId, ResourceId};
use nix::errno::Errno;

use crate::{
    ENDS_WITHIN, Group, STEPS,
    cgroupfs::{Cgroup, CpuRoot, SHARED, STUCK, aside, exclusive, shared},
    list,
    root::{Prepared, prepare},
    topology::{CoreFault, check_single_threads},
    watch::{Watch, Watched, cpus_of, heal, overlapping},
};

/// Period of `cpu.max`, in microseconds.
pub(crate) const PERIOD_US: u32 = 100_000;

/// Name of the step that checks whether cores have changed.
const CHECK: &str = "check cores";

/// How long a release waits for processes that cannot die.
const PATIENCE: Duration = Duration::from_secs(2);

/// Settings of a store.
#[derive(Clone, Debug)]
pub struct CpuConfig {
    /// The node's root cgroup.
    pub root: Root,
    /// The groups on offer.
    pub groups: Vec<Group>,
    /// `/sys`.
    pub sys: Tree,
    /// `/proc`.
    pub proc: Tree,
    /// Limits of a lease, per logical CPU of the lease.
    pub limits: Limits,
}

/// See the module.
#[derive(Debug)]
pub struct CpuStore {
    config: CpuConfig,
    prepared: Prepared,
    /// Held while the CPUs of leases change.
    turn: Mutex<()>,
    watch: Watch,
}

/// The share of the CPUs that a lease gets.
enum Share {
    /// These cores, for this lease alone.
    Exclusive {
        groups: Vec<Group>,
        partition: CpuPartition,
        /// No core of the machine may have a second online CPU.
        is_strict: bool,
    },
    /// The time of this many logical CPUs.
    Shared { cpus: u64 },
}

impl Share {
    /// The cgroup of a lease with this share, below the root.
    fn cgroup(&self, lease: LeaseId) -> String {
        match self {
            Self::Exclusive { .. } => exclusive(lease),
            Self::Shared { .. } => shared(lease),
        }
    }

    /// Number of logical CPUs.
    fn cpus(&self) -> u64 {
        match self {
            Self::Exclusive { groups, .. } => cpus_of(groups).len() as u64,
            Self::Shared { cpus } => *cpus,
        }
    }
}

impl CpuStore {
    /// The CPUs that leases of an earlier run have. Changes nothing.
    ///
    /// # Errors
    /// A cgroup cannot be read.
    pub fn held(root: &Root) -> Result<BTreeSet<u32>, StepError> {
        let mut held = BTreeSet::new();
        for prefix in [LEASE, STUCK] {
            for (_, below) in root.of_leases("list leases", "", prefix)? {
                held.extend(root.read_list("list leases", &format!("{below}/cpuset.cpus"))?);
            }
        }
        Ok(held)
    }

    /// Takes the root cgroup, and makes it if it does not exist.
    ///
    /// # Errors
    /// The kernel lacks a controller that every lease needs (`cpuset` and `cpu` of cgroup v2), or another process has
    /// the root cgroup.
    pub fn open(config: CpuConfig) -> Result<Self, StepError> {
        let config = CpuConfig {
            root: config.root.with_steps(STEPS),
            ..config
        };
        let held = Self::held(&config.root)?;
        let mut cpus = cpus_of(&config.groups);
        cpus.extend(held);
        let store = Self {
            prepared: prepare(&config.root, &cpus)?,
            watch: Watch::start(
                config.root.clone(),
                config.sys.clone(),
                config.groups.clone(),
            )?,
            turn: Mutex::default(),
            config,
        };
        store.set_shared(&BTreeSet::new())?;
        Ok(store)
    }

    /// Ends all leases in a root cgroup whose CPUs are no longer on offer; `proc` is `/proc`, `sys` is `/sys`.
    ///
    /// # Errors
    /// The error of the first lease that could not be removed completely. All other leases are ended.
    pub fn end_all(root: &Root, sys: Tree, proc: Tree) -> Result<(), StepError> {
        let root = &root.clone().with_steps(STEPS);
        let leases = root.leases("list leases")?;
        // The store offers no CPUs, so it takes them from the best_effort leases. Their processes must have ended
        // before.
        for &lease in &leases {
            if let Some(below) = root.find("find lease", lease)? {
                tracing::warn!(lease_id = %lease, "ending a lease of CPU cores that are not on offer any more");
                end_processes(root, &proc, &below, Some(&aside(lease)), ENDS_WITHIN)?;
            }
        }
        let store = Self::open(CpuConfig {
            root: root.clone(),
            groups: Vec::new(),
            sys,
            proc,
            // This store makes no lease.
            limits: Limits {
                memory_bytes: 0,
                processes: 0,
            },
        })?;
        let release = |&lease: &LeaseId| {
            let released = store.release(stray_binding_id(ResourceId(0), lease), None, &|| ());
            released.map_err(|error| StepError {
                detail: format!("lease {lease}: {}", error.detail),
                ..error
            })
        };
        let released: Vec<_> = leases.iter().map(release).collect();
        released.into_iter().try_for_each(|it| it.map(drop))
    }

    /// Why no exclusive leases are possible; `None`: they are.
    #[must_use]
    pub fn not_exclusive(&self) -> Option<&str> {
        self.prepared.not_exclusive.as_deref()
    }

    /// The groups in the form that the lease table counts.
    #[must_use]
    pub fn core_groups(&self) -> Vec<CoreGroup> {
        let group = |group: &Group| CoreGroup {
            number: group.number,
            cpus: u32::try_from(group.cpus.len()).unwrap_or(u32::MAX),
            node: group.node,
        };
        self.config.groups.iter().map(group).collect()
    }

    /// Checks the partitions of all leases, as the watch does after each change that the kernel reports. `now`: the
    /// time up to which a partition has been invalid.
    pub fn check_partitions(&self, now: Instant) {
        self.watch.check(now);
    }

    fn root(&self) -> &Root {
        &self.config.root
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives `shared` the CPUs on offer that no lease has, except those in `taken`. If none are left, the table grants
    /// no best_effort lease and ends those of an earlier run; until then the file keeps its old value.
    fn set_shared(&self, taken: &BTreeSet<u32>) -> Result<(), StepError> {
        let held = Self::held(self.root())?;
        let mut cpus = cpus_of(&self.config.groups);
        cpus.retain(|cpu| !held.contains(cpu) && !taken.contains(cpu));
        let file = format!("{SHARED}/cpuset.cpus");
        if self.root().read_list("shared cpus", &file)? == cpus {
            return Ok(());
        }
        match self.root().write_list("shared cpus", &file, &cpus) {
            // The kernel refuses to take the last CPU from a cpuset that has processes.
            Err(error) if taken.is_empty() && error.errno == Some(Errno::ENOSPC as i32) => Ok(()),
            written => written,
        }
    }

    fn groups(&self, numbers: &[u32]) -> Result<Vec<Group>, StepError> {
        let group = |number: &u32| {
            let found = self.config.groups.iter().find(|it| it.number == *number);
            found.cloned().ok_or_else(|| {
                StepError::new(
                    "find cores",
                    format_args!("core {number} is not on offer here"),
                )
            })
        };
        numbers.iter().map(group).collect()
    }

    fn share(&self, order: &BindOrder) -> Result<Share, StepError> {
        match &order.placement {
            Placement::Cores(numbers) => {
                let groups = self.groups(numbers)?;
                let one = cpus_of(&groups).len() == 1;
                let terms = order.terms.cpu();
                let class = terms.and_then(|terms| terms.isolation);
                let asked = terms.and_then(|terms| terms.partition);
                let partition = asked.unwrap_or(match one {
                    true => CpuPartition::Isolated,
                    false => CpuPartition::Root,
                });
                Ok(Share::Exclusive {
                    groups,
                    partition,
                    is_strict: class == Some(CpuIsolationClass::StrictIsolated),
                })
            }
            Placement::Amount(cpus) if *cpus > 0 => Ok(Share::Shared { cpus: *cpus }),
            other => Err(StepError::new(
                "find cores",
                format_args!("{other:?} is no set of cores"),
            )),
        }
    }

    /// Makes the cgroup of a lease.
    fn make(&self, lease: LeaseId, share: &Share) -> Result<(), BindError> {
        match share {
            Share::Exclusive {
                groups, is_strict, ..
            } => self.check_free(groups, *is_strict)?,
            Share::Shared { cpus } => self.check_online(*cpus)?,
        }
        let made = match share {
            Share::Exclusive {
                groups, partition, ..
            } => self.make_exclusive(lease, groups, *partition),
            Share::Shared { cpus } => self.make_shared(lease, *cpus),
        };
        made.map_err(|error| match self.remove(lease, Vec::new()) {
            Ok(()) => BindError::Failed(error),
            Err(left) => BindError::Stranded(StepError {
                detail: format!("{}; and {left}", error.detail),
                ..error
            }),
        })
    }

    /// Refuses cores that have changed or that another lease has. The table should never order such a bind.
    fn check_free(&self, groups: &[Group], is_strict: bool) -> Result<(), BindError> {
        let failed = |why: &dyn Display| BindError::Failed(StepError::new(CHECK, why));
        let missing = |why: CoreFault| {
            BindError::Unavailable(StepError::new(CHECK, &why).with_errno(why.errno()))
        };
        if let Some(why) = &self.prepared.not_exclusive {
            return Err(failed(why));
        }
        for group in groups {
            group.check(&self.config.sys).map_err(missing)?;
        }
        if is_strict {
            check_single_threads(&self.config.sys).map_err(missing)?;
        }
        let held = Self::held(self.root()).map_err(BindError::Failed)?;
        let taken: Vec<u32> = cpus_of(groups)
            .into_iter()
            .filter(|cpu| held.contains(cpu))
            .collect();
        match taken.is_empty() {
            true => Ok(()),
            false => {
                let why = format_args!("CPUs {} are those of another lease", list(&taken));
                Err(failed(&why))
            }
        }
    }

    /// Refuses more CPU time than the CPUs without an exclusive lease have.
    fn check_online(&self, wanted: u64) -> Result<(), BindError> {
        let file = format!("{SHARED}/cpuset.cpus");
        let cpus = self.root().read_list(CHECK, &file);
        let mut cpus = cpus.map_err(BindError::Failed)?;
        let online = self.config.sys.read_list("devices/system/cpu/online");
        let online = online.map_err(|error| BindError::Failed(StepError::new(CHECK, error)))?;
        cpus.retain(|cpu| online.contains(cpu));
        if cpus.len() as u64 >= wanted {
            return Ok(());
        }
        let why = format_args!(
            "only the CPUs `{}` are online and not those of exclusive leases",
            list(&cpus)
        );
        Err(BindError::Unavailable(StepError::new(CHECK, why)))
    }

    /// Takes the CPUs from the best_effort leases first: the kernel refuses a partition with CPUs that a cgroup beside
    /// it names.
    fn make_exclusive(
        &self,
        lease: LeaseId,
        groups: &[Group],
        partition: CpuPartition,
    ) -> Result<(), StepError> {
        let (root, below, cpus) = (self.root(), exclusive(lease), cpus_of(groups));
        self.set_shared(&cpus.iter().copied().collect())?;
        root.mkdir("make lease", &below)?;
        self.limit(&below, cpus.len() as u64)?;
        root.write_list("cpus", &format!("{below}/cpuset.cpus"), &cpus)?;
        let mut nodes: Vec<u32> = groups.iter().map(|it| it.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        root.write_list("mems", &format!("{below}/cpuset.mems"), &nodes)?;
        root.write_list(
            "exclusive",
            &format!("{below}/cpuset.cpus.exclusive"),
            &cpus,
        )?;
        root.write(
            "partition",
            &format!("{below}/cpuset.cpus.partition"),
            partition.name(),
        )?;
        self.check_exclusive(&below, &cpus, partition)
    }

    fn make_shared(&self, lease: LeaseId, cpus: u64) -> Result<(), StepError> {
        let (root, below) = (self.root(), shared(lease));
        root.mkdir("make lease", &below)?;
        self.limit(&below, cpus)?;
        root.write("quota", &format!("{below}/cpu.max"), &quota(cpus))?;
        self.check_shared(&below, cpus)
    }

    /// Sets the limits of a lease. A lease of an earlier run keeps its limits.
    fn limit(&self, below: &str, cpus: u64) -> Result<(), StepError> {
        let of_cpu = self.config.limits;
        let limits = Limits {
            memory_bytes: of_cpu.memory_bytes.saturating_mul(cpus),
            processes: of_cpu.processes.saturating_mul(cpus),
        };
        limits.set(self.root(), below)
    }

    /// Checks the cgroup of a lease against the state in the kernel.
    fn check(&self, below: &str, share: &Share) -> Result<(), StepError> {
        match share {
            Share::Exclusive {
                groups, partition, ..
            } => self.check_exclusive(below, &cpus_of(groups), *partition),
            Share::Shared { cpus } => self.check_shared(below, *cpus),
        }
    }

    /// Heals the partition if needed: it may have become invalid while no node watched it.
    fn check_or_heal(&self, below: &str, share: &Share) -> Result<(), StepError> {
        let Err(error) = self.check(below, share) else {
            return Ok(());
        };
        match share {
            Share::Exclusive {
                groups, partition, ..
            } => {
                if let Some(other) = overlapping(self.root(), below, &cpus_of(groups)) {
                    let detail = format!("{}; {other}", error.detail);
                    return Err(StepError { detail, ..error });
                }
                heal(self.root(), below, *partition);
                self.check(below, share)
            }
            Share::Shared { .. } => Err(error),
        }
    }

    fn check_exclusive(
        &self,
        below: &str,
        cpus: &[u32],
        partition: CpuPartition,
    ) -> Result<(), StepError> {
        let root = self.root();
        let at = root.path(below);
        let found = root.read("partition", &format!("{below}/cpuset.cpus.partition"))?;
        if found != partition.name() {
            let why = format_args!(
                "{}/cpuset.cpus.partition: wrote `{partition}`, and it reads `{found}`",
                at.display()
            );
            return Err(StepError::new("partition", why));
        }
        let effective = root.read_list("partition", &format!("{below}/cpuset.cpus.effective"))?;
        if effective != cpus {
            let why = format_args!(
                "{}/cpuset.cpus.effective: `{}` and not `{}`",
                at.display(),
                list(&effective),
                list(cpus)
            );
            return Err(StepError::new("partition", why));
        }
        Ok(())
    }

    fn check_shared(&self, below: &str, cpus: u64) -> Result<(), StepError> {
        let file = format!("{below}/cpu.max");
        let found = self.root().read("quota", &file)?;
        if found != quota(cpus) {
            let at = self.root().path(&file);
            let why = format_args!("{}: `{found}` and not `{}`", at.display(), quota(cpus));
            return Err(StepError::new("quota", why));
        }
        Ok(())
    }

    /// Removes a lease's cgroup and gives its CPUs back to the machine. If processes of the lease were moved aside, no
    /// other lease gets the CPUs. The lease's processes have ended. `cpus`: the CPUs on record.
    fn remove(&self, lease: LeaseId, cpus: Vec<u32>) -> Result<(), StepError> {
        let (root, mut cpus) = (self.root(), cpus);
        self.watch.forget(lease);
        if let Some(below) = root.find("remove lease", lease)? {
            if below == exclusive(lease) {
                cpus = root.read_list("remove lease", &format!("{below}/cpuset.cpus"))?;
                // Kernel 6.12 loses the CPUs of an invalid partition that is removed while it is a partition.
                let file = format!("{below}/cpuset.cpus.partition");
                root.write("dissolve", &file, CpuPartition::Member.name())?;
            }
            root.remove("remove lease", &below)?;
        }
        self.check_back(&cpus)?;
        let aside = aside(lease);
        if !cpus.is_empty() && root.exists("aside cpus", &aside)? {
            // A restart reads these CPUs from this file, see [`Self::held`].
            root.write_list("aside cpus", &format!("{aside}/cpuset.cpus"), &cpus)?;
        }
        self.set_shared(&BTreeSet::new())
    }

    /// Checks that the rest of the machine has the CPUs of a lease again.
    fn check_back(&self, cpus: &[u32]) -> Result<(), StepError> {
        let online = self.config.sys.read_list("devices/system/cpu/online");
        let online = online.map_err(|error| StepError::new("give back", error))?;
        let effective = self
            .root()
            .read_list("give back", "cpuset.cpus.effective")?;
        let missing = cpus
            .iter()
            .filter(|cpu| online.contains(cpu) && !effective.contains(cpu));
        let missing: Vec<u32> = missing.copied().collect();
        if missing.is_empty() {
            return Ok(());
        }
        let why = format!(
            "{}/cpuset.cpus.effective: `{}`, and the lease's CPUs {} are not back",
            self.root().path("").display(),
            list(&effective),
            list(&missing)
        );
        Err(StepError::new("give back", why))
    }

    /// Waits up to [`PATIENCE`] for the end of processes that were moved aside, and removes their cgroup.
    fn wait_for_stuck(&self, lease: LeaseId) -> Result<(), StepError> {
        const STEP: &str = "remove aside";
        let (root, below) = (self.root(), aside(lease));
        if !root.exists(STEP, &below)? {
            return Ok(());
        }
        let until = Instant::now() + PATIENCE;
        while root.is_populated(STEP, &below)? {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let stuck = described(&self.config.proc, &root.members(STEP, &below)?);
                let why = format!(
                    "{}: {stuck} was killed and does not die; it ends when what it waits for in the kernel does",
                    root.path(&below).display()
                );
                return Err(StepError::new(STEP, why));
            }
            root.wait(STEP, &below, left)?;
        }
        root.remove(STEP, &below)
    }
}

/// The text of `cpu.max` for the time of this many CPUs.
fn quota(cpus: u64) -> String {
    format!("{} {PERIOD_US}", cpus.saturating_mul(PERIOD_US.into()))
}

impl Store for CpuStore {
    /// Does nothing: cores have no contents.
    fn prepare(&self, _order: &BindOrder, _progress: &dyn Fn()) -> Result<(), StepError> {
        Ok(())
    }

    fn open(&self, order: &BindOrder) -> Result<Part, BindError> {
        let lease = order.binding_id.lease_id;
        let _turn = self.turn();
        let share = self.share(order).map_err(BindError::Failed)?;
        let found = self
            .root()
            .find("find lease", lease)
            .map_err(BindError::Failed)?;
        let opened = match &found {
            Some(below) => self
                .check_or_heal(below, &share)
                .and_then(|()| self.limit(below, share.cpus()))
                .map_err(BindError::Failed),
            None if order.adopts => {
                let at = self.root().path("");
                let why = format_args!("{}: the lease has no cgroup there", at.display());
                return Err(BindError::Failed(StepError::new("find lease", why)));
            }
            None => self.make(lease, &share),
        };
        let below = found.unwrap_or_else(|| share.cgroup(lease));
        if let Share::Exclusive {
            groups,
            partition,
            is_strict,
        } = share
            // A lease of an earlier run goes on, even if its check failed, until the watch gives it up.
            && (opened.is_ok() || order.adopts)
        {
            self.watch.add(
                lease,
                Watched {
                    below: below.clone(),
                    partition,
                    groups,
                    is_strict,
                },
            );
        }
        opened?;
        Ok(Part::with(order.placement.clone(), Cgroup(below)))
    }

    /// Does nothing: a reboot ends all leases, even those in an older journal.
    fn confirm(&self, _binding_id: BindingId) -> Result<(), StepError> {
        Ok(())
    }

    fn forget(&self, binding_id: BindingId, _placement: &Placement) -> Result<(), StepError> {
        let _turn = self.turn();
        self.remove(binding_id.lease_id, Vec::new())
    }

    fn release(
        &self,
        binding_id: BindingId,
        placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        let lease = binding_id.lease_id;
        // A path has ended the processes already, unless the lease was never bound. This waits without the lock.
        if let Some(below) = self.root().find("remove lease", lease)? {
            end_processes(
                self.root(),
                &self.config.proc,
                &below,
                Some(&aside(lease)),
                ENDS_WITHIN,
            )?;
        }
        progress();
        let groups = match placement {
            Some(Placement::Cores(numbers)) => self.groups(numbers).unwrap_or_default(),
            _ => Vec::new(),
        };
        {
            let _turn = self.turn();
            self.remove(lease, cpus_of(&groups))?;
        }
        self.wait_for_stuck(lease)?;
        let _turn = self.turn();
        self.set_shared(&BTreeSet::new())?;
        Ok(Proof::nothing_to_clean(
            "cores keep no bytes; the lease's processes have ended and its control group is removed",
        ))
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.root().leases("list leases")
    }

    fn tell_condition(&self, tell: TellCondition) {
        self.watch.tell(tell);
    }
}
