//! The callers' cgroups inside the cgroup of a lease. Each holds the processes that have entered the lease from one
//! other cgroup; the limits of that cgroup still apply to them here.
//!
//! Callers from the same container share one cgroup, so the container's limits apply to them together.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;

use crate::{
    containers::is_registered,
    limits::Limits,
    root::{LEASE, Root, failed, join},
};

/// Prefix of the names; the number of the cgroup from which the callers came follows.
const CALLER: &str = "caller-";

/// A lease has processes from at most this many cgroups at a time.
const CALLERS_MAX: usize = 256;

/// A caller's cgroup is at most this deep in the hierarchy.
pub(crate) const DEPTH_MAX: usize = 64;

/// Limits that apply to a cgroup and to all cgroups in it.
const LIMITS: [&str; 4] = ["memory.max", "memory.high", "memory.swap.max", "pids.max"];

const STEP: &str = "limit caller";

/// Makes the cgroup for processes that come from the cgroup `from` (a path from the mount on), or sets its limits anew.
/// Returns its name below the root.
///
/// # Errors
/// A limit of the processes would end, or the caller may not leave `from`. A cgroup that this call made is removed
/// again.
pub(crate) fn make(root: &Root, below: &str, from: &str) -> Result<String, StepError> {
    let refuse = |why: String| StepError::new(STEP, format_args!("the caller is in {from}: {why}"));
    let origin = check_origin(root, below, from).map_err(refuse)?;
    let at = root.fs().mount().join(origin);
    let id = fs::metadata(&at);
    let id = id.map_err(|error| refuse(error.to_string()).with_errno(error.raw_os_error()))?;
    let group = join(below, &format!("{CALLER}{}", id.ino()));
    remove_empty(root, below, &group)?;
    if !root.exists(STEP, &group)? {
        root.mkdir("make caller", &group)?;
    }
    let limited = limit(root, below, &group, origin);
    limited.map_err(|error| {
        remove(root, &group);
        let why = format!(
            "what limits it there would end with its entry: {}",
            error.detail
        );
        refuse(why).with_errno(error.errno)
    })?;
    root.passed(STEP);
    Ok(group)
}

/// Removes the cgroup of callers if it has no processes.
pub(crate) fn remove(root: &Root, group: &str) {
    root.fs().rmdir(&root.name(group)).ok();
}

/// Returns the caller's cgroup relative to the mount, if the caller may leave it.
fn check_origin<'a>(root: &Root, below: &str, from: &'a str) -> Result<&'a str, String> {
    let origin = from.trim_start_matches('/');
    let parts = || origin.split('/');
    if parts().any(|part| part == "..") {
        return Err("the daemon does not see that cgroup, and what limits it there would end with its entry: start the daemon in the cgroup namespace of the host".into());
    }
    if parts().count() > DEPTH_MAX {
        return Err(format!("that is deeper than {DEPTH_MAX} cgroups"));
    }
    // Such a process would leave its lease, and the end of that lease would no longer find it.
    let is_lease = |part: &str| {
        let id = part.strip_prefix(LEASE);
        id.is_some_and(|id| id.parse::<LeaseId>().is_ok())
    };
    if origin != root.name(below) && parts().any(is_lease) {
        return Err(
            "it is in another lease already, and would leave it: start it outside of leases".into(),
        );
    }
    let mount = root.fs().mount();
    for at in Path::new(origin).ancestors() {
        if is_registered(&mount.join(at))? {
            return Err("it is in a container that has the device of a lease, and ends with that lease: start it outside".into());
        }
    }
    Ok(origin)
}

/// Removes the empty callers' cgroups: many earlier callers may have ended.
fn remove_empty(root: &Root, below: &str, except: &str) -> Result<(), StepError> {
    let is_callers = |name: &String| name.starts_with(&join(below, CALLER)) && name != except;
    let mut others = root.children(STEP, below)?;
    others.retain(is_callers);
    for other in &others {
        remove(root, other);
    }
    let mut left = 0;
    for other in &others {
        left += usize::from(root.exists(STEP, other)?);
    }
    if left < CALLERS_MAX {
        return Ok(());
    }
    let why = format_args!("the lease has processes from {left} cgroups: end some of them");
    Err(StepError::new(STEP, why))
}

fn limit(root: &Root, below: &str, group: &str, origin: &str) -> Result<(), StepError> {
    let mut wanted = Vec::new();
    for file in LIMITS {
        if let Some(least) = least(root, below, origin, file)? {
            wanted.push((file, least.to_string()));
        }
    }
    if !wanted.is_empty() {
        // If only one of the controllers is enabled, the kernel moves no process into a cgroup below one that has
        // processes of its own.
        root.make(&Limits::CONTROLLERS)?;
        let above: Vec<&Path> = Path::new(below).ancestors().collect();
        for at in above.iter().rev().filter_map(|at| at.to_str()) {
            root.enable(at, &Limits::CONTROLLERS)?;
        }
    }
    for (file, value) in wanted {
        let file = format!("{group}/{file}");
        if root.read(STEP, &file)? != value {
            root.write(STEP, &file, &value)?;
        }
    }
    let carried = root.fs().carry_over(origin, &root.name(group));
    carried.map_err(|error| {
        let why = format_args!("device controller and other programs: {error}");
        StepError::new(STEP, why).with_errno(error.raw_os_error())
    })
}

/// The lowest value of a limit in the caller's cgroup and the cgroups above it. Cgroups above both the caller and the
/// lease are left out: they still apply.
fn least(root: &Root, below: &str, origin: &str, file: &str) -> Result<Option<u64>, StepError> {
    let (fs, lease) = (root.fs(), root.name(below));
    let mut least = None;
    let above = Path::new(origin).ancestors();
    for at in above.take_while(|at| !Path::new(&lease).starts_with(at)) {
        let file = at.join(file).display().to_string();
        if !fs.exists(&file).map_err(|error| failed(STEP, &error))? {
            continue;
        }
        let text = fs.read(&file).map_err(|error| failed(STEP, &error))?;
        if text == "max" {
            continue;
        }
        let Ok(value) = text.parse::<u64>() else {
            let why = format_args!("{file} is `{text}` and no number");
            return Err(StepError::new(STEP, why));
        };
        least = Some(least.map_or(value, |it: u64| it.min(value)));
    }
    Ok(least)
}
