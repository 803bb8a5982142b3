//! The end of all processes of a lease, by the lease's name alone.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use fabricbios_contract::EndByName;
use fabricbios_kernfs::Tree;
use fabricbios_lease::{Proof, StepError};
use fabricbios_wire::LeaseId;

use crate::{
    cgroupfs::{Root, aside},
    steps::passed,
};

/// Killed processes have so long until the next of them is gone; then the rest is moved aside.
const PATIENCE: Duration = Duration::from_millis(300);

/// Longest wait for all of them. A process leaves its cgroup even if it cannot die, so this is not reached.
const LONGEST: Duration = Duration::from_secs(3);

/// Ends a lease's processes: freezes and kills them. Nothing of them runs on when this returns, and whatever is moved
/// into the cgroup later is frozen. A process that cannot die (state D) is moved aside, see [`crate::CpuStore`].
///
/// # Errors
/// A process may run on.
pub(crate) fn end_processes(
    root: &Root,
    proc: &Tree,
    lease: LeaseId,
    below: &str,
) -> Result<Proof, StepError> {
    let mut proof = Proof::default();
    let began = Instant::now();
    root.write("freeze", &format!("{below}/cgroup.freeze"), "1")?;
    proof.add("freeze", began.elapsed(), "");
    let killed = Instant::now();
    root.write("kill", &format!("{below}/cgroup.kill"), "1")?;
    let mut moved = Vec::new();
    let mut fewest = usize::MAX;
    let mut since = Instant::now();
    while root.is_populated("kill", below)? {
        if began.elapsed() > LONGEST {
            let left = described(proc, &root.members("kill", below)?);
            let at = root.path(below);
            let why = format_args!(
                "{}: {left} cannot be killed and not moved aside",
                at.display()
            );
            return Err(StepError::new("kill", why));
        }
        // More processes than the file shows at once: the wait goes on.
        let members = root
            .members("kill", below)
            .map_or(usize::MAX, |it| it.len());
        if members < fewest {
            (fewest, since) = (members, Instant::now());
        } else if since.elapsed() > PATIENCE {
            moved.extend(move_aside(root, proc, lease, below)?);
            since = Instant::now();
        }
        root.wait("kill", below, PATIENCE / 10)?;
    }
    let moved = match moved.is_empty() {
        true => String::new(),
        false => format!("cannot die and moved aside: {}", moved.join(", ")),
    };
    proof.add("kill", killed.elapsed(), moved);
    Ok(proof)
}

/// Moves what is left of a killed cgroup to a cgroup of its own, and describes it.
fn move_aside(
    root: &Root,
    proc: &Tree,
    lease: LeaseId,
    below: &str,
) -> Result<Vec<String>, StepError> {
    let aside = aside(lease);
    if !root.exists("move aside", &aside)? {
        root.mkdir("move aside", &aside)?;
    }
    let mut moved = Vec::new();
    for pid in root.members("move aside", below)? {
        let what = describe(proc, pid);
        let target = root.name(&format!("{aside}/cgroup.procs"));
        // A process that has just died is gone by itself.
        if root.fs().write(&target, &pid.to_string()).is_ok() {
            tracing::error!(lease_id = %lease, process = what, "it was killed and does not die; it is moved aside");
            moved.push(what);
        }
    }
    passed("move aside");
    Ok(moved)
}

/// Processes by number, name and state.
pub(crate) fn described(proc: &Tree, pids: &[i32]) -> String {
    let each: Vec<String> = pids.iter().map(|&pid| describe(proc, pid)).collect();
    each.join(", ")
}

fn describe(proc: &Tree, pid: i32) -> String {
    let status = proc.read(format!("{pid}/status")).unwrap_or_default();
    let field = |name: &str| crate::enter::field(&status, name).unwrap_or("?").to_owned();
    format!("pid {pid} ({}, state {})", field("Name"), field("State"))
}

/// Ends leases of CPU cores without the daemon.
#[derive(Debug)]
pub struct CpuEnd {
    root: Root,
    proc: Tree,
}

impl CpuEnd {
    /// For the node whose root cgroup has this path.
    ///
    /// # Errors
    /// The path is in no file system of cgroup v2.
    pub fn at(path: &Path) -> Result<Self, String> {
        Ok(Self::of(Root::at(path)?, Tree::new("/proc")))
    }

    /// For a root cgroup and `/proc`.
    #[must_use]
    pub fn of(root: Root, proc: Tree) -> Self {
        Self { root, proc }
    }
}

impl EndByName for CpuEnd {
    fn end(&self, lease: LeaseId) -> Result<(), StepError> {
        match self.root.find("find lease", lease)? {
            Some(below) => end_processes(&self.root, &self.proc, lease, &below).map(drop),
            None => Ok(()),
        }
    }
}
