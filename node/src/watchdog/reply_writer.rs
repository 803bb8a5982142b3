//! Sends the watchdog's replies to the daemon, and leaves the reason of a kill for the next daemon.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::Duration,
};

use fabricbios_channel::Outgoing;
use nix::sys::socket::MsgFlags;

use super::message::{CHANNEL, WatchdogReply};

/// Most bytes that wait for a stopped daemon. Further replies are dropped, and the daemon's proofs then lack them.
const UNREAD_BYTES_MAX: usize = 1 << 20;

/// How long a kill waits until its reason is written to a disk that may be stuck.
const REASON: Duration = Duration::from_millis(200);

/// Replies to the daemon. Sending never blocks.
#[derive(Clone, Debug)]
pub(super) struct ReplyWriter(Arc<Mutex<Outgoing>>);

impl ReplyWriter {
    /// No replies yet.
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Outgoing::new(CHANNEL))))
    }

    /// Sends a reply now.
    pub(super) fn tell(&self, reply: &WatchdogReply) {
        self.add(reply);
        self.flush();
    }

    /// Adds a reply, which the next [`ReplyWriter::flush`] sends.
    pub(super) fn add(&self, reply: &WatchdogReply) {
        let mut unread = self.lock();
        if unread.unsent().len() < UNREAD_BYTES_MAX
            && let Err(error) = unread.push(reply)
        {
            tracing::error!(%error, "watchdog: a reply is lost");
        }
    }

    /// Sends as much as the socket takes.
    pub(super) fn flush(&self) {
        // Fails if the daemon is gone.
        self.lock()
            .send_to(io::stdin(), None, MsgFlags::MSG_DONTWAIT)
            .ok();
    }

    fn lock(&self) -> MutexGuard<'_, Outgoing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the reason of a kill into the lock file, where the next daemon reads it.
pub(super) fn leave_reason(reason: String) {
    let (tell, told) = mpsc::channel();
    let write = move || {
        let written = nix::unistd::write(io::stdout(), reason.as_bytes());
        written
            .inspect_err(
                |errno| tracing::error!(%errno, "watchdog: the reason could not be written"),
            )
            .ok();
        tell.send(()).ok();
    };
    let started = thread::Builder::new().name("reason".into()).spawn(write);
    if started.is_ok() {
        told.recv_timeout(REASON).ok();
    }
}
