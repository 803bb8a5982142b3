//! What the watchdog tells: the daemon, if that hears it; and the next one, of why there is no daemon.

use std::{
    fmt, io,
    os::fd::AsRawFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::Duration,
};

use fabricbios_wire::LeaseId;
use nix::sys::socket::{MsgFlags, send};

/// What a stopped daemon has not read; more is dropped, and the proofs of its cuts say less.
const UNREAD_BYTES_MAX: usize = 1 << 20;

/// How long the end of a daemon waits for its reason to be written, on a disk that may be stuck.
const REASON: Duration = Duration::from_millis(200);

/// Lines to the daemon. None waits for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Report(Arc<Mutex<Vec<u8>>>);

impl Report {
    /// Says a line, which has one of the words below first, at once.
    pub(super) fn tell(&self, line: impl fmt::Display) {
        self.say(line);
        self.flush();
    }

    /// It has put the lease's queue pairs in ERR.
    pub(super) fn cut(&self, lease: LeaseId) {
        self.say(format_args!(
            "{CUT} {lease} the watchdog had put its queue pairs in ERR: this daemon had cut nothing for 2 s"
        ));
    }

    fn say(&self, line: impl fmt::Display) {
        let mut unread = self.lock();
        if unread.len() < UNREAD_BYTES_MAX {
            unread.extend_from_slice(format!("{line}\n").as_bytes());
        }
    }

    /// As much as there is room for.
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
                // It is full, or nobody is there any more.
                Err(_) => return,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// It watches, in the place of the one before.
pub(super) const WATCHING: &str = "watching";
/// It is well.
pub(super) const WELL: &str = "well";
/// It may not do what it is there for, and could only kill the daemon; why.
pub(super) const REFUSED: &str = "refused";
/// It has cut a lease.
pub(super) const CUT: &str = "cut";

/// Writes it where the next daemon looks, into the locked file.
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
