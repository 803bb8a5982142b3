//! Prepares the node's root cgroup at the start.

use std::{collections::BTreeSet, fs::File};

use fabricbios_cgroup::{Root, join};
use fabricbios_kernfs::parse_list;
use fabricbios_lease::StepError;

use crate::{
    cgroupfs::{CpuRoot, SHARED},
    list,
};

/// The controllers of cgroup v2 that leases need.
pub const CONTROLLERS: [&str; 4] = ["cpuset", "cpu", "memory", "pids"];

/// The root cgroup of a running store.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// Why no exclusive leases are possible.
    pub(crate) not_exclusive: Option<String>,
    /// Lock of the root cgroup: only one process makes leases there.
    _lock: File,
}

/// Makes the root cgroup, or takes over that of an earlier run, with the controllers that leases need. `cpus`: all CPUs
/// that are on offer or in a lease.
///
/// # Errors
/// The kernel lacks a controller that every lease needs, or another process makes leases in this cgroup.
pub(crate) fn prepare(root: &Root, cpus: &[u32]) -> Result<Prepared, StepError> {
    root.make(&CONTROLLERS)?;
    let lock = lock(root)?;
    root.enable("", &CONTROLLERS)?;
    root.make_below("make shared", SHARED)?;
    root.enable(SHARED, &["cpu", "memory", "pids"])?;
    if !root.exists("look for kill", &format!("{SHARED}/cgroup.kill"))? {
        let why = "this kernel has no cgroup.kill, which Linux 5.14 and later have: no lease could be ended";
        return Err(StepError::new("look for kill", why));
    }
    Ok(Prepared {
        not_exclusive: take_exclusive(root, cpus)?,
        _lock: lock,
    })
}

fn lock(root: &Root) -> Result<File, StepError> {
    let at = root.path("");
    let fail = |why: String| StepError::new("lock root", format_args!("{}: {why}", at.display()));
    let lock = File::open(&at).map_err(|error| fail(error.to_string()))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(error) => Err(fail(format!(
            "another process makes leases of CPU cores there ({error})"
        ))),
    }
}

/// Reserves the CPUs that partitions below the root may have. `Some`: why that is not possible.
fn take_exclusive(root: &Root, cpus: &[u32]) -> Result<Option<String>, StepError> {
    const STEP: &str = "root exclusive";
    if !root.exists(STEP, "cpuset.cpus.exclusive")? {
        return Ok(Some(
            "this kernel has no cpuset.cpus.exclusive, which Linux 6.7 and later have".into(),
        ));
    }
    let wanted: BTreeSet<u32> = cpus.iter().copied().collect();
    let found = root.read_list(STEP, "cpuset.cpus.exclusive")?;
    if found.iter().copied().eq(wanted.iter().copied()) {
        return Ok(None);
    }
    let wanted: Vec<u32> = wanted.into_iter().collect();
    let written = root.write_list(STEP, "cpuset.cpus.exclusive", &wanted);
    Ok(written.err().map(|error| match pinned(root, &wanted) {
        Some(other) => format!("{error}; {other}: leave those CPUs out of the offer, or change it"),
        None => error.to_string(),
    }))
}

/// Names a cgroup beside the root that keeps the kernel from giving the root these CPUs.
fn pinned(root: &Root, cpus: &[u32]) -> Option<String> {
    let fs = root.fs();
    let own = root.name("");
    let (parent, _) = own.rsplit_once('/').unwrap_or(("", &own));
    let within = |other: &[u32]| !other.is_empty() && other.iter().all(|cpu| cpus.contains(cpu));
    let touches = |other: &[u32]| other.iter().any(|cpu| cpus.contains(cpu));
    for name in fs.list(parent).ok()? {
        let at = join(parent, &name);
        let cpus_of = |file: &str| {
            let text = fs.read(&format!("{at}/{file}")).ok()?;
            parse_list(&text)
        };
        let found = [
            (
                "cpuset.cpus",
                cpus_of("cpuset.cpus").filter(|it| within(it)),
            ),
            (
                "cpuset.cpus.exclusive",
                cpus_of("cpuset.cpus.exclusive").filter(|it| touches(it)),
            ),
        ];
        let found = found
            .into_iter()
            .find_map(|(file, cpus)| Some((file, cpus?)));
        if let Some((file, cpus)) = found.filter(|_| at != own) {
            let at = fs.mount().join(&at);
            return Some(format!("{}/{file} is {}", at.display(), list(&cpus)));
        }
    }
    None
}
