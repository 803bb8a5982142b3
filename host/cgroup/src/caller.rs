//! The cgroup, in that of a lease, of processes that have entered from one other cgroup: what limited them there limits them here.
//!
//! There is one for each cgroup that callers come from, so that many callers of one container have its limits together.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;

use crate::{
    containers::is_registered,
    limits::Limits,
    root::{LEASE, Root, failed, join},
};

/// The names begin so, and end with the number of the cgroup that the callers were in.
const CALLER: &str = "caller-";

/// One lease has processes from no more cgroups at a time.
const CALLERS_MAX: usize = 256;

/// A caller's cgroup is no deeper in the hierarchy.
pub(crate) const DEPTH_MAX: usize = 64;

/// Limits of a cgroup and of those in it.
const LIMITS: [&str; 4] = ["memory.max", "memory.high", "memory.swap.max", "pids.max"];

const STEP: &str = "limit caller";

/// Makes the cgroup for processes that are in `from`, a path from the mount on, or sets what limits it anew. Returns its name below
/// the root.
///
/// # Errors
/// Something that limits the processes would end. If there was no such cgroup before, there is none now.
pub(crate) fn make(root: &Root, below: &str, from: &str) -> Result<String, StepError> {
    let refuse = |why: String| StepError::new(STEP, format_args!("the caller is in {from}: {why}"));
    let origin = check_origin(root, below, from).map_err(refuse)?;
    let at = root.fs().mount().join(origin);
    let id = fs::metadata(&at).map_err(|error| refuse(error.to_string()))?;
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

/// Removes the cgroup of callers unless it has processes.
pub(crate) fn remove(root: &Root, group: &str) {
    root.fs().rmdir(&root.name(group)).ok();
}

/// The caller's cgroup below the mount, if it can be left.
fn check_origin<'a>(root: &Root, below: &str, from: &'a str) -> Result<&'a str, String> {
    let origin = from.trim_start_matches('/');
    let parts = || origin.split('/');
    if parts().any(|part| part == "..") {
        return Err("the daemon does not see that cgroup, and what limits it there would end with its entry: start the daemon in the cgroup namespace of the host".into());
    }
    if parts().count() > DEPTH_MAX {
        return Err(format!("that is deeper than {DEPTH_MAX} cgroups"));
    }
    // The end of that lease would not find it any more.
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

/// A lease may have had many callers that have ended.
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
        // With one of them alone the kernel takes processes into no cgroup below one with processes of its own.
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

/// The least value of a limit in the caller's cgroup and those above it. What applies to the lease too applies still.
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
