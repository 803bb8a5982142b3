//! The caller's end of one helper process.

use std::time::Duration;
use std::{fs, io};

use fabricbios_channel::{Channel, ChannelError};
use nix::sys::signal::Signal;
use nix::sys::socket::MsgFlags;

use crate::call::{Call, Failure, NamedCall, Report};
use crate::in_flight::InFlight;
use crate::pidfd::Pidfd;

/// A helper process that makes calls, one after the other. Dropping the session kills the process. A process that waits
/// in the kernel ends later, when the kernel lets it go; it holds no resource of the caller.
#[derive(Debug)]
pub struct Session {
    pub(crate) channel: Channel,
    pub(crate) pid: u32,
    /// `None`: a thread makes the calls, for tests.
    pub(crate) process: Option<Pidfd>,
    pub(crate) in_flight: InFlight,
}

/// Why there is no answer to a call.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No process could be started for the call.
    #[error("no process could be started for it: {0}")]
    NotStarted(io::Error),
    /// The call failed.
    #[error("{0}")]
    Failed(Failure),
    /// The process ended without an answer, or its channel failed.
    #[error(
        "process {pid}{}",
        .error.as_ref().map_or(" ended without an answer".into(), |it| format!(": {it}"))
    )]
    Lost {
        /// Process id.
        pid: u32,
        /// The error of the channel, if there is one.
        error: Option<ChannelError>,
    },
    /// The process made no progress and was killed. Until the process has ended, the call may still take effect.
    #[error(
        "no progress for {} ms: process {pid} waits in {}",
        .silent.as_millis(),
        .waits_in.as_deref().unwrap_or("the kernel")
    )]
    Stuck {
        /// Process id.
        pid: u32,
        /// How long the process sent no message.
        silent: Duration,
        /// The kernel function in which the process waits, if known (`/proc/PID/wchan`).
        waits_in: Option<String>,
    },
}

impl CallError {
    /// Whether the process may still wait in the kernel.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        matches!(self, Self::Stuck { .. })
    }
}

impl Session {
    /// Makes a call in the process. `progress` gets the call's progress messages. After `silence_max` without a
    /// message, the process is killed. After an error other than [`CallError::Failed`] the session cannot be used
    /// again.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn ask<C: Call>(
        &mut self,
        call: &C,
        silence_max: Duration,
        progress: &dyn Fn(&str),
    ) -> Result<C::Answer, CallError> {
        let _begun = self.in_flight.begin(C::NAME);
        let pid = self.pid;
        let lost = |error| CallError::Lost { pid, error };
        let name = C::NAME.to_owned();
        let call = postcard::to_allocvec(call)
            .map_err(|error| CallError::Failed(Failure::from(format!("{name}: {error}"))))?;
        let named = NamedCall { name, call };
        let sent = self.channel.send(&named, None, MsgFlags::MSG_DONTWAIT);
        sent.map_err(|error| lost(Some(error)))?;
        loop {
            match self.channel.receive_within(silence_max) {
                Ok(Some(Report::Progress(what))) => progress(&what),
                Ok(Some(Report::Done(answer))) => return Ok(answer),
                Ok(Some(Report::Failed(failure))) => return Err(CallError::Failed(failure)),
                Ok(None) => return Err(lost(None)),
                Err(error) if error.is_silence() => return Err(self.stuck(silence_max)),
                Err(error) => return Err(lost(Some(error))),
            }
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
            // Fails only if the process has ended already.
            process.signal(Signal::SIGKILL).ok();
        }
    }
}

/// The kernel function in which the process sleeps. The file has `0` for none; only root may read it.
fn waits_in(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/wchan")).ok()?;
    let text = text.trim();
    (!text.is_empty() && text != "0").then(|| text.to_owned())
}
