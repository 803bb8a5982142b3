//! Stops all processes of a user for a while.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    thread,
    time::{Duration, Instant},
};

use fabricbios_helper::{Failure, Pidfd};
use nix::{
    errno::Errno,
    fcntl::OFlag,
    libc,
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{ForkResult, Pid, Uid, fork, pipe2, setresuid},
};

use super::{Holder, holder_of, user_of};
use crate::{
    Process,
    holders::{pids, threads},
    state_of,
};

/// Signalled processes have stopped after this time, unless the machine is very slow.
const STILL_WITHIN: Duration = Duration::from_secs(2);

const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Most tries to signal: the user can stop or kill the process that sends the signal.
const TRIES: u32 = 8;

/// The processes of these users.
pub(super) fn processes_of(users: &BTreeSet<u32>) -> impl Iterator<Item = Holder> {
    // Of very many processes of others only the user is read.
    let its = |pid: &i32| user_of(*pid).is_some_and(|user| users.contains(&user));
    let found = pids().filter(its).filter_map(holder_of);
    found.filter(|it| users.contains(&it.user))
}

/// Keeps all processes of some users stopped while this value and this process exist.
pub(super) struct Standstill {
    pub(super) processes: Vec<Holder>,
    /// The other end closes when this process ends, in whatever way.
    lives: Option<OwnedFd>,
    /// The process that continues the stopped processes then.
    guardian: Pid,
}

impl Standstill {
    pub(super) fn of(users: &BTreeSet<u32>) -> Result<Self, Failure> {
        // Processes that were stopped before stay stopped.
        let stopped = processes_of(users).filter(|it| state_of(it.process.pid) == Some('T'));
        let stopped: Vec<Process> = stopped.map(|it| it.process).collect();
        let (ends, lives) = pipe2(OFlag::O_CLOEXEC).map_err(io::Error::from)?;
        // SAFETY: a helper has one thread, so no lock is held and no state is half changed in the new process.
        let guardian = match unsafe { fork() }.map_err(io::Error::from)? {
            ForkResult::Child => {
                drop(lives);
                File::from(ends).read_exact(&mut [0]).ok();
                let_go_on(users, &stopped);
                // SAFETY: no exit handler of the helper may run at the end of this process.
                unsafe { libc::_exit(0) }
            }
            ForkResult::Parent { child } => child,
        };
        let mut still = Self {
            processes: Vec::new(),
            lives: Some(lives),
            guardian,
        };
        for &user in users {
            stop(user)?;
        }
        let began = Instant::now();
        loop {
            still.processes = processes_of(users).collect();
            if still.processes.iter().all(stands) || began.elapsed() > STILL_WITHIN {
                return Ok(still);
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    pub(super) fn has(&self, holder: &Holder) -> bool {
        let mut processes = self.processes.iter();
        processes.any(|it| it.process == holder.process)
    }
}

impl Drop for Standstill {
    fn drop(&mut self) {
        self.lives = None;
        waitpid(self.guardian, None).ok();
    }
}

fn stands(holder: &Holder) -> bool {
    let stands = |state| matches!(state, None | Some('T' | 't' | 'D' | 'Z' | 'X'));
    threads(holder.process.pid).map(state_of).all(stands)
}

/// Continues the processes of these users, except those that were stopped before.
fn let_go_on(users: &BTreeSet<u32>, stopped: &[Process]) {
    for Holder { process, .. } in processes_of(users) {
        if !stopped.contains(&process)
            && let Ok(opened) = Pidfd::open(Pid::from_raw(process.pid))
            && Process::of(process.pid) == Some(process)
        {
            opened.signal(Signal::SIGCONT).ok();
        }
    }
}

/// Stops all processes of a user in one call. During this call no process of the user can start another one.
fn stop(user: u32) -> Result<(), Failure> {
    let uid = Uid::from_raw(user);
    if uid.is_root() {
        return Err(Failure::from("root's processes go on".to_owned()));
    }
    for _ in 0..TRIES {
        // SAFETY: the new process only makes system calls, and ends.
        match unsafe { fork() }.map_err(io::Error::from)? {
            ForkResult::Child => {
                // SAFETY: the call takes no pointer. It closes all descriptors, so nothing of this process is left to
                // the user.
                unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
                let all = Pid::from_raw(-1);
                let sent = setresuid(uid, uid, uid).and_then(|()| kill(all, Signal::SIGSTOP));
                let is_done = matches!(sent, Ok(()) | Err(Errno::ESRCH));
                // SAFETY: no exit handler of the helper may run at the end of this process.
                unsafe { libc::_exit(i32::from(!is_done)) }
            }
            ForkResult::Parent { child } => {
                let ended = waitpid(child, Some(WaitPidFlag::WUNTRACED));
                if matches!(ended, Ok(WaitStatus::Exited(_, 0))) {
                    return Ok(());
                }
                if matches!(ended, Ok(WaitStatus::Stopped(..))) {
                    kill(child, Signal::SIGKILL).ok();
                    waitpid(child, None).ok();
                }
            }
        }
    }
    let why = format!("the processes of user {user} could not be stopped in {TRIES} tries");
    Err(Failure::from(why))
}

#[cfg(test)]
mod tests {
    use super::{super::tests::child, *};

    #[test]
    fn a_helper_that_is_killed_leaves_nobody_standing() {
        const USER: u32 = 4735;
        let mut waits = child(USER, File::open("/dev/null").unwrap().into());
        // SAFETY: no other thread of this process holds a lock that the new process takes: all wait for this test.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let still = Standstill::of(&[USER].into()).unwrap();
                let is_stopped = still.processes.len() == 1 && still.processes.iter().all(stands);
                let end = match is_stopped {
                    true => Signal::SIGKILL,
                    false => Signal::SIGABRT,
                };
                kill(Pid::this(), end).ok();
            }
            ForkResult::Parent { child } => {
                let ended = waitpid(child, None).unwrap();
                assert_eq!(ended, WaitStatus::Signaled(child, Signal::SIGKILL, false));
            }
        }
        while state_of(waits.id().cast_signed()) != Some('S') {
            thread::yield_now();
        }
        waits.kill().unwrap();
        waits.wait().unwrap();
    }

    #[test]
    fn roots_processes_never_stand_still() {
        stop(0).unwrap_err();
    }
}
