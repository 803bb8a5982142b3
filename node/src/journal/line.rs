//! The line to the journal's process, and who has it: the driver while all is well, else the journal's thread.
//!
//! The driver sends a group without waiting and hears of its commit while it waits for its inputs, so a commit wakes no
//! further thread. Whatever may wait is left to the thread: a long group, an error, another process in place of one that has
//! ended, the close.

use std::{
    mem,
    os::fd::OwnedFd,
    sync::{Arc, PoisonError},
    time::Instant,
};

use super::{
    CommitError, Group, Seq,
    queue::{Queue, SharedQueue, Stop},
    remote::{Committed, Failure, Remote},
};

/// A group that the process commits.
pub(super) struct Commits {
    pub(super) group: Group,
    pub(super) seq: Seq,
    pub(super) begun: Instant,
}

pub(super) struct Line {
    pub(super) remote: Remote,
    /// The driver has sent it, and nobody knows the outcome.
    pub(super) commits: Option<Commits>,
    /// Why `commits` is not durable.
    failure: Option<Failure>,
}

/// Who has the line.
#[derive(Default)]
pub(super) enum Holder {
    #[default]
    Thread,
    Driver(Line),
    /// The thread gets it as soon as it runs.
    Returned(Line),
}

impl Line {
    pub(super) fn new(remote: Remote) -> Self {
        Self {
            remote,
            commits: None,
            failure: None,
        }
    }

    /// Waits for the outcome of the group that the driver has sent.
    pub(super) fn outcome(&mut self) -> Result<Committed, CommitError> {
        match self.failure.take() {
            Some(failure) => Err(self.remote.explained(failure)),
            None => self.remote.outcome(),
        }
    }
}

impl Queue {
    /// Sends what waits if the driver has the line and the process is idle.
    pub(super) fn send_now(&mut self) {
        let mut line = match mem::take(&mut self.holder) {
            Holder::Driver(line) if line.commits.is_none() && !self.is_idle() => line,
            other => {
                self.holder = other;
                return;
            }
        };
        let commits = self.take_waiting();
        match line.remote.send_now(&commits.group) {
            Ok(true) => {
                line.commits = Some(commits);
                self.holder = Holder::Driver(line);
                return;
            }
            Ok(false) => self.put_back(commits.group),
            Err(failure) => {
                line.commits = Some(commits);
                line.failure = Some(failure);
            }
        }
        self.holder = Holder::Returned(line);
    }

    /// The thread gets the line if the driver has it and `is_wanted`.
    pub(super) fn return_line(&mut self, is_wanted: impl FnOnce(&Line) -> bool) {
        self.holder = match mem::take(&mut self.holder) {
            Holder::Driver(line) if is_wanted(&line) => Holder::Returned(line),
            other => other,
        };
    }
}

impl SharedQueue {
    /// Submits changes from the driver's thread.
    pub(super) fn submit_and_send(&self, changes: Vec<super::Change>) -> Seq {
        let mut queue = self.lock();
        let seq = queue.submit(changes);
        queue.send_now();
        if !matches!(queue.holder, Holder::Driver(_)) {
            self.wake.notify_one();
        }
        seq
    }

    /// What becomes readable when the process has committed a group of the driver.
    pub(super) fn awaited(&self) -> Option<Arc<OwnedFd>> {
        match &self.lock().holder {
            Holder::Driver(line) if line.commits.is_some() => line.remote.readable(),
            _ => None,
        }
    }

    /// The outcome of a group of the driver, if it is known now: durable up to this submission. The thread reports
    /// everything else.
    pub(super) fn hear(&self) -> Option<Seq> {
        let mut queue = self.lock();
        let Holder::Driver(line) = &mut queue.holder else {
            return None;
        };
        let commits = line.commits.take()?;
        let seq = commits.seq;
        match line.remote.outcome_now() {
            None => {
                line.commits = Some(commits);
                return None;
            }
            Some(Ok(committed)) => {
                self.note_durable(&mut queue, &commits, committed);
                queue.send_now();
            }
            Some(Err(failure)) => {
                line.commits = Some(commits);
                line.failure = Some(failure);
                queue.return_line(|_| true);
            }
        }
        let is_durable = queue.durable_seq >= seq.0;
        if !matches!(queue.holder, Holder::Driver(_)) {
            self.wake.notify_one();
        }
        is_durable.then_some(seq)
    }

    /// Lends the line to the driver, and sends what waits: the driver must be woken after that. The line comes back if no
    /// driver wants it.
    pub(super) fn lend(&self, line: Line) -> Option<Line> {
        let mut queue = self.lock();
        if !queue.is_driven || queue.stop != Stop::No {
            return Some(line);
        }
        queue.holder = Holder::Driver(line);
        queue.send_now();
        None
    }

    /// Waits for the line: the driver returns it when it cannot go on without waiting.
    pub(super) fn returned(&self) -> Line {
        let mut queue = self.lock();
        loop {
            queue.holder = match mem::take(&mut queue.holder) {
                Holder::Returned(line) => return line,
                other => other,
            };
            queue = { self.wake.wait(queue) }.unwrap_or_else(PoisonError::into_inner);
        }
    }
}
