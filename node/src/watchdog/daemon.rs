//! The daemon's process, for its watchdog: stops it, duplicates its descriptors, continues it and kills it.
//!
//! All calls use a pidfd, so a later process with the same pid is never affected.

use std::{
    fs, io,
    os::fd::OwnedFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use fabricbios_helper::Pidfd;
use fabricbios_lease::StepError;
use nix::{
    errno::Errno,
    sys::signal::Signal,
    unistd::{Pid, getppid},
};

/// How long threads may take to stop, except those that wait for a disk.
const STOP: Duration = Duration::from_secs(1);
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// Longest single wait for the end of the daemon; the watchdog repeats the wait.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// How long a killed process may take to disappear.
const END: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Daemon {
    process: Arc<Pidfd>,
    pid: Pid,
}

/// A stopped daemon. A drop continues the daemon, unless it was stopped before.
#[derive(Debug)]
pub(super) struct Stopped<'a> {
    daemon: &'a Daemon,
    /// The daemon was stopped before this call, so a drop does not continue it.
    before: bool,
}

impl Daemon {
    /// The parent process; `None` if the parent is gone already.
    pub(super) fn parent() -> anyhow::Result<Option<Self>> {
        let pid = getppid();
        let process = match Pidfd::open(pid) {
            Err(Errno::ESRCH) => return Ok(None),
            opened => Arc::new(opened.context("open the daemon's process")?),
        };
        // While the daemon is the parent, no other process has its pid.
        Ok((getppid() == pid).then_some(Self { process, pid }))
    }

    /// Its pid.
    pub(super) fn number(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    /// Waits until all of its threads have ended and its descriptors are closed.
    pub(super) fn wait(&self) -> io::Result<()> {
        while !self.process.ends_within(LOOK_AGAIN)? {}
        Ok(())
    }

    /// Stops the daemon and waits until none of its threads runs. A thread that waits in the kernel for a disk or a
    /// device counts as stopped: it stops before it runs again.
    pub(super) fn stop(&self) -> Result<Stopped<'_>, StepError> {
        let failed = |what: &str| StepError::new("stop the daemon", what);
        let before = self.threads().any(|(_, state)| is_stopped(state)) && self.is_still();
        if !before {
            match self.process.signal(Signal::SIGSTOP) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(errno) => return Err(failed(&errno.to_string())),
            }
        }
        let stopped = Stopped {
            daemon: self,
            before,
        };
        let until = Instant::now() + STOP;
        while !self.is_still() {
            if Instant::now() > until {
                return Err(failed("SIGSTOP does not stop it"));
            }
            thread::sleep(BETWEEN_LOOKS);
        }
        Ok(stopped)
    }

    fn is_still(&self) -> bool {
        let mut threads = self.threads();
        threads.all(|(_, state)| is_stopped(state) || matches!(state, 'D' | 'Z' | 'X'))
    }

    /// Its threads and their states, as in proc_pid_stat(5).
    fn threads(&self) -> impl Iterator<Item = (Pid, char)> {
        let tasks = format!("/proc/{}/task", self.number());
        let entries = fs::read_dir(&tasks).into_iter().flatten().flatten();
        entries.filter_map(move |entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // The name in front of the state may contain any character.
            let (_, behind_name) = stat.rsplit_once(") ")?;
            Some((Pid::from_raw(number), behind_name.chars().next()?))
        })
    }

    /// True if the daemon was killed: its remaining threads wait in the kernel and never run again.
    pub(super) fn is_killed(&self) -> bool {
        self.threads()
            .any(|(thread, state)| thread == self.pid && matches!(state, 'Z' | 'X'))
    }

    /// Duplicates one of its descriptors. A process whose first thread has ended keeps its descriptors while another
    /// thread lives.
    pub(super) fn descriptor(&self, number: i32) -> Result<OwnedFd, StepError> {
        let mut refused = match self.process.descriptor(number) {
            Ok(descriptor) => return Ok(descriptor),
            Err(errno) => errno,
        };
        if refused == Errno::ESRCH || refused == Errno::EBADF {
            for (thread, _) in self.threads() {
                match self.descriptor_of(thread, number) {
                    Ok(Some(descriptor)) => return Ok(descriptor),
                    Ok(None) => {}
                    Err(errno) => refused = errno,
                }
            }
        }
        let hint = match refused {
            Errno::EPERM => " (it takes CAP_SYS_PTRACE, and no kernel.yama.ptrace_scope of 3)",
            Errno::EINVAL => " (of a process that is killed it takes Linux 6.9)",
            _ => "",
        };
        let what = format_args!("descriptor {number} of the daemon: {refused}{hint}");
        Err(StepError::new("pidfd_getfd", what))
    }

    fn descriptor_of(&self, thread: Pid, number: i32) -> Result<Option<OwnedFd>, Errno> {
        let thread = match Pidfd::open_thread(thread) {
            Err(Errno::ESRCH) => return Ok(None),
            opened => opened?,
        };
        // While the process exists, this thread id belonged to one of its threads.
        if self.process.ends_within(Duration::ZERO).unwrap_or(true) {
            return Ok(None);
        }
        match thread.descriptor(number) {
            Err(Errno::ESRCH | Errno::EBADF) => Ok(None),
            got => got.map(Some),
        }
    }

    /// Kills the daemon; `false`: a thread waits in the kernel, so the process is not gone yet.
    pub(super) fn kill(&self) -> io::Result<bool> {
        match self.process.signal(Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.process.ends_within(END)
    }
}

fn is_stopped(state: char) -> bool {
    matches!(state, 'T' | 't')
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        if !self.before
            && let Err(errno) = self.daemon.process.signal(Signal::SIGCONT)
        {
            tracing::warn!(%errno, "watchdog: the daemon does not go on");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Read, Write},
        os::fd::AsRawFd,
        process::{Child, Command, Stdio},
    };

    use super::*;

    /// A process that repeats its input.
    fn cat() -> (Child, Daemon) {
        let mut cat = Command::new("cat");
        let child = cat.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = child.spawn().unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap());
        let process = Arc::new(Pidfd::open(pid).unwrap());
        (child, Daemon { process, pid })
    }

    fn says_what_it_is_told(child: &mut Child) {
        child
            .stdin
            .as_mut()
            .unwrap()
            .write_all(b"message\n")
            .unwrap();
        let mut line = String::new();
        let output = child.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, "message\n");
    }

    #[test]
    fn what_the_watchdog_stopped_goes_on_and_what_somebody_else_stopped_does_not() {
        let (mut child, daemon) = cat();
        says_what_it_is_told(&mut child);
        let stopped = daemon.stop().unwrap();
        assert!(daemon.threads().all(|(_, state)| state == 'T'));
        // A second stop, which found the daemon stopped, continues nothing.
        drop(daemon.stop().unwrap());
        assert!(daemon.threads().all(|(_, state)| state == 'T'));
        drop(stopped);
        says_what_it_is_told(&mut child);
        assert!(daemon.kill().unwrap());
        child.wait().unwrap();
    }

    #[test]
    fn a_descriptor_of_a_stopped_process_is_duplicated() {
        let (mut child, daemon) = cat();
        let stopped = daemon.stop().unwrap();
        let duplicate = daemon.descriptor(1);
        // Some systems refuse pidfd_getfd to all processes; then the test checks this error.
        if let Err(refused) = &duplicate {
            assert!(
                refused.detail.contains("Operation not permitted"),
                "{refused}"
            );
            child.kill().unwrap();
            child.wait().unwrap();
            return;
        }
        fs::File::from(duplicate.unwrap())
            .write_all(b"more")
            .unwrap();
        assert!(daemon.descriptor(99).is_err());
        drop(stopped);
        drop(child.stdin.take());
        let mut said = String::new();
        child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert_eq!(said, "more");
        child.wait().unwrap();
    }

    #[test]
    fn a_killed_process_has_no_descriptors_and_nobody_takes_its_number_for_it() {
        let (mut child, daemon) = cat();
        let number = child.stdin.as_ref().unwrap().as_raw_fd();
        assert!(!daemon.is_killed());
        assert!(daemon.kill().unwrap());
        assert!(daemon.is_killed(), "nobody has waited for it yet");
        assert!(daemon.descriptor(number).is_err());
        daemon.wait().unwrap();
        child.wait().unwrap();
        assert!(daemon.kill().unwrap() && daemon.descriptor(0).is_err());
    }
}
