//! Leases of CPU cores: the topology of the machine, and cgroups with cpuset partitions.
//!
//! An exclusive lease (`whole_core`, `strict_isolated`) is a cgroup whose cpuset partition has the lease's cores alone:
//! no user task from outside the lease runs there. A `best_effort` lease is a cgroup with a cap of CPU time on the CPUs
//! that no exclusive lease has. [`CpuStore`] makes and removes the cgroups; [`CpuPath`] moves processes of the tenant
//! in, and ends them.
//!
//! Never here: the start of a tenant's program.
//!
//! Read first: `store/mod.rs`, a cgroup for each lease; then `path.rs`, how processes enter and end.
#![forbid(unsafe_code)]

mod cgroupfs;
mod end;
mod path;
mod root;
mod steps;
mod store;
mod topology;
mod watch;

use std::{path::PathBuf, time::Duration};

use fabricbios_wire::{CpuRange, NodeId};

pub use end::CpuEnd;
pub use fabricbios_cgroup::{Cgroupfs, Limits, NoRoot, Root};
pub use path::CpuPath;
pub use root::CONTROLLERS;
pub use steps::STEPS;
pub use store::{CpuConfig, CpuStore};
pub use topology::{CoreFault, CoreType, CpuList, Group, NotCpus, NotOffered, Topology, Wanted};

/// Longest wait for the end of a lease's processes. After it the lease's cores are fenced.
const ENDS_WITHIN: Duration = Duration::from_secs(3);

/// The path of a node's root cgroup, if the operator sets none.
#[must_use]
pub fn default_root(node_id: &NodeId) -> PathBuf {
    let id: String = node_id
        .0
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    PathBuf::from(format!("/sys/fs/cgroup/fabricbios-{id}"))
}

/// Numbers of CPUs or nodes as the kernel writes them: `0-3,8`.
#[must_use]
pub fn list(numbers: &[u32]) -> String {
    let ranges: Vec<String> = ranges(numbers).iter().map(ToString::to_string).collect();
    ranges.join(",")
}

/// Linux knows at most 8192 CPUs and 1024 NUMA nodes.
fn ranges(numbers: &[u32]) -> Vec<CpuRange> {
    let small = numbers
        .iter()
        .filter_map(|&number| u16::try_from(number).ok());
    CpuRange::of(small)
}
