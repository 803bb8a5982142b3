//! Moves a process of the tenant into a lease.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use fabricbios_contract::{Caller, Entered, LocalRefusal};
use fabricbios_helper::Pidfd;
use fabricbios_kernfs::Tree;
use fabricbios_lease::StepError;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{
    caller::{make, remove},
    root::{Root, failed},
};

/// Moves the caller into its own cgroup inside that of the lease, where the limits of its old cgroup still apply. The
/// kernel takes no pidfd for this, so the process number is written. Before and after the write, the pidfd shows that
/// the number still belongs to the caller.
pub fn enter(
    root: &Root,
    proc: &Tree,
    below: &str,
    caller: &Caller,
    process: &OwnedFd,
) -> Result<Entered, LocalRefusal> {
    let pid = pid_of(process).map_err(LocalRefusal::Failed)?;
    if pid != caller.pid {
        let why = format!(
            "the pidfd is of process {pid}, and the caller is process {}",
            caller.pid
        );
        return Err(LocalRefusal::Unsupported(why));
    }
    check_process(proc, pid)?;
    let before = cgroup_of(proc, pid).map_err(LocalRefusal::Failed)?;
    let lease = format!("/{}", root.name(below));
    if before != lease && Path::new(&before).starts_with(&lease) {
        // The caller has entered this lease before.
        let at = root.fs().mount().join(before.trim_start_matches('/'));
        return Ok(Entered::at(at.display().to_string()));
    }
    let group = make(root, below, &before).map_err(LocalRefusal::Failed)?;
    let moved = move_to(root, proc, &group, &before, caller, process);
    moved.inspect_err(|_| remove(root, &group))?;
    Ok(Entered::at(root.path(&group).display().to_string()))
}

fn move_to(
    root: &Root,
    proc: &Tree,
    group: &str,
    before: &str,
    caller: &Caller,
    process: &OwnedFd,
) -> Result<(), LocalRefusal> {
    let pid = caller.pid;
    let fail = |why: String| LocalRefusal::Failed(StepError::new("enter", why));
    let procs = root.name(&format!("{group}/cgroup.procs"));
    let written = root.fs().write(&procs, &pid.to_string());
    written.map_err(|error| LocalRefusal::Failed(failed("enter", &error)))?;
    root.passed("enter");
    if !is_alive(process) {
        // The number may belong to another process now.
        let entered = root.members("enter", group).map_err(LocalRefusal::Failed)?;
        if entered.contains(&pid) {
            let back = place_of_another(proc, pid, caller, before);
            let back = format!("{}/cgroup.procs", back.trim_start_matches('/'));
            let back = root
                .fs()
                .write(back.trim_start_matches('/'), &pid.to_string());
            back.map_err(|error| LocalRefusal::Failed(failed("enter", &error)))?;
        }
        return Err(fail(format!("process {pid} ended while it was moved")));
    }
    let now = cgroup_of(proc, pid).map_err(LocalRefusal::Failed)?;
    let wanted = format!("/{}", root.name(group));
    if now != wanted {
        return Err(fail(format!(
            "process {pid} is in {now} and not in {wanted}"
        )));
    }
    Ok(())
}

/// The cgroup to which a process belongs that has just got the caller's number. The process began in the control group
/// of its parent. If its user is the caller's, the process belongs in the caller's old cgroup: the reuse may be a trick
/// to leave it.
fn place_of_another(proc: &Tree, pid: i32, caller: &Caller, before: &str) -> String {
    let status = proc.read(format!("{pid}/status")).unwrap_or_default();
    let user = field(&status, "Uid").and_then(|it| it.split_whitespace().next()?.parse().ok());
    if user == Some(caller.uid) {
        return before.to_owned();
    }
    let parent = field(&status, "PPid").and_then(|it| it.parse().ok());
    { parent.and_then(|it| cgroup_of(proc, it).ok()) }.unwrap_or_else(|| before.to_owned())
}

/// The number of a live process, from its pidfd.
fn pid_of(process: &OwnedFd) -> Result<i32, StepError> {
    match Pidfd::number_of(process.as_fd()) {
        Err(error) => Err(StepError::new("enter", &error).with_errno(error.raw_os_error())),
        Ok(None) => Err(StepError::new("enter", "the descriptor is no pidfd")),
        Ok(Some(pid)) if pid > 0 && is_alive(process) => Ok(pid),
        Ok(Some(_)) => Err(StepError::new("enter", "the process has ended")),
    }
}

/// A pidfd becomes readable when its process ends.
fn is_alive(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO) == Ok(0)
}

fn check_process(proc: &Tree, pid: i32) -> Result<(), LocalRefusal> {
    let status = proc.read(format!("{pid}/status"));
    let status = status.map_err(|error| LocalRefusal::Failed(failed("enter", &error)))?;
    let leader = field(&status, "Tgid").and_then(|it| it.parse().ok());
    if leader != Some(pid) {
        let why = format!("{pid} is a thread; give a pidfd of its process");
        return Err(LocalRefusal::Unsupported(why));
    }
    match field(&status, "State").and_then(|it| it.chars().next()) {
        Some('Z' | 'X') => Err(LocalRefusal::Unsupported(format!(
            "process {pid} has ended"
        ))),
        _ => Ok(()),
    }
}

/// The cgroup v2 of a process, from the mount on.
pub(crate) fn cgroup_of(proc: &Tree, pid: i32) -> Result<String, StepError> {
    let text = proc.read(format!("{pid}/cgroup"));
    let text = text.map_err(|error| failed("enter", &error))?;
    let own = text.lines().find_map(|line| line.strip_prefix("0::"));
    let none = || StepError::new("enter", format_args!("process {pid} is in no cgroup v2"));
    own.map(str::to_owned).ok_or_else(none)
}

/// A field of `/proc/PID/status` or of a file like it.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs
        .into_iter()
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn who_got_the_callers_number_goes_where_it_began() {
        let place = tempfile::tempdir().unwrap();
        let proc = Tree::new(place.path());
        let write = |name: &str, text: &str| {
            let at = place.path().join(name);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            fs::write(at, text).unwrap();
        };
        write("50/cgroup", "0::/system.slice/cron.service\n");
        let caller = Caller {
            uid: 1000,
            pid: 77,
            tenants: Vec::new(),
            is_root: false,
        };
        let place_of = |status: &str| {
            write("77/status", status);
            place_of_another(&proc, 77, &caller, "/user.slice")
        };
        let stranger = place_of("Name:\tcron\nPPid:\t50\nUid:\t0\t0\t0\t0\n");
        assert_eq!(stranger, "/system.slice/cron.service");
        let own = place_of("PPid:\t50\nUid:\t1000\t1000\t1000\t1000\n");
        assert_eq!(own, "/user.slice");
        let orphan = place_of("PPid:\t51\nUid:\t0\t0\t0\t0\n");
        assert_eq!(orphan, "/user.slice");
    }
}
