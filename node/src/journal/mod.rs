//! The journal: leases, fences and other records that must survive the daemon.
//!
//! A separate process writes the file (`process.rs`), so that a disk that does not answer does not block the daemon.
//! The changes submitted while a commit runs form the next group. A group is one frame of the log and is durable when the
//! process reports it. Values are opaque bytes. Cuts never wait for the journal. `line.rs`: who sends groups.
//!
//! At most one change of each record waits: a later change replaces it. [`Journal::has_room`] is false when the disk
//! does not keep up; the node then accepts no new leases.

mod base;
mod changes;
mod contents;
mod counter;
mod error;
mod line;
mod log;
mod message;
mod meter;
mod open;
pub mod past;
mod process;
mod queue;
pub mod records;
mod remote;
mod store;

use std::{
    collections::BTreeMap,
    fmt,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};

use fabricbios_helper::Program;
use fabricbios_wire::{Epoch, LeaseId, ResourceId};

pub use error::{CommitError, JournalError, Lost};
pub(crate) use message::CHANNEL;
pub use meter::{JournalCounts, JournalFigures};
pub use process::{Arguments, journal_main};
pub use queue::Writer;
use queue::{CommitCounter, SharedQueue, Stop, write_all};
use remote::{Remote, RunAs};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Name of the file in the state directory.
pub const FILE: &str = "journal.redb";

/// Name of the log of its newest commits, beside it while a process writes it or after that was killed.
pub(crate) const COMMITS: &str = "journal.redb.commits";

/// Waiting changes at which [`Journal::has_room`] becomes false: some seconds of grants.
pub const WAITING_MAX: usize = 65_536;

/// How long a close may take, including the last group.
const CLOSES_WITHIN: Duration = Duration::from_secs(3);

/// The number of a submission. If a number is durable, all lower ones are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

/// A record as bytes, which may be secret.
pub type Value = Zeroizing<Vec<u8>>;

/// The key of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Key {
    /// A lease.
    Lease(LeaseId),
    /// A fence.
    Fence(ResourceId),
    /// A pool of block storage, by its identity.
    Pool(u128),
    /// The mark that ties the journal to the bytes of a memory.
    Mark(ResourceId),
    /// A host of block storage, with its keys.
    Host(u128),
}

/// A change of one record. Removing a record that does not exist has no effect.
#[derive(Clone, PartialEq, Eq)]
pub struct Change {
    /// The record.
    pub key: Key,
    /// Its new value; `None`: remove it.
    pub value: Option<Value>,
}

impl Change {
    /// Writes a record, in place of an older one.
    pub fn put(key: Key, value: impl Into<Value>) -> Self {
        let value = Some(value.into());
        Self { key, value }
    }

    /// Removes a record.
    #[must_use]
    pub fn remove(key: Key) -> Self {
        Self { key, value: None }
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be secret: only their length is shown.
        let bytes = self.value.as_ref().map(|value| value.len());
        write!(f, "{:?}: {bytes:?} bytes", self.key)
    }
}

/// The contents of the journal at the start.
#[derive(Default, Serialize, Deserialize)]
pub struct Recovered {
    /// The number of this start, which is durable already.
    pub epoch: Epoch,
    /// Number of commits of all earlier runs.
    pub commits: u64,
    /// The boot id of the machine at the last start; `None` at the first start.
    pub last_boot_id: Option<String>,
    /// Wall-clock time of the last write; 0 at the first start.
    pub written_unix_ms: u64,
    /// All records.
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

/// Called after each commit on the journal's thread: the number up to which submissions are durable, or the error.
/// After an error the same changes are tried again; do not submit them again.
pub type OnCommit = Box<dyn Fn(Result<Seq, CommitError>) + Send>;

/// The journal of a running node. Dropping it abandons changes that are not durable yet; [`Journal::close`] writes
/// them.
pub struct Journal {
    path: PathBuf,
    shared: Arc<SharedQueue>,
    /// The id of the newest process.
    pid: Arc<AtomicU32>,
    /// Receives the outcome of the thread; `None` after a stop.
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
    /// Opens the journal at `path` in a process of `program`, by its subcommand `journal`, or creates it if there is no
    /// file. Counts this start before it returns; `boot_id` is stored with the first leases or fences.
    ///
    /// # Errors
    /// The file is empty or damaged (the node never replaces it by a new file, because fences would be lost), has
    /// another format, or the process of an earlier daemon holds it for more than some seconds; or the disk reports an
    /// error.
    pub fn open(
        program: &Program,
        path: &Path,
        boot_id: &str,
        on_commit: OnCommit,
    ) -> Result<(Self, Recovered), JournalError> {
        Self::open_as(RunAs::Program(program.clone()), path, boot_id, on_commit)
    }

    /// The same with a thread instead of a process.
    #[cfg(test)]
    pub(crate) fn open_here(
        path: &Path,
        boot_id: &str,
        on_commit: OnCommit,
    ) -> Result<(Self, Recovered), JournalError> {
        Self::open_as(RunAs::Thread(Arc::default()), path, boot_id, on_commit)
    }

    /// The contents of a journal whose daemon has stopped in order. Changes nothing. `None`: there is no journal.
    ///
    /// # Errors
    /// [`JournalError::NeedsRepair`]: a start may succeed nevertheless. Other errors: the journal is damaged, has
    /// another format, or cannot be read.
    pub(crate) fn look(path: &Path) -> Result<Option<Recovered>, JournalError> {
        match path.exists() {
            true => store::look(path).map(Some),
            false => Ok(None),
        }
    }

    fn open_as(
        run_as: RunAs,
        path: &Path,
        boot_id: &str,
        on_commit: OnCommit,
    ) -> Result<(Self, Recovered), JournalError> {
        let shared = Arc::<SharedQueue>::default();
        let pid = Arc::<AtomicU32>::default();
        let opened = Remote::open(run_as, path.to_owned(), boot_id, Arc::clone(&pid));
        let (remote, recovered) = opened?;
        let (tell, ended) = channel();
        let queue = Arc::clone(&shared);
        thread::Builder::new()
            .name("journal".to_owned())
            // The receiver is gone if the daemon's process is ending.
            .spawn(move || drop(tell.send(write_all(remote, &queue, &on_commit))))
            .map_err(|e| JournalError::io(path, "start the journal's thread", e))?;
        let path = path.to_owned();
        let ended = Some(ended);
        Ok((
            Self {
                path,
                shared,
                pid,
                ended,
            },
            recovered,
        ))
    }

    /// Submits changes that become durable together. Never blocks on the disk.
    pub fn submit(&self, changes: Vec<Change>) -> Seq {
        self.shared.submit_and_send(changes)
    }

    /// From now on this thread waits for [`Self::awaited`] and then calls [`Self::hear`]; commits then wake no other
    /// thread.
    pub fn drive(&self) {
        let counter = self.shared.commit_counter.get();
        self.shared.lock().is_driven = !counter.is_some_and(|it| it.may_wait);
    }

    /// Becomes readable when [`Self::hear`] has something to do; `None`: the journal's thread has the work.
    #[must_use]
    pub fn awaited(&self) -> Option<Arc<OwnedFd>> {
        self.shared.awaited()
    }

    /// The number up to which submissions are durable, after a commit of which the journal's thread does not know. Never
    /// waits.
    #[must_use]
    pub fn hear(&self) -> Option<Seq> {
        self.shared.hear()
    }

    /// A handle for threads that write and may wait until the write is durable.
    #[must_use]
    pub fn writer(&self) -> Writer {
        Writer(Arc::clone(&self.shared))
    }

    /// Calls `count` with the number of each commit, before the commit is reported. A store keeps the number beside its
    /// bytes; by this number the next start detects a journal that was restored from an older copy. `may_wait`: a call may
    /// wait for a disk, and only the journal's thread may do it. Only the first call of this function has an effect.
    pub fn count_commits_with(&self, may_wait: bool, count: impl Fn(u64) + Send + Sync + 'static) {
        let count = Box::new(count);
        let counter = CommitCounter { count, may_wait };
        self.shared.commit_counter.set(counter).ok();
    }

    /// True if new leases can be accepted. Changes of existing leases are always accepted.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.shared.lock().waiting.len() < WAITING_MAX
    }

    /// Counts of disk operations so far.
    #[must_use]
    pub fn counts(&self) -> JournalCounts {
        self.shared.lock().counts
    }

    /// For metrics.
    #[must_use]
    pub fn figures(&self) -> JournalFigures {
        let queue = self.shared.lock();
        JournalFigures {
            counts: queue.counts,
            waiting: queue.waiting.len(),
            commit_times: queue.commit_times.clone(),
            failed: queue.failed,
        }
    }

    /// Makes every submission durable, then closes, within some seconds.
    ///
    /// # Errors
    /// The disk reported an error or did not answer in time: changes since the last report may be lost.
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
                    self.pid.load(Ordering::Relaxed),
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
        // An abandoned journal writes nothing, so there is no outcome to report.
        drop(self.stop(Stop::Abandon));
    }
}

/// The newest value of each changed record; `None`: removed.
type Group = BTreeMap<Key, Option<Value>>;

#[cfg(test)]
mod tests;
