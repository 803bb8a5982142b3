//! Removes a namespace by a process that may wait for ever in our place.
//!
//! The kernel waits for all I/O of the namespace, without a limit and uninterruptibly (`nvmet_ns_disable`).
//! Meanwhile nobody else should look into the subsystem's `namespaces` directory. `enable` is never set to
//! 0: that waits just as long, and with a lock for which every other subsystem then waits.

use std::{
    fs::{self, File},
    io::Read,
    os::fd::AsFd,
    time::Duration,
};

use fabricbios_kernfs::{Sacrifice, Tree};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::objects::{SILENCE_MAX, Trouble, sacrifice};

/// Longest command line that is compared: a path of configfs and a word.
const COMMAND_BYTES_MAX: u64 = 8192;

const PROGRAM: &str = "rmdir";

/// Removes the namespace at `path`, or goes on waiting for an earlier process that is at it, also one of an
/// earlier run of the node: a second one would only wait behind it. It may be gone already.
pub(super) fn remove(tree: &Tree, path: &str) -> Result<(), Trouble> {
    let words = [PROGRAM.into(), tree.root().join(path).into_os_string()];
    if let Some(pid) = find(&command(tree, path)) {
        wait_for(pid, SILENCE_MAX)?;
    }
    match sacrifice(Sacrifice::new(words)) {
        Err(trouble) if trouble.stuck => Err(trouble),
        // It has ended, so the directory can be looked into.
        Err(trouble) if tree.exists(path)? => Err(trouble),
        _ => Ok(()),
    }
}

/// Whether a process is at it. Then nobody else should look into the directory.
pub(super) fn is_being_removed(tree: &Tree, path: &str) -> bool {
    find(&command(tree, path)).is_some()
}

fn command(tree: &Tree, path: &str) -> Vec<u8> {
    let at = tree.root().join(path);
    [PROGRAM.as_bytes(), at.as_os_str().as_encoded_bytes(), b""].join(&0)
}

/// The process with that command line.
fn find(command: &[u8]) -> Option<Pid> {
    let processes = fs::read_dir("/proc").ok()?;
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .find(|pid| command_line(*pid).is_some_and(|line| line == command))
        .and_then(Pid::from_raw)
}

fn command_line(pid: i32) -> Option<Vec<u8>> {
    let file = File::open(format!("/proc/{pid}/cmdline")).ok()?;
    let mut line = Vec::new();
    file.take(COMMAND_BYTES_MAX).read_to_end(&mut line).ok()?;
    Some(line)
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
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_found_by_its_whole_command_line_and_waited_for() {
        let mut cat = Command::new("cat")
            .arg("-")
            .arg("/dev/null")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&cat);
        let found = || find(b"cat\0-\0/dev/null\0");
        // Until it has become what it is to be.
        while found().is_none() && cat.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(found(), Some(pid));
        assert_eq!(find(b"cat\0-\0/dev/nul\0"), None);
        let trouble = wait_for(pid, Duration::from_millis(1)).unwrap_err();
        assert!(
            trouble.stuck && trouble.detail.contains("earlier try"),
            "{trouble}"
        );
        drop(cat.stdin.take());
        wait_for(pid, Duration::from_secs(60)).unwrap();
        cat.wait().unwrap();
    }
}
