//! One watchdog at a time: the one that has the file locked.
//!
//! The daemon has opened it, and it is this process's standard output: to open a file may be to wait for a disk.

use std::{
    io::{Stdout, stdout},
    thread,
    time::Duration,
};

use anyhow::Context;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FlockOperation, fcntl_lock},
    io::Errno,
    process::{
        Flock, FlockType, Pid, PidfdFlags, Signal, fcntl_getlk, pidfd_open, pidfd_send_signal,
    },
};

/// How long a watchdog of an earlier run may take to be gone, once killed. One that is stuck in the kernel
/// does nothing more when it comes back.
const TAKE_OVER: Duration = Duration::from_secs(5);

/// Locks the file, and ends the watchdog that has it.
pub(super) fn take_over() -> anyhow::Result<()> {
    let file = stdout();
    while let Some(holder) = try_lock(&file)? {
        let number = holder.as_raw_nonzero();
        let ended = end(&file, holder);
        if !ended.with_context(|| format!("end the earlier watchdog, {number}"))? {
            tracing::error!(
                "watchdog: the earlier one, {number}, is killed and stuck in the kernel; going on beside it"
            );
            return lock_when_it_is_gone();
        }
    }
    Ok(())
}

/// Who has it, if somebody else does. A lock of fcntl(2), because that one tells its holder.
fn try_lock(file: &Stdout) -> anyhow::Result<Option<Pid>> {
    loop {
        match fcntl_lock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(None),
            Err(Errno::ACCESS | Errno::AGAIN) => {}
            Err(errno) => return Err(errno).context("lock it"),
        }
        let holder = fcntl_getlk(file, &Flock::from(FlockType::WriteLock));
        // It may have been given back between the two.
        if let Some(lock) = holder.context("ask who has it locked")? {
            let pid = lock.pid.context("its holder is in another PID namespace")?;
            return Ok(Some(pid));
        }
    }
}

/// The next watchdog finds this one by the lock.
fn lock_when_it_is_gone() -> anyhow::Result<()> {
    thread::Builder::new()
        .name("lock".into())
        .spawn(|| fcntl_lock(stdout(), FlockOperation::LockExclusive))
        .context("start a thread")?;
    Ok(())
}

/// Kills the process that has the lock, and tells whether it is gone; whoever has got its number meanwhile is
/// left alone.
fn end(file: &Stdout, holder: Pid) -> anyhow::Result<bool> {
    let descriptor = match pidfd_open(holder, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(true),
        opened => opened.context("open its descriptor")?,
    };
    if try_lock(file)? != Some(holder) {
        return Ok(true);
    }
    pidfd_send_signal(&descriptor, Signal::KILL).context("kill it")?;
    let mut gone = [PollFd::new(&descriptor, PollFlags::IN)];
    Ok(poll(&mut gone, Some(&Timespec::try_from(TAKE_OVER)?))? > 0)
}
