//! The lock that one watchdog at a time has.
//!
//! The daemon opens the file and passes it as standard output, because opening a file may wait for a disk.

use std::{
    io::{Stdout, stdout},
    thread,
    time::Duration,
};

use anyhow::Context;
use rustix::{
    fs::{FlockOperation, fcntl_lock},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use crate::detached::{ends_within, try_lock};

/// How long a killed watchdog of an earlier run may take to end. One that is stuck in the kernel does nothing when it
/// returns.
const TAKE_OVER: Duration = Duration::from_secs(5);

/// Kills the watchdog that has the lock, and takes the lock.
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

/// Takes the lock on a thread as soon as it is free: the next watchdog finds this one by the lock.
fn lock_when_it_is_gone() -> anyhow::Result<()> {
    thread::Builder::new()
        .name("lock".into())
        .spawn(|| fcntl_lock(stdout(), FlockOperation::LockExclusive))
        .context("start a thread")?;
    Ok(())
}

/// Kills the process that has the lock; true if it is gone. A later process with the same pid is not killed.
fn end(file: &Stdout, holder: Pid) -> anyhow::Result<bool> {
    let descriptor = match pidfd_open(holder, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(true),
        opened => opened.context("open its descriptor")?,
    };
    if try_lock(file)? != Some(holder) {
        return Ok(true);
    }
    pidfd_send_signal(&descriptor, Signal::KILL).context("kill it")?;
    Ok(ends_within(&descriptor, TAKE_OVER)?)
}
