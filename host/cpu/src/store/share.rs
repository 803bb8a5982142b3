//! The share of a lease: whole cores for it alone, or time of the CPUs that nobody has alone.

use std::fmt::Display;

use fabricbios_cgroup::Limits;
use fabricbios_lease::{BindError, BindOrder, Placement, StepError};
use fabricbios_wire::{CpuIsolationClass, CpuPartition, LeaseId};

use super::CpuStore;
use crate::{
    Group,
    cgroupfs::{CpuRoot, SHARED, exclusive, shared},
    list,
    topology::{CoreFault, check_single_threads},
    watch::{cpus_of, heal, overlapping},
};

/// Period of `cpu.max`, in microseconds.
const PERIOD_US: u32 = 100_000;

/// Name of the step that checks whether cores have changed.
const CHECK: &str = "check cores";

/// The share of the CPUs that a lease gets.
pub(super) enum Share {
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
    pub(super) fn cgroup(&self, lease: LeaseId) -> String {
        match self {
            Self::Exclusive { .. } => exclusive(lease),
            Self::Shared { .. } => shared(lease),
        }
    }

    /// Number of logical CPUs.
    pub(super) fn cpus(&self) -> u64 {
        match self {
            Self::Exclusive { groups, .. } => cpus_of(groups).len() as u64,
            Self::Shared { cpus } => *cpus,
        }
    }
}

impl CpuStore {
    pub(super) fn groups(&self, numbers: &[u32]) -> Result<Vec<Group>, StepError> {
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

    pub(super) fn share(&self, order: &BindOrder) -> Result<Share, StepError> {
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
    pub(super) fn make(&self, lease: LeaseId, share: &Share) -> Result<(), BindError> {
        let made = match share {
            Share::Exclusive {
                groups,
                partition,
                is_strict,
            } => {
                self.check_free(groups, *is_strict)?;
                self.make_exclusive(lease, groups, *partition)
            }
            Share::Shared { cpus } => {
                self.check_online(*cpus)?;
                self.make_shared(lease, *cpus)
            }
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
    pub(super) fn limit(&self, below: &str, cpus: u64) -> Result<(), StepError> {
        let of_cpu = self.config.limits;
        let limits = Limits {
            memory_bytes: of_cpu.memory_bytes.saturating_mul(cpus),
            processes: of_cpu.processes.saturating_mul(cpus),
        };
        limits.set(self.root(), below)
    }

    /// Checks the cgroup of a lease against the state in the kernel. Heals the partition if needed: it may have become
    /// invalid while no node watched it.
    pub(super) fn check_or_heal(&self, below: &str, share: &Share) -> Result<(), StepError> {
        let (groups, partition) = match share {
            Share::Exclusive {
                groups, partition, ..
            } => (groups, *partition),
            Share::Shared { cpus } => return self.check_shared(below, *cpus),
        };
        let cpus = cpus_of(groups);
        let Err(error) = self.check_exclusive(below, &cpus, partition) else {
            return Ok(());
        };
        if let Some(other) = overlapping(self.root(), below, &cpus) {
            let detail = format!("{}; {other}", error.detail);
            return Err(StepError { detail, ..error });
        }
        heal(self.root(), below, partition);
        self.check_exclusive(below, &cpus, partition)
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
}

/// The text of `cpu.max` for the time of this many CPUs.
fn quota(cpus: u64) -> String {
    format!("{} {PERIOD_US}", cpus.saturating_mul(PERIOD_US.into()))
}
