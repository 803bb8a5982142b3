//! What the node must not forget: leases, fences, and how often it has started.
//!
//! One thread owns the file and writes groups: everything handed in while a commit runs goes into
//! the next one, which is one redb transaction and durable when reported. Values are opaque bytes
//! of the caller's making. Nothing here decides anything, and nothing that ends access waits for it.
//!
//! Memory is bounded by what the caller holds: a later change of a lease or fence replaces the one
//! that still waits, so at most one change per record does. [`Journal::has_room`] says when to stop
//! taking on new leases because the disk does not follow.

mod contents;
mod error;
mod meter;
mod store;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fabricbios_wire::{Epoch, LeaseId, ResourceId};

pub use error::{CommitError, JournalError};
pub use meter::JournalCounts;
use store::Store;

/// Its name in the state directory.
pub const FILE: &str = "journal.redb";

/// Changes that may wait before [`Journal::has_room`] says no: some seconds of grants.
pub const WAITING_MAX: usize = 65_536;

/// Pause after a failed commit, so that a full disk is not hammered.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Names a submission; grows by one with each. Durable up to a number means all before it too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

/// One thing to remember or to forget.
#[derive(Clone, PartialEq, Eq)]
pub enum Change {
    /// Remember a lease, in place of what was known of it.
    PutLease(LeaseId, Vec<u8>),
    /// Forget a lease; one that is not there is forgotten already.
    RemoveLease(LeaseId),
    /// Remember a fence.
    PutFence(ResourceId, Vec<u8>),
    /// Forget a fence.
    RemoveFence(ResourceId),
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may hold secrets: only their length shows.
        match self {
            Self::PutLease(id, value) => write!(f, "PutLease({id}, {} bytes)", value.len()),
            Self::RemoveLease(id) => write!(f, "RemoveLease({id})"),
            Self::PutFence(id, value) => write!(f, "PutFence({id}, {} bytes)", value.len()),
            Self::RemoveFence(id) => write!(f, "RemoveFence({id})"),
        }
    }
}

/// What the last run left.
pub struct Recovered {
    /// Of this run: one more than the last, and durable.
    pub epoch: Epoch,
    /// Of the machine when the node last started; none at the first start.
    pub last_boot_id: Option<String>,
    /// When something was last written, by the wall clock of then; 0 at the first start.
    pub written_unix_ms: u64,
    /// In order of id.
    pub leases: Vec<(LeaseId, Vec<u8>)>,
    /// In order of id.
    pub fences: Vec<(ResourceId, Vec<u8>)>,
}

impl fmt::Debug for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recovered")
            .field("epoch", &self.epoch)
            .field("last_boot_id", &self.last_boot_id)
            .field("leases", &self.leases.len())
            .field("fences", &self.fences.len())
            .finish()
    }
}

/// Told after each commit, on the journal's thread: durable up to a number, or why not. After an
/// error the same changes are tried again; nothing is lost and nothing needs to be resubmitted.
pub type OnCommit = Box<dyn Fn(Result<Seq, CommitError>) + Send>;

/// The journal of a running node. Dropping it abandons what is not durable yet; [`Journal::close`]
/// does not.
pub struct Journal {
    shared: Arc<Shared>,
    counts: Arc<meter::Meter>,
    thread: Option<JoinHandle<Result<(), CommitError>>>,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

impl Journal {
    /// Opens the journal at `path`, or starts one where there is no file. Counts this start and
    /// notes `boot_id` before it returns. A file that is empty or damaged is refused, never begun
    /// anew: fences would be forgotten with it.
    pub fn open(
        path: &Path,
        boot_id: &str,
        on_commit: OnCommit,
    ) -> Result<(Self, Recovered), JournalError> {
        Self::open_metered(path, boot_id, on_commit, Arc::default())
    }

    fn open_metered(
        path: &Path,
        boot_id: &str,
        on_commit: OnCommit,
        counts: Arc<meter::Meter>,
    ) -> Result<(Self, Recovered), JournalError> {
        let (store, recovered) = Store::open(path, boot_id, Arc::clone(&counts))?;
        let shared = Arc::new(Shared::default());
        let worker = Worker {
            store,
            shared: Arc::clone(&shared),
            on_commit,
        };
        let thread = thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || worker.run())
            .map_err(|e| JournalError::io(path, "start the journal's thread", e))?;
        Ok((
            Self {
                shared,
                counts,
                thread: Some(thread),
            },
            recovered,
        ))
    }

    /// Hands in changes that become durable together. Never blocks on the disk.
    pub fn submit(&self, changes: Vec<Change>) -> Seq {
        let mut queue = self.shared.lock();
        for change in changes {
            let (key, value) = split(change);
            queue.waiting.insert(key, value);
        }
        queue.last_seq += 1;
        self.shared.wake.notify_one();
        Seq(queue.last_seq)
    }

    /// Whether to take on new leases. Changes of existing ones are always taken.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.shared.lock().waiting.len() < WAITING_MAX
    }

    /// What was done to the disk so far.
    #[must_use]
    pub fn counts(&self) -> JournalCounts {
        self.counts.read()
    }

    /// Makes everything durable, then closes. An error: the changes since the last report are lost.
    pub fn close(mut self) -> Result<(), CommitError> {
        self.stop(Stop::Flush)
    }

    fn stop(&mut self, how: Stop) -> Result<(), CommitError> {
        self.shared.lock().stop = how;
        self.shared.wake.notify_one();
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        thread
            .join()
            .unwrap_or_else(|_panic| Err(CommitError::new("the thread has panicked")))
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if self.thread.is_some() {
            // Nothing is flushed on this road, so there is no result that anybody could miss.
            drop(self.stop(Stop::Abandon));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Lease(u128),
    Fence(u128),
}

/// The newest value of each record that changed; none where it was removed.
type Group = BTreeMap<Key, Option<Vec<u8>>>;

fn split(change: Change) -> (Key, Option<Vec<u8>>) {
    match change {
        Change::PutLease(id, value) => (Key::Lease(id.0), Some(value)),
        Change::RemoveLease(id) => (Key::Lease(id.0), None),
        Change::PutFence(id, value) => (Key::Fence(id.0), Some(value)),
        Change::RemoveFence(id) => (Key::Fence(id.0), None),
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stop {
    #[default]
    No,
    Flush,
    Abandon,
}

#[derive(Default)]
struct Queue {
    waiting: Group,
    last_seq: u64,
    durable_seq: u64,
    stop: Stop,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Whoever panicked with the lock held was between two whole changes.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for work. None: stop.
    fn next_group(&self) -> Option<(Group, Seq)> {
        let idle =
            |queue: &mut Queue| queue.stop == Stop::No && queue.last_seq == queue.durable_seq;
        let guard = self.wake.wait_while(self.lock(), idle);
        let mut queue = guard.unwrap_or_else(PoisonError::into_inner);
        let done = queue.last_seq == queue.durable_seq;
        if queue.stop == Stop::Abandon || (queue.stop == Stop::Flush && done) {
            return None;
        }
        Some((std::mem::take(&mut queue.waiting), Seq(queue.last_seq)))
    }

    /// Puts a group back behind what came since, which is newer.
    fn put_back(&self, group: Group) {
        let mut queue = self.lock();
        for (key, value) in group {
            queue.waiting.entry(key).or_insert(value);
        }
    }

    /// Waits before another try. False: give up, because the journal is being closed.
    fn pause(&self) -> bool {
        let open = |queue: &mut Queue| queue.stop == Stop::No;
        let waited = self.wake.wait_timeout_while(self.lock(), RETRY_PAUSE, open);
        waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

struct Worker {
    store: Store,
    shared: Arc<Shared>,
    on_commit: OnCommit,
}

impl Worker {
    fn run(mut self) -> Result<(), CommitError> {
        while let Some((group, seq)) = self.shared.next_group() {
            match self.store.commit(&group) {
                Ok(()) => {
                    self.shared.lock().durable_seq = seq.0;
                    (self.on_commit)(Ok(seq));
                }
                Err(e) => {
                    self.shared.put_back(group);
                    (self.on_commit)(Err(e.clone()));
                    if !self.shared.pause() {
                        return Err(e);
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
