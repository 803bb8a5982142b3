//! Calls that may hang, and the part of the helper process that makes them.

use std::fs::File;
use std::io;
use std::time::Duration;
use std::{fmt, str, thread};

use fabricbios_channel::{Channel, ChannelError, ChannelKind};
use nix::sys::prctl::set_name;
use nix::sys::socket::MsgFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::lock::FileBytes;

/// A call that may hang. Both sides are the same program, so the messages need no version.
pub trait Call: Serialize + DeserializeOwned + 'static {
    /// The name of the call, at most 12 bytes. `ps` shows its process as `fb-NAME`.
    const NAME: &'static str;
    /// The result.
    type Answer: Serialize + DeserializeOwned;

    /// Makes the call. Runs in the helper process.
    ///
    /// # Errors
    /// A system call fails, or the call itself does; the error says what, where and why.
    fn make(self, caller: &Caller) -> Result<Self::Answer, Failure>;
}

/// Why a call that was made failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{detail}")]
pub struct Failure {
    /// The error number, if a system call failed.
    pub errno: Option<i32>,
    /// For people: what, where, why.
    pub detail: String,
}

impl From<String> for Failure {
    fn from(detail: String) -> Self {
        let errno = None;
        Self { errno, detail }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self {
            errno: error.raw_os_error(),
            detail: error.to_string(),
        }
    }
}

/// Calls and their reports, and what precedes them.
pub(crate) const CHANNEL: ChannelKind = ChannelKind {
    name: "helper process",
    frame_bytes_max: 1 << 16,
    passes_descriptors: true,
};

/// A message to the helper process.
#[derive(Serialize, Deserialize)]
pub(crate) struct NamedCall {
    pub(crate) name: String,
    /// The postcard form of the call, whose type the name tells.
    pub(crate) call: Vec<u8>,
}

/// A message from the helper process.
#[derive(Serialize, Deserialize)]
pub(crate) enum Report<A> {
    Progress(String),
    Done(A),
    Failed(Failure),
}

/// The caller, as the helper process sees it.
#[derive(Debug)]
pub struct Caller {
    channel: Channel,
    /// The file whose bytes calls lock. `None`: a thread makes the calls, for tests.
    lock: Option<File>,
}

impl Caller {
    pub(crate) fn new(channel: Channel, lock: Option<File>) -> Self {
        Self { channel, lock }
    }

    /// Reports progress: the caller then continues to wait.
    ///
    /// # Errors
    /// The caller no longer listens: the call can stop.
    pub fn progress(&self, what: impl Into<String>) -> Result<(), Failure> {
        self.report(&Report::<()>::Progress(what.into()))
            .map_err(|error| Failure::from(format!("nobody listens any more: {error}")))
    }

    /// Waits until no other process has locked this name, then locks it until this process ends. A killed process keeps
    /// its lock while it waits in the kernel, even after its daemon has ended. If another process has the lock, `busy`
    /// gets its pid. Only the daemon's user can open the file of the lock.
    ///
    /// # Errors
    /// fcntl(2) fails, or `busy` fails.
    pub fn lock(
        &self,
        name: &str,
        busy: impl FnOnce(i32) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(file) = &self.lock else {
            return Ok(());
        };
        let byte = byte_of(name);
        if let Some(holder) = byte.try_lock(file)? {
            busy(holder.as_raw())?;
            byte.lock(file)?;
        }
        Ok(())
    }

    /// Like [`Caller::lock`], but calls `busy` once a second with the pid of the process that has the lock.
    ///
    /// # Errors
    /// fcntl(2) fails, or `busy` fails.
    pub fn lock_telling(
        &self,
        name: &str,
        mut busy: impl FnMut(i32) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(file) = &self.lock else {
            return Ok(());
        };
        let byte = byte_of(name);
        while let Some(holder) = byte.try_lock(file)? {
            busy(holder.as_raw())?;
            thread::sleep(Duration::from_secs(1));
        }
        Ok(())
    }

    /// Makes calls until the channel is closed.
    pub(crate) fn serve(mut self, handlers: &[Handler]) -> io::Result<()> {
        while let Some(NamedCall { name, call }) = self.channel.receive()? {
            match handlers.iter().find(|it| it.name == name) {
                Some(handler) => {
                    let shown = std::ffi::CString::new(format!("fb-{name}"))?;
                    // In tests a thread of the daemon makes the call; the thread keeps its name.
                    if self.lock.is_some() {
                        set_name(&shown)?;
                    }
                    (handler.answer)(&call, &self)?;
                }
                None => {
                    let failure = Failure::from(format!(
                        "no helper process serves calls of the name {name:?}"
                    ));
                    self.report(&Report::<()>::Failed(failure))?;
                }
            }
        }
        Ok(())
    }

    fn report<A: Serialize>(&self, report: &Report<A>) -> Result<(), ChannelError> {
        self.channel.send(report, None, MsgFlags::empty())
    }
}

/// The byte of the lock file that stands for the name.
fn byte_of(name: &str) -> FileBytes {
    let mut first = [0; 8];
    first.copy_from_slice(&Sha256::digest(name)[..8]);
    FileBytes {
        // The offset and the end of the byte must be valid file offsets.
        start: i64::from_le_bytes(first) & (i64::MAX >> 1),
        length: 1,
    }
}

/// Decodes a call, makes it, and reports the result.
type Answer = dyn Fn(&[u8], &Caller) -> Result<(), ChannelError> + Send + Sync;

/// Handles the calls of one name.
pub struct Handler {
    pub(crate) name: &'static str,
    answer: Box<Answer>,
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handler").field(&self.name).finish()
    }
}

impl Handler {
    /// A handler for this call.
    #[must_use]
    pub fn of<C: Call>() -> Self {
        Self::by(C::make)
    }

    /// A handler for this call that runs `make`.
    pub fn by<C: Call>(
        make: impl Fn(C, &Caller) -> Result<C::Answer, Failure> + Send + Sync + 'static,
    ) -> Self {
        let answer = move |call: &[u8], caller: &Caller| {
            let report = match postcard::from_bytes(call) {
                Ok(call) => match make(call, caller) {
                    Ok(answer) => Report::Done(answer),
                    Err(failure) => Report::Failed(failure),
                },
                Err(error) => Report::Failed(Failure::from(format!("{}: {error}", C::NAME))),
            };
            caller.report(&report)
        };
        Self {
            name: C::NAME,
            answer: Box::new(answer),
        }
    }
}
