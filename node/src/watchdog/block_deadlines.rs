//! Deadlines of leases over NVMe-oF, and which of them the daemon has missed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fabricbios_lease::BootTime;
use fabricbios_wire::{Generation, LeaseId, ResourceType};

use super::message::WatchdogMessage;

/// How long after a deadline a running daemon may take for its own cut and proof. By then it has fenced a lease that it
/// could not cut.
pub(super) const DAEMON_PATIENCE: Duration = Duration::from_secs(2);

/// Pause before a failed cut is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct BlockDeadlines {
    leases: BTreeMap<LeaseId, Known>,
    /// The deadlines, the earliest first.
    ends: BTreeSet<(BootTime, LeaseId)>,
    is_orphan: bool,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    generation: Generation,
    end: BootTime,
    failures: u32,
}

/// A lease whose cut is overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) lease: LeaseId,
    generation: Generation,
    /// Number of failed cuts.
    pub(super) failures: u32,
}

impl BlockDeadlines {
    /// Notes a message. The newest generation counts; within a generation, the last message.
    pub(super) fn note(&mut self, message: WatchdogMessage) {
        match message {
            WatchdogMessage::Until(_, lease, generation, deadline)
                if self.is_news(lease, generation) =>
            {
                self.set(lease, generation, deadline, 0);
            }
            WatchdogMessage::Over(_, lease, generation) if self.is_news(lease, generation) => {
                self.forget(lease);
            }
            _ => {}
        }
    }

    /// The daemon is gone: only the watchdog can cut.
    pub(super) fn orphan(&mut self) {
        self.is_orphan = true;
    }

    pub(super) fn is_orphan(&self) -> bool {
        self.is_orphan
    }

    /// When [`BlockDeadlines::take_due`] returns a lease next.
    pub(super) fn next(&self) -> Option<BootTime> {
        let (end, _) = self.ends.first()?;
        Some(*end + self.patience())
    }

    /// Removes and returns an overdue lease.
    pub(super) fn take_due(&mut self, now: BootTime) -> Option<Due> {
        let (end, lease) = *self.ends.first()?;
        if now < end + self.patience() {
            return None;
        }
        let Known {
            generation,
            failures,
            ..
        } = self.forget(lease)?;
        Some(Due {
            lease,
            generation,
            failures,
        })
    }

    /// Schedules another try of a failed cut, unless the daemon sends a newer message.
    pub(super) fn try_again(&mut self, now: BootTime, due: Due) {
        self.set(due.lease, due.generation, now + AGAIN, due.failures + 1);
    }

    /// True if no lease is left and no message will come.
    pub(super) fn is_done(&self) -> bool {
        self.is_orphan && self.leases.is_empty()
    }

    /// The messages that tell another watchdog all deadlines.
    pub(super) fn messages(&self) -> impl Iterator<Item = WatchdogMessage> + '_ {
        let known = self.leases.iter();
        known.map(|(lease, known)| {
            WatchdogMessage::Until(ResourceType::Block, *lease, known.generation, known.end)
        })
    }

    fn patience(&self) -> Duration {
        match self.is_orphan {
            true => Duration::ZERO,
            false => DAEMON_PATIENCE,
        }
    }

    fn is_news(&self, lease: LeaseId, generation: Generation) -> bool {
        let known = self.leases.get(&lease);
        known.is_none_or(|known| known.generation <= generation)
    }

    fn set(&mut self, lease: LeaseId, generation: Generation, end: BootTime, failures: u32) {
        self.forget(lease);
        let known = Known {
            generation,
            end,
            failures,
        };
        self.leases.insert(lease, known);
        self.ends.insert((end, lease));
    }

    fn forget(&mut self, lease: LeaseId) -> Option<Known> {
        let known = self.leases.remove(&lease)?;
        self.ends.remove(&(known.end, lease));
        Some(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LeaseId = LeaseId(0xA);
    const B: LeaseId = LeaseId(0xB);

    fn at(secs: u64) -> BootTime {
        BootTime(0) + Duration::from_secs(secs)
    }

    fn until(lease: LeaseId, generation: u32, secs: u64) -> WatchdogMessage {
        WatchdogMessage::Until(ResourceType::Block, lease, Generation(generation), at(secs))
    }

    fn due(lease: LeaseId, failures: u32) -> Option<Due> {
        Some(Due {
            lease,
            generation: Generation(1),
            failures,
        })
    }

    fn watching(messages: &[WatchdogMessage]) -> BlockDeadlines {
        let mut watch = BlockDeadlines::default();
        messages.iter().for_each(|message| watch.note(*message));
        watch
    }

    #[test]
    fn a_daemon_that_lives_has_its_time_first() {
        let mut watch = watching(&[until(A, 1, 10), until(B, 1, 5)]);
        assert_eq!(watch.next(), Some(at(5) + DAEMON_PATIENCE));
        assert_eq!(watch.take_due(at(5)), None);
        assert_eq!(watch.take_due(at(5) + DAEMON_PATIENCE), due(B, 0));
        assert_eq!(watch.take_due(at(5) + DAEMON_PATIENCE), None);
    }

    #[test]
    fn without_a_daemon_a_lease_ends_at_its_deadline() {
        let mut watch = watching(&[until(A, 1, 10)]);
        watch.orphan();
        assert_eq!(watch.next(), Some(at(10)));
        assert_eq!(watch.take_due(at(9)), None);
        assert!(!watch.is_done());
        assert_eq!(watch.take_due(at(10)), due(A, 0));
        assert!(watch.is_done());
    }

    #[test]
    fn what_the_daemon_has_cut_is_not_cut_again() {
        let mut watch = watching(&[
            until(A, 1, 10),
            WatchdogMessage::Over(ResourceType::Block, A, Generation(1)),
        ]);
        assert_eq!((watch.next(), watch.take_due(at(99))), (None, None));
        // More leases may come.
        assert!(!watch.is_done());
    }

    #[test]
    fn a_renewal_counts_and_what_is_older_does_not() {
        let mut watch = watching(&[until(A, 1, 10), until(A, 1, 20), until(A, 2, 30)]);
        watch.note(until(A, 1, 5));
        watch.note(WatchdogMessage::Over(ResourceType::Block, A, Generation(1)));
        assert_eq!(watch.next(), Some(at(30) + DAEMON_PATIENCE));
        // A lease can be shortened.
        watch.note(until(A, 2, 8));
        assert_eq!(watch.next(), Some(at(8) + DAEMON_PATIENCE));
    }

    #[test]
    fn what_failed_is_tried_again() {
        let mut watch = watching(&[until(A, 1, 10)]);
        watch.orphan();
        assert_eq!(watch.take_due(at(10)), due(A, 0));
        watch.try_again(at(10), due(A, 0).unwrap());
        assert_eq!(watch.take_due(at(10)), None);
        assert_eq!(watch.take_due(at(10) + AGAIN), due(A, 1), "and counted");
    }

    #[test]
    fn a_successor_can_be_told_everything() {
        let watch = watching(&[until(A, 1, 10), until(B, 3, 5), until(A, 2, 7)]);
        assert_eq!(
            watch.messages().collect::<Vec<_>>(),
            [until(A, 2, 7), until(B, 3, 5)]
        );
    }
}
