//! The queue of changes, and the thread that commits them when the driver does not.

use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use fabricbios_lease::Histogram;

use super::{
    Change, CommitError, Group, JournalCounts, OnCommit, Seq,
    line::{Commits, Holder, Line},
    remote::{Committed, Remote},
};

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
    pub(super) durable_seq: u64,
    pub(super) stop: Stop,
    pub(super) holder: Holder,
    /// A driver commits its own groups: see [`super::Journal::drive`].
    pub(super) is_driven: bool,
    pub(super) counts: JournalCounts,
    pub(super) commit_times: Histogram,
    /// Commits that failed.
    pub(super) failed: u64,
}

impl Queue {
    fn add(&mut self, changes: Vec<Change>) {
        let changes = changes.into_iter().map(|it| (it.key, it.value));
        self.waiting.extend(changes);
    }

    pub(super) fn submit(&mut self, changes: Vec<Change>) -> Seq {
        self.add(changes);
        self.last_seq += 1;
        Seq(self.last_seq)
    }

    /// Nothing was submitted since the newest group.
    pub(super) fn is_idle(&self) -> bool {
        self.last_seq == self.durable_seq
    }

    pub(super) fn take_waiting(&mut self) -> Commits {
        Commits {
            group: std::mem::take(&mut self.waiting),
            seq: Seq(self.last_seq),
            begun: Instant::now(),
        }
    }

    /// Puts a failed group back. Values submitted since are newer and stay.
    pub(super) fn put_back(&mut self, group: Group) {
        for (key, value) in group {
            self.waiting.entry(key).or_insert(value);
        }
    }
}

#[derive(Default)]
pub(super) struct SharedQueue {
    queue: Mutex<Queue>,
    /// Wakes the journal's thread.
    pub(super) wake: Condvar,
    /// Wakes the threads that wait for a write.
    durable: Condvar,
    /// Stores the number of the last commit outside the journal too.
    pub(super) commit_counter: OnceLock<CommitCounter>,
}

pub(super) struct CommitCounter {
    pub(super) count: Box<dyn Fn(u64) + Send + Sync>,
    /// The call may wait for a disk.
    pub(super) may_wait: bool,
}

impl SharedQueue {
    pub(super) fn lock(&self) -> MutexGuard<'_, Queue> {
        // Each change of the queue is whole, also after a panic.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits changes from any thread. If the process is idle, the journal's thread commits them: the driver is not woken.
    pub(super) fn submit(&self, changes: Vec<Change>) -> Seq {
        let mut queue = self.lock();
        let seq = queue.submit(changes);
        queue.return_line(|line| line.commits.is_none());
        self.wake.notify_one();
        seq
    }

    pub(super) fn stop(&self, how: Stop) {
        let mut queue = self.lock();
        queue.stop = how;
        queue.return_line(|_| true);
        self.wake.notify_one();
    }

    /// A group is durable. A store gets the number of the commit before the commit is reported.
    pub(super) fn note_durable(&self, queue: &mut Queue, commits: &Commits, committed: Committed) {
        queue.counts = committed.counts;
        queue.commit_times.add(commits.begun.elapsed());
        if let Some(counter) = self.commit_counter.get() {
            (counter.count)(committed.number);
        }
        queue.durable_seq = commits.seq.0;
        self.durable.notify_all();
    }

    /// Waits for the next group. `None`: stop.
    pub(super) fn next_group(&self) -> Option<Commits> {
        let idle = |queue: &mut Queue| queue.stop == Stop::No && queue.is_idle();
        let guard = self.wake.wait_while(self.lock(), idle);
        let mut queue = guard.unwrap_or_else(PoisonError::into_inner);
        let done = queue.is_idle() && queue.waiting.is_empty();
        if queue.stop == Stop::Abandon || (queue.stop == Stop::Flush && done) {
            return None;
        }
        Some(queue.take_waiting())
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
    remote: Remote,
    shared: &SharedQueue,
    on_commit: &OnCommit,
) -> Result<(), CommitError> {
    let mut line = Line::new(remote);
    loop {
        let (commits, outcome) = match line.commits.take() {
            Some(sent) => (sent, line.outcome()),
            None => {
                let Some(next) = shared.next_group() else {
                    return Ok(());
                };
                let outcome = line.remote.commit(&next.group);
                (next, outcome)
            }
        };
        match outcome {
            Ok(committed) => {
                shared.note_durable(&mut shared.lock(), &commits, committed);
                let kept = shared.lend(line);
                // Behind that: the driver then knows of a group that is under way.
                on_commit(Ok(commits.seq));
                line = kept.unwrap_or_else(|| shared.returned());
            }
            Err(error) => {
                let mut queue = shared.lock();
                queue.failed += 1;
                queue.put_back(commits.group);
                drop(queue);
                on_commit(Err(error.clone()));
                if !shared.pause() {
                    return Err(error);
                }
            }
        }
    }
}
