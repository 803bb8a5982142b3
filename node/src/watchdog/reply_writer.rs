//! Sends the watchdog's replies to the daemon, and leaves the reason of a kill for the next daemon.

use std::{
    fmt, io,
    os::fd::AsRawFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::Duration,
};

use fabricbios_wire::LeaseId;
use nix::sys::socket::{MsgFlags, send};

/// Most bytes that wait for a stopped daemon. Further replies are dropped, and the daemon's proofs then lack them.
const UNREAD_BYTES_MAX: usize = 1 << 20;

/// How long a kill waits until its reason is written to a disk that may be stuck.
const REASON: Duration = Duration::from_millis(200);

/// Lines to the daemon. Sending never blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplyWriter(Arc<Mutex<Vec<u8>>>);

impl ReplyWriter {
    /// Sends a line now. Its first word is one of the constants below.
    pub(super) fn tell(&self, line: impl fmt::Display) {
        self.send(line);
        self.flush();
    }

    /// Adds a line: the watchdog has put the lease's queue pairs in ERR.
    pub(super) fn cut(&self, lease: LeaseId) {
        self.send(format_args!(
            "{CUT} {lease} the watchdog had put its queue pairs in ERR: this daemon had cut nothing for 2 s"
        ));
    }

    fn send(&self, line: impl fmt::Display) {
        let mut unread = self.lock();
        if unread.len() < UNREAD_BYTES_MAX {
            unread.extend_from_slice(format!("{line}\n").as_bytes());
        }
    }

    /// Sends as much as the socket takes.
    pub(super) fn flush(&self) {
        let mut unread = self.lock();
        let socket = io::stdin().as_raw_fd();
        while !unread.is_empty() {
            match send(
                socket,
                &unread,
                MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
            ) {
                Ok(sent) => drop(unread.drain(..sent)),
                // The socket is full, or the daemon is gone.
                Err(_) => return,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The watchdog watches, in place of the previous watchdog.
pub(super) const WATCHING: &str = "watching";
/// The reply to a ping.
pub(super) const WELL: &str = "well";
/// The watchdog may not duplicate descriptors, so it could only kill the daemon. The reason follows.
pub(super) const REFUSED: &str = "refused";
/// The watchdog has cut a lease.
pub(super) const CUT: &str = "cut";

/// Writes the reason of a kill into the lock file, where the next daemon reads it.
pub(super) fn leave_reason(reason: String) {
    let (tell, told) = mpsc::channel();
    let write = move || {
        let written = nix::sys::uio::pwrite(io::stdout(), reason.as_bytes(), 0);
        written
            .inspect_err(|errno| tracing::error!(%errno, "watchdog: the reason is lost"))
            .ok();
        tell.send(()).ok();
    };
    let started = thread::Builder::new().name("reason".into()).spawn(write);
    if started.is_ok() {
        told.recv_timeout(REASON).ok();
    }
}
