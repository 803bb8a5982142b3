//! Processes of the daemon that are there when it is gone: the watchdog, and the one that writes the journal.

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

/// What ends the daemon, a terminal's Ctrl-C or a service manager's stop, must not end this process first; and nobody
/// waits for this process who waits for the end of what the daemon has open. Called before there is a thread that would
/// take the signals, or a file that would be closed.
pub(crate) fn outlive_the_daemon() -> anyhow::Result<()> {
    close_what_was_inherited().context("close what the daemon had open")?;
    let signals = SigSet::from_iter([SIGTERM, SIGINT, SIGHUP]);
    signals.thread_block().context("block signals")?;
    match setsid() {
        // It leads a session already: that is as well.
        Ok(_) | Err(Errno::PERM) => Ok(()),
        Err(errno) => Err(errno).context("leave the daemon's session"),
    }
}

/// All but standard input, output and error. The daemon's own close themselves; who started it may have left it others.
fn close_what_was_inherited() -> io::Result<()> {
    let open: Vec<RawFd> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for descriptor in open.into_iter().filter(|it| *it > 2) {
        // One of them was that of the directory.
        close(descriptor).ok();
    }
    Ok(())
}

/// Locks the file for this process. `Some`: that process has it locked. A lock of fcntl(2), because that one tells its
/// holder; it goes with any descriptor of the file that this process closes.
pub(crate) fn try_lock(file: impl AsFd) -> anyhow::Result<Option<Pid>> {
    loop {
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(None),
            Err(Errno::ACCESS | Errno::AGAIN) => {}
            Err(errno) => return Err(errno).context("lock it"),
        }
        let holder = fcntl_getlk(&file, &Flock::from(FlockType::WriteLock));
        // It may have been given back between the two.
        if let Some(lock) = holder.context("ask who has it locked")? {
            let pid = lock.pid.context("its holder is in another PID namespace")?;
            return Ok(Some(pid));
        }
    }
}

/// Waits until the process of that descriptor, with all of its threads, has ended. False: it has not, after so long.
pub(crate) fn ends_within(process: impl AsFd, patience: Duration) -> io::Result<bool> {
    let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    Ok(retry_on_intr(|| poll(&mut ended, Some(&patience)))? > 0)
}
