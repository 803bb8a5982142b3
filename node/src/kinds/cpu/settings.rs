//! The operator's settings of CPU cores.

use std::{ops::RangeInclusive, path::PathBuf};

use clap::{Args, ValueEnum};
use fabricbios_cpu::{CpuList, Limits, Wanted};
use fabricbios_wire::{CpuIsolationClass, Size};

use crate::kinds::settings::{Conflicts, KindSettings, Profile, values};

/// Memory of the processes of a lease, for each CPU: no program runs with less.
const MEMORY: RangeInclusive<Size> = Size(1 << 20)..=values::MOST;

/// Processes of a lease, for each CPU: at most as many as Linux allows.
const PIDS: RangeInclusive<u32> = 1..=Limits::PROCESSES_MAX;

/// The settings of CPU cores.
#[derive(Args, Clone, Debug, Default)]
pub struct CpuSettings {
    /// Logical CPUs to offer for lease: `all`, or a list such as 2-7,10 of whole cores. The core of the boot CPU is never
    /// leased. `all` leaves out CPUs that the kernel isolates since its start and, on a hybrid machine, all but the fastest
    /// type of cores [default: none].
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<Wanted>,

    /// Logical CPUs that are never leased, with their cores, besides that of the boot CPU.
    #[arg(long, value_name = "LIST")]
    pub cpu_reserve: Option<CpuList>,

    /// The cgroup in which leases of CPU cores are made; other programs must leave it alone
    /// [default: /sys/fs/cgroup/fabricbios-ID, with the first 8 digits of the node's id].
    #[arg(long, value_name = "PATH")]
    pub cpu_cgroup: Option<PathBuf>,

    /// Most memory, without swap, of the processes of a CPU lease, for each of its logical CPUs [default: the memory of the
    /// machine without --mem-bytes and --mem-arena, divided by its online CPUs].
    #[arg(long, value_name = "SIZE", value_parser = values::size(MEMORY, "4GiB"))]
    pub cpu_memory_max: Option<Size>,

    /// Most processes and threads of a CPU lease, for each of its logical CPUs [default: 1024].
    #[arg(long, value_name = "N", value_parser = values::number(PIDS, 1024))]
    pub cpu_pids_max: Option<u32>,

    /// Isolation of CPU leases that ask for none [default: whole_core; best_effort with --profile bare-metal].
    #[arg(long, value_enum)]
    pub cpu_isolation_policy: Option<CpuIsolationPolicy>,

    /// Most CPU cores that the leases of one tenant may hold, of every class [default: all that are on offer].
    #[arg(long, value_name = "CORES", value_parser = values::number(0..=u32::MAX, 16))]
    pub cpu_per_tenant_max: Option<u32>,
}

/// Isolation of CPU leases that ask for none (002).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum CpuIsolationPolicy {
    /// Shares CPUs.
    #[value(alias = "BestEffort")]
    BestEffort,
    /// Physical cores of its own.
    #[default]
    #[value(alias = "WholeCore")]
    WholeCore,
    /// The same of one NUMA node with its memory, on a machine without SMT.
    #[value(name = "strict_isolated", aliases = ["strict", "StrictIsolated"])]
    Strict,
}

impl From<CpuIsolationPolicy> for CpuIsolationClass {
    fn from(policy: CpuIsolationPolicy) -> Self {
        match policy {
            CpuIsolationPolicy::BestEffort => Self::BestEffort,
            CpuIsolationPolicy::WholeCore => Self::WholeCore,
            CpuIsolationPolicy::Strict => Self::StrictIsolated,
        }
    }
}

impl CpuSettings {
    /// The class of leases that ask for none.
    pub(super) fn policy(&self, profile: Profile) -> CpuIsolationClass {
        let policy = self.cpu_isolation_policy;
        let policy = policy.unwrap_or(match profile {
            Profile::Linux => CpuIsolationPolicy::default(),
            // The profile has no other class.
            Profile::BareMetal => CpuIsolationPolicy::BestEffort,
        });
        policy.into()
    }
}

/// See [`crate::kinds::Kind::conflicts`].
pub(super) fn conflicts(settings: &KindSettings, conflicts: &mut Conflicts<'_>) {
    let it = &settings.cpu;
    conflicts.needs(
        &[
            ("cpu-reserve", it.cpu_reserve.is_some()),
            ("cpu-cgroup", it.cpu_cgroup.is_some()),
            ("cpu-memory-max", it.cpu_memory_max.is_some()),
            ("cpu-pids-max", it.cpu_pids_max.is_some()),
            ("cpu-isolation-policy", it.cpu_isolation_policy.is_some()),
            ("cpu-per-tenant-max", it.cpu_per_tenant_max.is_some()),
        ],
        it.cpus.is_some(),
        "--cpus LIST",
        "no CPU is leased",
    );
}

#[cfg(test)]
pub(super) mod tests;
