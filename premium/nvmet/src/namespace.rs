//! Removes a namespace by a process that may wait for ever in our place.
//!
//! The kernel waits for all I/O of the namespace, without a limit and uninterruptibly (`nvmet_ns_disable`).
//! Meanwhile nobody else should look into the subsystem's `namespaces` directory. `enable` is never set to
//! 0: that waits just as long, and with a lock for which every other subsystem then waits.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read},
    os::fd::AsFd,
    time::Duration,
};

use fabricbios_kernfs::{Sacrifice, Tree};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::geteuid,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::objects::{SILENCE_MAX, Trouble, sacrifice};

/// Most of an environment that is looked at.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 16;

const PROGRAM: &str = "rmdir";

/// In the environment of such a process: the path of its namespace. A command line could be anybody's.
const VARIABLE: &str = "FABRICBIOS_REMOVES";

/// Removes the namespace at `path`, or goes on waiting for an earlier process that is at it, also one of an
/// earlier run of the node: a second one would only wait behind it. It may be gone already.
pub(super) fn remove(tree: &Tree, path: &str) -> Result<(), Trouble> {
    let at = tree.root().join(path).into_os_string();
    if let Some(pid) = find(PROGRAM, &mark(tree, path)) {
        wait_for(pid, SILENCE_MAX)?;
    }
    let process = Sacrifice::new([OsString::from(PROGRAM), at.clone()]);
    match sacrifice(process.with_variable(VARIABLE, at)) {
        Err(trouble) if trouble.stuck => Err(trouble),
        // It has ended, so the directory can be looked into.
        Err(trouble) if tree.exists(path)? => Err(trouble),
        _ => Ok(()),
    }
}

/// Whether a process is at it. Then nobody else should look into the directory.
pub(super) fn is_being_removed(tree: &Tree, path: &str) -> bool {
    find(PROGRAM, &mark(tree, path)).is_some()
}

fn mark(tree: &Tree, path: &str) -> Vec<u8> {
    let at = tree.root().join(path);
    [VARIABLE.as_bytes(), b"=", at.as_os_str().as_encoded_bytes()].concat()
}

/// The process of that name that has the mark and runs as this one does: nobody else can have made it, but who
/// could do as he likes anyway. Of the others nothing is read that could keep the reader waiting.
fn find(name: &str, mark: &[u8]) -> Option<Pid> {
    let processes = fs::read_dir("/proc").ok()?;
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_ours(*pid, name))
        .find(|pid| has(*pid, mark).unwrap_or(false))
        .and_then(Pid::from_raw)
}

/// `/proc/PID/status`: the name, and four times the user (real, effective, saved, of files).
fn is_ours(pid: i32, name: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let us = geteuid().as_raw().to_string();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let mut users = field("Uid:").unwrap_or_default().split_whitespace();
    field("Name:").is_some_and(|found| found.trim() == name)
        && users.clone().count() == 4
        && users.all(|user| user == us)
}

fn has(pid: i32, mark: &[u8]) -> io::Result<bool> {
    let file = File::open(format!("/proc/{pid}/environ"))?;
    let mut text = Vec::new();
    file.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text
        .split(|byte| *byte == 0)
        .any(|variable| variable == mark))
}

/// Until the process has ended.
fn wait_for(pid: Pid, patience: Duration) -> Result<(), Trouble> {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        return Ok(());
    };
    let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
    let mut watched = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    match poll(&mut watched, timeout) {
        Ok(0) | Err(Errno::EINTR) => Err(still_waits(pid, patience)),
        Ok(_) => Ok(()),
        Err(errno) => Err(Trouble::new(format_args!(
            "wait for process {pid:?}: {errno}"
        ))),
    }
}

fn still_waits(pid: Pid, patience: Duration) -> Trouble {
    let pid = pid.as_raw_nonzero();
    let place = fs::read_to_string(format!("/proc/{pid}/wchan"));
    let place = place.unwrap_or_else(|_hidden| "the kernel".to_owned());
    Trouble {
        stuck: true,
        ..Trouble::new(format_args!(
            "no progress for {} ms: process {pid}, started by an earlier try, waits in {place}",
            patience.as_millis()
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::CommandExt,
        process::{Child, Command, Stdio},
    };

    use super::*;

    /// Until it has become what it is to be.
    fn started(command: &mut Command) -> Child {
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let comm = format!("/proc/{}/comm", child.id());
        while fs::read_to_string(&comm).is_ok_and(|name| name != "cat\n")
            && child.try_wait().unwrap().is_none()
        {
            std::thread::yield_now();
        }
        child
    }

    #[test]
    fn a_process_is_found_by_the_mark_that_it_was_given_and_waited_for() {
        // Another run of this test may have one at the same time.
        let at = format!("/{}/1", std::process::id());
        let mut cat = started(Command::new("cat").env(VARIABLE, &at));
        let pid = Pid::from_child(&cat);
        let mark = |path: &str| format!("{VARIABLE}={path}").into_bytes();
        assert_eq!(find("cat", &mark(&at)), Some(pid));
        assert_eq!(find("cat", &mark(&format!("{at}2"))), None);
        assert_eq!(find("cat", &mark(at.trim_end_matches('1'))), None);
        assert_eq!(find("rmdir", &mark(&at)), None);
        let trouble = wait_for(pid, Duration::from_millis(1)).unwrap_err();
        assert!(
            trouble.stuck && trouble.detail.contains("earlier try"),
            "{trouble}"
        );
        drop(cat.stdin.take());
        wait_for(pid, Duration::from_secs(60)).unwrap();
        cat.wait().unwrap();
    }

    #[test]
    fn a_process_of_another_user_is_not_ours_whatever_it_has() {
        if !geteuid().is_root() {
            println!("skipped: only root can start one as another user");
            return;
        }
        let mut theirs = started(Command::new("cat").env(VARIABLE, "/at/2").uid(65_534));
        assert_eq!(find("cat", format!("{VARIABLE}=/at/2").as_bytes()), None);
        drop(theirs.stdin.take());
        theirs.wait().unwrap();
    }
}
