//! Processes that outlive the daemon: the watchdog, the journal's writer and the supervisor of helper calls.

use std::{
    fs, io,
    os::fd::{AsFd, RawFd},
    time::Duration,
};

use anyhow::Context;
use nix::{
    sys::signal::{SIGHUP, SIGINT, SIGTERM, SigSet},
    unistd::close,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FlockOperation, fcntl_lock},
    io::{Errno, retry_on_intr},
    process::{Flock, FlockType, Pid, fcntl_getlk, setsid},
};

/// Detaches this process from the daemon: signals that stop the daemon (Ctrl-C, a service manager's stop) do not end
/// it, and it keeps none of the daemon's inherited descriptors open. Call it before threads are started or files
/// opened.
pub(crate) fn outlive_the_daemon() -> anyhow::Result<()> {
    close_what_was_inherited().context("close what the daemon had open")?;
    let signals = SigSet::from_iter([SIGTERM, SIGINT, SIGHUP]);
    signals.thread_block().context("block signals")?;
    match setsid() {
        // The process leads a session already.
        Ok(_) | Err(Errno::PERM) => Ok(()),
        Err(errno) => Err(errno).context("leave the daemon's session"),
    }
}

/// Closes all descriptors except standard input, output and error. The daemon's own are close-on-exec; the process that
/// started the daemon may have left others.
fn close_what_was_inherited() -> io::Result<()> {
    let open: Vec<RawFd> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for descriptor in open.into_iter().filter(|it| *it > 2) {
        // One of them belonged to the directory and is closed already.
        close(descriptor).ok();
    }
    Ok(())
}

/// Locks the file for this process; `Some`: the process that has the lock. Uses fcntl(2), which tells the holder. The
/// lock is lost when this process closes any descriptor of the file.
pub(crate) fn try_lock(file: impl AsFd) -> anyhow::Result<Option<Pid>> {
    loop {
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(None),
            Err(Errno::ACCESS | Errno::AGAIN) => {}
            Err(errno) => return Err(errno).context("lock it"),
        }
        let holder = fcntl_getlk(&file, &Flock::from(FlockType::WriteLock));
        // The lock may have been released between the two calls.
        if let Some(lock) = holder.context("ask who has it locked")? {
            let pid = lock.pid.context("its holder is in another PID namespace")?;
            return Ok(Some(pid));
        }
    }
}

/// Waits until the process of this pidfd has ended with all of its threads. False: it has not ended in time.
pub(crate) fn ends_within(process: impl AsFd, patience: Duration) -> io::Result<bool> {
    let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    Ok(retry_on_intr(|| poll(&mut ended, Some(&patience)))? > 0)
}
