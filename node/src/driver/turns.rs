//! The turns of the driver: some work of each sort, and then a wait for more.

use std::{io, mem, time::Duration};

use fabricbios_lease::{BootTime, State};
use fabricbios_wire::LeaseId;
use tokio::{sync::Notify, task::yield_now, time::timeout};

use super::{Driver, Environment, Input, workers::raise_priority};
use crate::journal::CommitError;

/// A journal that does not answer for this time counts as not writable.
pub(super) const JOURNAL_PATIENCE: Duration = Duration::from_secs(9);

/// Most items of each sort in one turn.
pub(super) const ITEMS_A_TURN: usize = 64;
/// Timers that come before their orders: orders may be carried out at once.
const TIMERS_AT_ONCE: usize = 8;
/// Processor time of one sort in a turn, about. So no sort keeps the others waiting for long.
const SHARE: Duration = Duration::from_micros(250);

/// Interval of the check whether the node has settled or drained, while the driver has more work.
const LOOK: Duration = Duration::from_millis(10);

/// What follows a turn.
enum Step {
    Again,
    /// An item, or this time.
    Wait(Option<BootTime>),
    Done,
}

impl<E: Environment> Driver<E> {
    /// Runs until drained or halted, then closes the journal. Returns, after a drain, the leases whose end could not be
    /// proved.
    ///
    /// # Errors
    /// The driver cannot wait for inputs, or the journal could not be closed.
    pub fn run(mut self) -> io::Result<Vec<LeaseId>> {
        raise_priority();
        self.environment.drive();
        self.begin();
        loop {
            match self.step() {
                Step::Again => {}
                Step::Wait(until) => {
                    let awaited = self.environment.awaited();
                    self.mailbox.wait(until, awaited.as_deref())?;
                }
                Step::Done => break,
            }
        }
        self.close()
    }

    /// The same as a task, without a thread: for simulations of many nodes in one process. The mailbox calls
    /// `woken.notify_one`, which is not lost if nobody waits yet; see [`super::mailbox::Mailbox::woken_by`].
    ///
    /// # Errors
    /// The journal could not be closed.
    pub async fn run_as_task(mut self, woken: &Notify) -> io::Result<Vec<LeaseId>> {
        self.begin();
        loop {
            match self.step() {
                Step::Again => yield_now().await,
                Step::Wait(_) if !self.mailbox.begin_to_wait() => {}
                Step::Wait(until) => {
                    let now = self.environment.now().boot;
                    let span = until.map_or(Duration::MAX, |until| now.until(until));
                    // It is over because somebody called, or because the time has come.
                    timeout(span, woken.notified()).await.ok();
                }
                Step::Done => break,
            }
        }
        self.close()
    }

    /// One turn, and what comes next.
    fn step(&mut self) -> Step {
        let Some(more) = self.turn() else {
            return Step::Done;
        };
        let now = self.environment.now().boot;
        if more && now < self.next_look {
            return Step::Again;
        }
        self.next_look = now + LOOK;
        self.signal_settled();
        match (self.is_done(), more) {
            (true, _) => Step::Done,
            (false, true) => Step::Again,
            (false, false) => Step::Wait(self.next_wake()),
        }
    }

    fn close(self) -> io::Result<Vec<LeaseId>> {
        let uncut = self.uncut();
        self.environment.close().map_err(io::Error::other)?;
        Ok(uncut)
    }

    /// Adopts or ends the leases of an earlier run.
    pub(super) fn begin(&mut self) {
        let uncut = self.table.uncut();
        let fenced = uncut.filter(|(_, state)| *state == State::Fenced);
        self.fenced_before = fenced.map(|(id, _)| id).collect();
        self.table.on_start(self.environment.now());
        self.perform();
        self.submit();
    }

    pub(super) fn uncut(&self) -> Vec<LeaseId> {
        let is_ours = |id: &LeaseId| self.draining.is_some() && !self.fenced_before.contains(id);
        let uncut = self.table.uncut().map(|(id, _)| id);
        uncut.filter(is_ours).collect()
    }

    /// Does some work of each sort. Returns whether there is more; `None`: stop now.
    pub(super) fn turn(&mut self) -> Option<bool> {
        if let Some(seq) = self.environment.hear() {
            self.apply(Input::Durable(Ok(seq)));
        }
        while let Some(input) = self.mailbox.take_notice() {
            if matches!(input, Input::Halt) {
                self.submit();
                return None;
            }
            self.apply(input);
            self.perform();
        }
        let share = self.share();
        self.release_held(share);
        self.perform();
        let share = self.share();
        for _ in 0..ITEMS_A_TURN {
            let Some(input) = self.mailbox.take_report() else {
                break;
            };
            self.apply(input);
            self.perform();
            if self.is_over(share) {
                break;
            }
        }
        let now = self.environment.now();
        let done_at = |input: &Input| match input {
            Input::Report { at, .. } => Some(*at),
            _ => None,
        };
        let heard = self.mailbox.least_of_reports(done_at).unwrap_or(now.boot);
        let share = self.share();
        let mut more_is_due = true;
        for _ in 0..ITEMS_A_TURN / TIMERS_AT_ONCE {
            more_is_due = self.table.tick_some(now, heard, TIMERS_AT_ONCE);
            self.perform();
            if !more_is_due || self.is_over(share) {
                break;
            }
        }
        let share = self.share();
        for _ in 0..ITEMS_A_TURN {
            let Some(input) = self.mailbox.take_request() else {
                break;
            };
            self.apply(input);
            self.perform();
            if self.is_over(share) {
                break;
            }
        }
        self.submit();
        self.check_journal(now.boot);
        self.signal_changes();
        Some(more_is_due || !self.released.is_empty() || !self.mailbox.is_empty())
    }

    /// The end of the share of one sort of work.
    fn share(&self) -> BootTime {
        self.environment.now().boot + SHARE
    }

    pub(super) fn is_over(&self, share: BootTime) -> bool {
        share <= self.environment.now().boot
    }

    fn signal_changes(&mut self) {
        let log_end = self.table.log_end();
        let leases_changed = mem::replace(&mut self.signalled, log_end) != log_end;
        let may_have_changed = mem::take(&mut self.may_have_changed);
        if let Some(changed) = &self.changed
            && (leases_changed || may_have_changed)
        {
            changed.send_replace(());
        }
    }

    /// Treats a disk that does not answer like a full disk.
    pub(super) fn check_journal(&mut self, now: BootTime) {
        // Other threads write to the journal too, so more may be durable than the driver has submitted.
        if self.submitted <= self.durable {
            return;
        }
        let since = *self.silent_since.get_or_insert(now);
        if since + JOURNAL_PATIENCE <= now {
            self.silent_since = Some(now);
            let secs = JOURNAL_PATIENCE.as_secs();
            let error = format_args!("its disk has not answered for {secs} s");
            self.not_durable(&CommitError::new(error));
            self.perform();
            self.submit();
        }
    }

    pub(super) fn next_wake(&self) -> Option<BootTime> {
        self.table
            .next_deadline()
            .into_iter()
            .chain(self.draining)
            .chain(self.settled.as_ref().map(|(_, latest)| *latest))
            .chain(self.silent_since.map(|since| since + JOURNAL_PATIENCE))
            .min()
    }

    /// READY follows this signal. So leases that expired while no daemon ran are no longer served at READY.
    fn signal_settled(&mut self) {
        let Some((_, latest)) = self.settled else {
            return;
        };
        if self.table.is_settled() || latest <= self.environment.now().boot {
            let settled = self.settled.take();
            // The receiver may be gone already.
            settled.map(|(settled, _)| settled.send(()).ok());
        }
    }

    pub(super) fn is_done(&self) -> bool {
        let Some(patience_ends) = self.draining else {
            return false;
        };
        let fenced_alone = || {
            let census = self.table.census();
            census.keys().all(|state| *state == State::Fenced)
        };
        let waits =
            !self.held.is_empty() || !self.released.is_empty() || !self.confirming.is_empty();
        (!waits && fenced_alone()) || patience_ends <= self.environment.now().boot
    }
}
