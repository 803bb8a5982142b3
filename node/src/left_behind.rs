//! Processes of the daemon that are there when it is gone: the watchdog, and the one that writes the journal.

use std::{fs, io, os::fd::RawFd};

use anyhow::Context;
use nix::{
    errno::Errno,
    sys::signal::{SIGHUP, SIGINT, SIGTERM, SigSet},
    unistd::{close, setsid},
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
        Ok(_) | Err(Errno::EPERM) => Ok(()),
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
