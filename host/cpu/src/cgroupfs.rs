//! The node's cgroups for CPU cores, and the calls that make and end them.
//!
//! ```text
//! /sys/fs/cgroup/fabricbios-1A2B3C4D          the node's root; cpuset.cpus.exclusive: all CPUs on offer
//!   lease-ID                                  an exclusive lease: a cpuset partition; memory.max, pids.max
//!     caller-ID                               the processes that entered from one cgroup: what limited them there
//!   shared                                    cpuset.cpus: the CPUs on offer that no exclusive lease has
//!     lease-ID                                a best_effort lease: cpu.max; memory.max, pids.max
//!       caller-ID
//!   stuck-ID                                  processes of an ended lease that cannot die
//! ```
//!
//! The root is a plain cgroup, and an exclusive lease in it is a *remote* partition. On kernel 6.12 no cgroup outside
//! the root can make the partition invalid, whatever `cpuset.cpus` that cgroup writes.

use fabricbios_cgroup::{LEASE, Root};
use fabricbios_kernfs::parse_list;
use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;

use crate::list;

/// The cgroup of a lease, below the root: what the path must know of a part.
#[derive(Debug)]
pub(crate) struct Cgroup(pub(crate) String);

/// The calls of the root cgroup that only CPU cores need.
pub(crate) trait CpuRoot {
    /// Reads a list of numbers, such as `cpuset.cpus`.
    fn read_list(&self, step: &'static str, file: &str) -> Result<Vec<u32>, StepError>;

    /// Writes a list and reads it back. An empty list is written as a line end: the kernel ignores a write of 0 bytes.
    fn write_list(&self, step: &'static str, file: &str, numbers: &[u32]) -> Result<(), StepError>;

    /// The lease's cgroup, below the root; `None`: the lease has none.
    fn find(&self, step: &'static str, lease: LeaseId) -> Result<Option<String>, StepError>;

    /// All leases that have a cgroup.
    fn leases(&self, step: &'static str) -> Result<Vec<LeaseId>, StepError>;
}

impl CpuRoot for Root {
    fn read_list(&self, step: &'static str, file: &str) -> Result<Vec<u32>, StepError> {
        let text = self.read(step, file)?;
        let at = self.path(file);
        parse_list(&text).ok_or_else(|| {
            StepError::new(step, format_args!("{}: `{text}` is no list", at.display()))
        })
    }

    fn write_list(&self, step: &'static str, file: &str, numbers: &[u32]) -> Result<(), StepError> {
        let text = if numbers.is_empty() {
            "\n".to_owned()
        } else {
            list(numbers)
        };
        self.write(step, file, &text)?;
        let found = self.read_list(step, file)?;
        if found != numbers {
            let why = format_args!("wrote `{}`, and it reads `{}`", list(numbers), list(&found));
            let at = self.path(file);
            return Err(StepError::new(
                step,
                format_args!("{}: {why}", at.display()),
            ));
        }
        Ok(())
    }

    fn find(&self, step: &'static str, lease: LeaseId) -> Result<Option<String>, StepError> {
        for below in [exclusive(lease), shared(lease)] {
            if self.exists(step, &below)? {
                return Ok(Some(below));
            }
        }
        Ok(None)
    }

    fn leases(&self, step: &'static str) -> Result<Vec<LeaseId>, StepError> {
        let mut found = self.of_leases(step, "", LEASE)?;
        found.extend(self.of_leases(step, SHARED, LEASE)?);
        found.extend(self.of_leases(step, "", STUCK)?);
        let mut leases: Vec<LeaseId> = found.into_iter().map(|(lease, _)| lease).collect();
        leases.sort_unstable();
        leases.dedup();
        Ok(leases)
    }
}

pub(crate) const STUCK: &str = "stuck-";
pub(crate) const SHARED: &str = "shared";

pub(crate) fn exclusive(lease: LeaseId) -> String {
    format!("{LEASE}{lease}")
}

pub(crate) fn shared(lease: LeaseId) -> String {
    format!("{SHARED}/{LEASE}{lease}")
}

pub(crate) fn aside(lease: LeaseId) -> String {
    format!("{STUCK}{lease}")
}
