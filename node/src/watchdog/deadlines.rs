//! Deadlines of the leases of one kind that are ended by name, and which of them the daemon has missed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fabricbios_lease::BootTime;
use fabricbios_wire::{Generation, LeaseId, ResourceType};

use super::message::WatchdogMessage;

/// How long after a deadline a running daemon may take for its own cut and proof. By then the daemon has fenced a lease
/// that it could not cut, or still waits for a slow proof ([`fabricbios_lease::Offer::cut_within`]): a second end by
/// the watchdog does no harm.
pub(super) const DAEMON_PATIENCE: Duration = Duration::from_secs(2);

/// Pause before a failed end is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Deadlines {
    kind: ResourceType,
    leases: BTreeMap<LeaseId, Known>,
    /// The deadlines, the earliest first. The lease that is currently ended has no entry.
    ends: BTreeSet<(BootTime, LeaseId)>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    generation: Generation,
    end: BootTime,
    failures: u32,
    /// [`Deadlines::take_due`] returned this lease, and no message came since.
    is_ending: bool,
}

impl Deadlines {
    pub(super) fn new(kind: ResourceType) -> Self {
        Self {
            kind,
            leases: BTreeMap::new(),
            ends: BTreeSet::new(),
        }
    }

    pub(super) fn kind(&self) -> ResourceType {
        self.kind
    }

    /// Notes a message about a lease of this kind. The newest generation counts; within a generation, the last message.
    pub(super) fn note(&mut self, message: WatchdogMessage) {
        match message {
            WatchdogMessage::Until(kind, lease, generation, end)
                if kind == self.kind && self.is_news(lease, generation) =>
            {
                self.forget(lease);
                let known = Known {
                    generation,
                    end,
                    failures: 0,
                    is_ending: false,
                };
                self.leases.insert(lease, known);
                self.ends.insert((end, lease));
            }
            WatchdogMessage::Over(kind, lease, generation)
                if kind == self.kind && self.is_news(lease, generation) =>
            {
                self.forget(lease);
            }
            _ => {}
        }
    }

    /// When [`Deadlines::take_due`] next returns a lease. `patience`: the time that the daemon has for its own end.
    pub(super) fn next(&self, patience: Duration) -> Option<BootTime> {
        let (end, _) = self.ends.first()?;
        Some(*end + patience)
    }

    /// An overdue lease for the caller to end now; the caller reports with [`Deadlines::ended`] or
    /// [`Deadlines::try_again`].
    pub(super) fn take_due(&mut self, now: BootTime, patience: Duration) -> Option<LeaseId> {
        if self.next(patience).is_none_or(|next| now < next) {
            return None;
        }
        let (_, lease) = self.ends.pop_first()?;
        self.leases.get_mut(&lease)?.is_ending = true;
        Some(lease)
    }

    /// The lease was ended. If the daemon has sent a message meanwhile, the lease stays with the deadline of the
    /// message.
    pub(super) fn ended(&mut self, lease: LeaseId) {
        if self.leases.get(&lease).is_some_and(|it| it.is_ending) {
            self.leases.remove(&lease);
        }
    }

    /// Schedules another try of a failed end, unless the daemon has sent a message meanwhile. The daemon has had its
    /// `patience`. Returns the number of failures.
    pub(super) fn try_again(
        &mut self,
        now: BootTime,
        patience: Duration,
        lease: LeaseId,
    ) -> Option<u32> {
        let known = self.leases.get_mut(&lease).filter(|it| it.is_ending)?;
        known.is_ending = false;
        known.failures += 1;
        let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        known.end = BootTime((now + AGAIN).0.saturating_sub(patience));
        self.ends.insert((known.end, lease));
        Some(known.failures)
    }

    /// True if there is no lease.
    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Messages with all deadlines, for another watchdog.
    pub(super) fn messages(&self) -> impl Iterator<Item = WatchdogMessage> + '_ {
        let until = |(lease, known): (&LeaseId, &Known)| {
            WatchdogMessage::Until(self.kind, *lease, known.generation, known.end)
        };
        self.leases.iter().map(until)
    }

    fn is_news(&self, lease: LeaseId, generation: Generation) -> bool {
        let known = self.leases.get(&lease);
        known.is_none_or(|known| known.generation <= generation)
    }

    fn forget(&mut self, lease: LeaseId) {
        if let Some(known) = self.leases.remove(&lease) {
            self.ends.remove(&(known.end, lease));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LeaseId = LeaseId(0xA);
    const B: LeaseId = LeaseId(0xB);
    const KIND: ResourceType = ResourceType::Block;

    fn at(secs: u64) -> BootTime {
        BootTime(0) + Duration::from_secs(secs)
    }

    fn until(lease: LeaseId, generation: u32, secs: u64) -> WatchdogMessage {
        WatchdogMessage::Until(KIND, lease, Generation(generation), at(secs))
    }

    fn over(lease: LeaseId, generation: u32) -> WatchdogMessage {
        WatchdogMessage::Over(KIND, lease, Generation(generation))
    }

    fn watching(messages: &[WatchdogMessage]) -> Deadlines {
        let mut watch = Deadlines::new(KIND);
        messages.iter().for_each(|message| watch.note(*message));
        watch
    }

    fn due(watch: &mut Deadlines, secs: u64) -> Option<LeaseId> {
        watch.take_due(at(secs), Duration::ZERO)
    }

    #[test]
    fn a_daemon_that_lives_has_its_time_first() {
        let mut watch = watching(&[until(A, 1, 10), until(B, 1, 5)]);
        assert_eq!(watch.next(DAEMON_PATIENCE), Some(at(5) + DAEMON_PATIENCE));
        assert_eq!(watch.take_due(at(5), DAEMON_PATIENCE), None);
        let late = at(5) + DAEMON_PATIENCE;
        assert_eq!(watch.take_due(late, DAEMON_PATIENCE), Some(B));
        assert_eq!(watch.take_due(late, DAEMON_PATIENCE), None);
    }

    #[test]
    fn a_lease_that_is_being_ended_is_left_until_it_is_ended() {
        let mut watch = watching(&[until(A, 1, 10)]);
        assert_eq!(due(&mut watch, 9), None);
        assert_eq!(due(&mut watch, 10), Some(A));
        assert!(!watch.is_empty());
        watch.ended(A);
        assert!(watch.is_empty());
    }

    #[test]
    fn what_the_daemon_has_ended_is_not_ended_again() {
        let mut watch = watching(&[until(A, 1, 10), over(A, 1)]);
        assert_eq!(due(&mut watch, 99), None);
        assert!(watch.is_empty());
    }

    #[test]
    fn a_message_about_another_kind_changes_nothing() {
        let mut watch = watching(&[until(A, 1, 10)]);
        watch.note(WatchdogMessage::Over(ResourceType::Cpu, A, Generation(1)));
        watch.note(WatchdogMessage::Until(
            ResourceType::Cpu,
            B,
            Generation(1),
            at(1),
        ));
        assert_eq!(watch.messages().collect::<Vec<_>>(), [until(A, 1, 10)]);
    }

    #[test]
    fn a_renewal_counts_and_what_is_older_does_not() {
        let mut watch = watching(&[until(A, 1, 10), until(A, 1, 20), until(A, 2, 30)]);
        watch.note(until(A, 1, 5));
        watch.note(over(A, 1));
        assert_eq!(watch.next(Duration::ZERO), Some(at(30)));
        // A lease can be shortened.
        watch.note(until(A, 2, 8));
        assert_eq!(watch.next(Duration::ZERO), Some(at(8)));
    }

    #[test]
    fn what_failed_is_tried_again_and_counted() {
        let mut watch = watching(&[until(A, 1, 10)]);
        assert_eq!(due(&mut watch, 10), Some(A));
        for (patience, failures) in [(Duration::ZERO, 1), (DAEMON_PATIENCE, 2)] {
            assert_eq!(watch.try_again(at(10), patience, A), Some(failures));
            assert_eq!(watch.take_due(at(10), patience), None);
            assert_eq!(watch.take_due(at(10) + AGAIN, patience), Some(A));
        }
    }

    #[test]
    fn a_message_that_comes_during_an_end_counts() {
        for fails in [false, true] {
            let mut watch = watching(&[until(A, 1, 10), until(B, 1, 10)]);
            assert_eq!(
                (due(&mut watch, 10), due(&mut watch, 10)),
                (Some(A), Some(B))
            );
            watch.note(until(A, 2, 30));
            watch.note(over(B, 1));
            for lease in [A, B] {
                match fails {
                    true => assert_eq!(watch.try_again(at(11), Duration::ZERO, lease), None),
                    false => watch.ended(lease),
                }
            }
            let left: Vec<_> = watch.messages().collect();
            assert_eq!(left, [until(A, 2, 30)], "fails: {fails}");
            assert_eq!(watch.next(Duration::ZERO), Some(at(30)));
        }
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
