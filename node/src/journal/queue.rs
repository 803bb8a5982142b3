//! The queue of changes, and the thread that commits them.

use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use fabricbios_lease::Histogram;

use super::{Change, CommitError, Group, JournalCounts, OnCommit, Seq, remote::Remote};

/// Pause after a failed commit, so that a full disk is not retried all the time.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// How long a thread waits for a write; a slow disk finishes within this time.
const PATIENCE: Duration = Duration::from_secs(9);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stop {
    #[default]
    No,
    Flush,
    Abandon,
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) waiting: Group,
    last_seq: u64,
    durable_seq: u64,
    stop: Stop,
    pub(super) counts: JournalCounts,
    pub(super) commit_times: Histogram,
    /// Commits that failed.
    pub(super) failed: u64,
    /// Process id of the writer.
    pub(super) process: u32,
}

impl Queue {
    fn add(&mut self, changes: Vec<Change>) {
        let changes = changes.into_iter().map(|it| (it.key, it.value));
        self.waiting.extend(changes);
    }
}

#[derive(Default)]
pub(super) struct SharedQueue {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Wakes the threads that wait for a write.
    durable: Condvar,
    /// Stores the number of the last commit outside the journal too.
    pub(super) commit_counter: OnceLock<Box<dyn Fn(u64) + Send + Sync>>,
}

impl SharedQueue {
    pub(super) fn lock(&self) -> MutexGuard<'_, Queue> {
        // Each change of the queue is whole, also after a panic.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn submit(&self, changes: Vec<Change>) -> Seq {
        let mut queue = self.lock();
        queue.add(changes);
        queue.last_seq += 1;
        self.wake.notify_one();
        Seq(queue.last_seq)
    }

    pub(super) fn stop(&self, how: Stop) {
        self.lock().stop = how;
        self.wake.notify_one();
    }

    fn note_durable(&self, seq: Seq) {
        self.lock().durable_seq = seq.0;
        self.durable.notify_all();
    }

    /// Waits for the next group. `None`: stop.
    pub(super) fn next_group(&self) -> Option<(Group, Seq)> {
        let idle =
            |queue: &mut Queue| queue.stop == Stop::No && queue.last_seq == queue.durable_seq;
        let guard = self.wake.wait_while(self.lock(), idle);
        let mut queue = guard.unwrap_or_else(PoisonError::into_inner);
        let done = queue.last_seq == queue.durable_seq && queue.waiting.is_empty();
        if queue.stop == Stop::Abandon || (queue.stop == Stop::Flush && done) {
            return None;
        }
        Some((std::mem::take(&mut queue.waiting), Seq(queue.last_seq)))
    }

    /// Puts a failed group back. Values submitted since are newer and stay.
    pub(super) fn put_back(&self, group: Group) {
        let mut queue = self.lock();
        for (key, value) in group {
            queue.waiting.entry(key).or_insert(value);
        }
    }

    /// Waits before the next try. `false`: the journal is closing; give up.
    fn pause(&self) -> bool {
        let open = |queue: &mut Queue| queue.stop == Stop::No;
        let waited = self.wake.wait_timeout_while(self.lock(), RETRY_PAUSE, open);
        waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// See [`super::Journal::writer`].
#[derive(Clone)]
pub struct Writer(pub(super) Arc<SharedQueue>);

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl Writer {
    /// Submits changes that become durable together, in the order of the calls.
    #[must_use]
    pub fn submit(&self, changes: Vec<Change>) -> Seq {
        self.0.submit(changes)
    }

    /// Adds changes to the next submission of any thread, or to the close of the journal. Use it for changes that only
    /// matter together with a later change.
    pub fn add(&self, changes: Vec<Change>) {
        self.0.lock().add(changes);
    }

    /// Waits until the submissions up to `seq` are durable, for some seconds at most.
    ///
    /// # Errors
    /// The submissions are not durable in time; they may become durable later.
    pub fn wait(&self, seq: Seq) -> Result<(), CommitError> {
        let late = |queue: &mut Queue| queue.durable_seq < seq.0;
        let shared = &self.0;
        let waited = shared
            .durable
            .wait_timeout_while(shared.lock(), PATIENCE, late);
        match waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
            true => Err(CommitError::new(format_args!(
                "not on the disk after {} s",
                PATIENCE.as_secs()
            ))),
            false => Ok(()),
        }
    }
}

/// Commits groups until the journal is stopped.
pub(super) fn write_all(
    mut remote: Remote,
    shared: &SharedQueue,
    on_commit: &OnCommit,
) -> Result<(), CommitError> {
    while let Some((group, seq)) = shared.next_group() {
        let begun = Instant::now();
        match remote.commit(&group) {
            Ok(number) => {
                shared.lock().commit_times.add(begun.elapsed());
                // A store gets the number before the commit is reported.
                if let Some(count) = shared.commit_counter.get() {
                    count(number);
                }
                shared.note_durable(seq);
                on_commit(Ok(seq));
            }
            Err(e) => {
                shared.lock().failed += 1;
                shared.put_back(group);
                on_commit(Err(e.clone()));
                if !shared.pause() {
                    return Err(e);
                }
            }
        }
    }
    Ok(())
}
