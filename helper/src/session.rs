//! The caller's side: one process, and what is asked of it.

use std::time::{Duration, Instant};
use std::{fmt, fs, io};

use nix::sys::signal::Signal;
use nix::sys::socket::MsgFlags;

use crate::call::{Call, Failure, Report};
use crate::line::Line;
use crate::pidfd::Pidfd;

/// A process that makes calls, one after the other. Dropped, it is killed; one that waits in the kernel stays until
/// the kernel lets it go, and holds nothing of the caller's.
#[derive(Debug)]
pub struct Session {
    pub(crate) line: Line,
    pub(crate) pid: u32,
    /// None where a thread stands in for the process.
    pub(crate) process: Option<Pidfd>,
}

/// Why there is no answer to a call.
#[derive(Debug)]
pub enum CallError {
    /// No process could be started for it.
    NotStarted(io::Error),
    /// It was made and failed.
    Failed(Failure),
    /// Its process ended without an answer, or cannot be spoken to.
    Lost {
        /// Process id.
        pid: u32,
        /// Where it was the system.
        error: Option<io::Error>,
    },
    /// Its process made no progress and is killed. The call may be done all the same, or be done later: nothing can be said
    /// about that before the process has ended.
    Stuck {
        /// Process id.
        pid: u32,
        /// For how long nothing came from it.
        silent: Duration,
        /// Where in the kernel it waits, if that is told (`/proc/PID/wchan`).
        waits_in: Option<String>,
    },
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted(error) => write!(f, "no process could be started for it: {error}"),
            Self::Failed(failure) => failure.fmt(f),
            Self::Lost { pid, error: None } => write!(f, "process {pid} ended without an answer"),
            Self::Lost {
                pid,
                error: Some(error),
            } => write!(f, "process {pid}: {error}"),
            Self::Stuck {
                pid,
                silent,
                waits_in,
            } => {
                let silent = silent.as_millis();
                let place = waits_in.as_deref().unwrap_or("the kernel");
                write!(
                    f,
                    "no progress for {silent} ms: process {pid} waits in {place}"
                )
            }
        }
    }
}

impl std::error::Error for CallError {}

impl CallError {
    /// Whether a process may be left that waits in the kernel.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        matches!(self, Self::Stuck { .. })
    }
}

impl Session {
    /// Has the process make a call. `progress` is told what it says meanwhile; after `silence_max` without a word it is given
    /// up. After an error other than [`CallError::Failed`] the session is of no more use.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn ask<C: Call>(
        &mut self,
        call: &C,
        silence_max: Duration,
        progress: &dyn Fn(&str),
    ) -> Result<C::Answer, CallError> {
        let lost = |error| CallError::Lost {
            pid: self.pid,
            error,
        };
        let bytes = postcard::to_allocvec(&(C::NAME, call));
        let bytes = bytes.map_err(|error| lost(Some(io::Error::other(error))))?;
        let sent = self.line.send(&bytes, None, MsgFlags::MSG_DONTWAIT);
        sent.map_err(|error| lost(Some(error)))?;
        let mut heard = Instant::now();
        loop {
            let patience = silence_max.saturating_sub(heard.elapsed());
            let ready = self.line.is_ready_within(patience);
            if !ready.map_err(|error| lost(Some(error)))? {
                if heard.elapsed() >= silence_max {
                    return Err(self.stuck(silence_max));
                }
                continue;
            }
            let message = self.line.receive().map_err(|error| lost(Some(error)))?;
            let message = message.ok_or_else(|| lost(None))?;
            let report = postcard::from_bytes(&message.bytes);
            match report.map_err(|error| lost(Some(io::Error::other(error))))? {
                Report::Progress(what) => progress(&what),
                Report::Done(answer) => return Ok(answer),
                Report::Failed(failure) => return Err(CallError::Failed(failure)),
            }
            heard = Instant::now();
        }
    }

    fn stuck(&self, silent: Duration) -> CallError {
        CallError::Stuck {
            pid: self.pid,
            silent,
            waits_in: waits_in(self.pid),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(process) = &self.process {
            // Fails only for one that has ended, which is as well.
            process.signal(Signal::SIGKILL).ok();
        }
    }
}

/// The kernel function that a process sleeps in: `0` stands for none, and only root is told.
fn waits_in(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/wchan")).ok()?;
    let text = text.trim();
    (!text.is_empty() && text != "0").then(|| text.to_owned())
}
