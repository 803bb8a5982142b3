//! What the node must not forget: leases, fences, and how often it has started.
//!
//! A process of its own has the file (`process.rs`), so that a disk that does not answer holds up nothing of the daemon's.
//! One thread hands it groups: everything handed in while a commit runs goes into the next one, which is one redb
//! transaction and durable when reported. Values are opaque bytes of the caller's making. Nothing here decides anything,
//! and nothing that ends access waits for it.
//!
//! Memory is bounded by what the caller holds: a later change of a lease or fence replaces the one
//! that still waits, so at most one change per record does. [`Journal::has_room`] says when to stop
//! taking on new leases because the disk does not follow.

mod contents;
mod error;
mod meter;
mod process;
mod queue;
mod remote;
mod store;
mod talk;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use fabricbios_helper::Program;
use fabricbios_wire::{Epoch, LeaseId, ResourceId};

pub use error::{CommitError, JournalError};
pub use meter::JournalCounts;
pub use process::{Arguments, journal_main};
pub use queue::Writer;
use queue::{Shared, Stop, write_all};
use remote::{Remote, Scribe};
use serde::{Deserialize, Serialize};
pub(crate) use talk::WORD_BYTES_MAX;
use zeroize::Zeroizing;

/// Its name in the state directory.
pub const FILE: &str = "journal.redb";

/// Changes that may wait before [`Journal::has_room`] says no: some seconds of grants.
pub const WAITING_MAX: usize = 65_536;

/// How long a close may take: the last group, and closing the file.
const CLOSES_WITHIN: Duration = Duration::from_secs(3);

/// Names a submission; grows by one with each. Durable up to a number means all before it too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

/// The record as bytes. Some are secret.
pub type Value = Zeroizing<Vec<u8>>;

/// What a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Key {
    /// A lease.
    Lease(LeaseId),
    /// A fence.
    Fence(ResourceId),
    /// A pool of block storage, by its identity.
    Pool(u128),
    /// Which bytes leases of a memory are cut from.
    Mark(ResourceId),
    /// A host of block storage, with its keys.
    Host(u128),
}

/// One thing to remember, in place of what was known of it, or to forget; what is not there is forgotten already.
#[derive(Clone, PartialEq, Eq)]
pub struct Change {
    /// Which record.
    pub key: Key,
    /// Its new value; none: it goes.
    pub value: Option<Value>,
}

impl Change {
    /// Remember this.
    pub fn put(key: Key, value: impl Into<Value>) -> Self {
        let value = Some(value.into());
        Self { key, value }
    }

    /// Forget it.
    #[must_use]
    pub fn remove(key: Key) -> Self {
        Self { key, value: None }
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may hold secrets: only their length shows.
        let bytes = self.value.as_ref().map(|value| value.len());
        write!(f, "{:?}: {bytes:?} bytes", self.key)
    }
}

/// What the last run left.
#[derive(Default, Serialize, Deserialize)]
pub struct Recovered {
    /// Of this run: one more than the last, and durable.
    pub epoch: Epoch,
    /// Commits of groups up to the end of the last run.
    pub commits: u64,
    /// Of the machine when the node last started; none at the first start.
    pub last_boot_id: Option<String>,
    /// When something was last written, by the wall clock of then; 0 at the first start.
    pub written_unix_ms: u64,
    /// A journal of an earlier version has no marks and no hosts.
    #[serde(skip)]
    pub records: BTreeMap<Key, Value>,
}

impl fmt::Debug for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recovered")
            .field("epoch", &self.epoch)
            .field("last_boot_id", &self.last_boot_id)
            .field("records", &self.records.len())
            .finish()
    }
}

/// Told after each commit, on the journal's thread: durable up to a number, or why not. After an
/// error the same changes are tried again; nothing is lost and nothing needs to be resubmitted.
pub type OnCommit = Box<dyn Fn(Result<Seq, CommitError>) + Send>;

/// The journal of a running node. Dropping it abandons what is not durable yet; [`Journal::close`]
/// does not.
pub struct Journal {
    path: PathBuf,
    shared: Arc<Shared>,
    /// How the thread has ended. None: it was told to, and waited for.
    ended: Option<Receiver<Result<(), CommitError>>>,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

impl Journal {
    /// Opens the journal at `path` in a process of `program`, which has the subcommand `journal`, or starts a journal where
    /// there is no file. Counts this start and notes `boot_id` before it returns. A file that is empty or damaged is refused, never
    /// begun anew: fences would be forgotten with it. So is one that the process of an earlier daemon holds for longer than
    /// some seconds.
    pub fn open(
        program: &Program,
        path: &Path,
        boot_id: &str,
        on_commit: OnCommit,
    ) -> Result<(Self, Recovered), JournalError> {
        Self::written_by(Scribe::Program(program.clone()), path, boot_id, on_commit)
    }

    /// The same, by a thread.
    #[cfg(test)]
    pub(crate) fn open_here(
        path: &Path,
        boot_id: &str,
        on_commit: OnCommit,
    ) -> Result<(Self, Recovered), JournalError> {
        Self::written_by(Scribe::Thread(Arc::default()), path, boot_id, on_commit)
    }

    fn written_by(
        scribe: Scribe,
        path: &Path,
        boot_id: &str,
        on_commit: OnCommit,
    ) -> Result<(Self, Recovered), JournalError> {
        let shared = Arc::<Shared>::default();
        let opened = Remote::open(scribe, path.to_owned(), boot_id, Arc::clone(&shared));
        let (remote, recovered) = opened?;
        let (tell, ended) = channel();
        let queue = Arc::clone(&shared);
        thread::Builder::new()
            .name("journal".to_owned())
            // Nobody waits for its end where the process is ending.
            .spawn(move || drop(tell.send(write_all(remote, &queue, &on_commit))))
            .map_err(|e| JournalError::io(path, "start the journal's thread", e))?;
        let path = path.to_owned();
        let ended = Some(ended);
        Ok((
            Self {
                path,
                shared,
                ended,
            },
            recovered,
        ))
    }

    /// Hands in changes that become durable together. Never blocks on the disk.
    pub fn submit(&self, changes: Vec<Change>) -> Seq {
        self.shared.submit(changes)
    }

    /// A way to write something and wait until it is durable, for threads that may wait.
    #[must_use]
    pub fn writer(&self) -> Writer {
        Writer(Arc::clone(&self.shared))
    }

    /// Has `count` keep the number of each commit beside the bytes that leases are cut from, so that a journal which
    /// is put back from an older copy is found out. Called on the journal's thread, before the commit is reported.
    /// Only the first call counts.
    pub fn count_beside(&self, count: impl Fn(u64) + Send + Sync + 'static) {
        self.shared.beside.set(Box::new(count)).ok();
    }

    /// Whether to take on new leases. Changes of existing ones are always taken.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.shared.lock().waiting.len() < WAITING_MAX
    }

    /// What was done to the disk so far.
    #[must_use]
    pub fn counts(&self) -> JournalCounts {
        self.shared.lock().counts
    }

    /// Makes everything durable, then closes, within some seconds. An error: changes since the last report may be lost.
    pub fn close(mut self) -> Result<(), CommitError> {
        self.stop(Stop::Flush)
    }

    fn stop(&mut self, how: Stop) -> Result<(), CommitError> {
        self.shared.stop(how);
        let Some(ended) = self.ended.take() else {
            return Ok(());
        };
        ended.recv_timeout(CLOSES_WITHIN).unwrap_or_else(|error| {
            Err(match error {
                RecvTimeoutError::Timeout => CommitError::new(format_args!(
                    "process {} has not written and closed {} within {} s, the state disk does not answer, it seems: it \
                     still holds the file, and ends by itself when it has written what it was given; until then no \
                     daemon starts on it",
                    self.shared.lock().process,
                    self.path.display(),
                    CLOSES_WITHIN.as_secs()
                )),
                RecvTimeoutError::Disconnected => CommitError::new("the thread has panicked"),
            })
        })
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Nothing is flushed on this transport, so there is no result that anybody could miss.
        drop(self.stop(Stop::Abandon));
    }
}

/// The newest value of each record that changed; none where it was removed.
type Group = BTreeMap<Key, Option<Value>>;

#[cfg(test)]
mod tests;
