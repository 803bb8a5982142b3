//! Processes that outlive the daemon: the watchdog, the journal's writer and the supervisor of helper calls.

use std::{fs, io, os::fd::RawFd};

use anyhow::Context;
use nix::{
    errno::Errno,
    sys::signal::{SIGHUP, SIGINT, SIGTERM, SigSet},
    unistd::{close, setsid},
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
        Ok(_) | Err(Errno::EPERM) => Ok(()),
        Err(errno) => Err(errno).context("leave the daemon's session"),
    }
}

/// Closes all descriptors except standard input, output and error. The daemon's own descriptors are close-on-exec, but
/// the program that started the daemon may have passed others on.
fn close_what_was_inherited() -> io::Result<()> {
    let open: Vec<RawFd> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for descriptor in open.into_iter().filter(|it| *it > 2) {
        // One entry is the descriptor of the directory itself, which is closed already.
        close(descriptor).ok();
    }
    Ok(())
}
