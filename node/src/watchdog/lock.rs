//! The lock of the current watchdog: one watchdog at a time has it.
//!
//! The daemon opens the file and passes it as standard output, because opening a file may wait for a disk.

use std::{
    io::{Stdout, stdout},
    thread,
    time::Duration,
};

use anyhow::{Context, ensure};
use fabricbios_helper::{FileBytes, Pidfd};
use nix::{errno::Errno, sys::signal::Signal, unistd::Pid};

/// How long a killed watchdog of an earlier run may take to end. A killed watchdog that is stuck in the kernel does
/// nothing more when the kernel call returns.
const TAKE_OVER: Duration = Duration::from_secs(5);

/// Kills the watchdog that has the lock, and takes the lock.
pub(super) fn take_over() -> anyhow::Result<()> {
    let file = stdout();
    while let Some(holder) = FileBytes::ALL.try_lock(&file)? {
        let number = holder.as_raw();
        ensure!(
            number != 0,
            "the earlier watchdog is in another PID namespace"
        );
        let ended = end(&file, holder);
        if !ended.with_context(|| format!("end the earlier watchdog, {number}"))? {
            tracing::error!(
                "watchdog: the earlier watchdog, {number}, was killed and is stuck in the kernel; going on beside it"
            );
            return lock_when_it_is_gone();
        }
    }
    Ok(())
}

/// Takes the lock on a thread as soon as it is free, so that the next watchdog finds this watchdog by the lock.
fn lock_when_it_is_gone() -> anyhow::Result<()> {
    thread::Builder::new()
        .name("lock".into())
        .spawn(|| FileBytes::ALL.lock(stdout()))
        .context("start a thread")?;
    Ok(())
}

/// Kills the process that has the lock; true if the process is gone. A later process with the same pid is not killed.
fn end(file: &Stdout, holder: Pid) -> anyhow::Result<bool> {
    let descriptor = match Pidfd::open(holder) {
        Err(Errno::ESRCH) => return Ok(true),
        opened => opened.context("open its descriptor")?,
    };
    if FileBytes::ALL.try_lock(file)? != Some(holder) {
        return Ok(true);
    }
    descriptor.signal(Signal::SIGKILL).context("kill it")?;
    Ok(descriptor.ends_within(TAKE_OVER)?)
}
