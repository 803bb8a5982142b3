//! Deadlines of leases over RDMA, and which of them the daemon has missed.
//!
//! A busy daemon reports each cut; a stopped or hanging daemon reports none.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fabricbios_lease::BootTime;
use fabricbios_rdma::GuardedPair;
use fabricbios_wire::LeaseId;

use super::{deadlines::DAEMON_PATIENCE, message::WatchdogMessage};

/// Most leases in one cut, because the daemon is stopped during the cut.
const TOGETHER: usize = 256;

/// How often the pause between two failed cuts doubles, up to 64 s.
const DOUBLINGS: u32 = 6;

/// A lease and the queue pairs through which it can be reached.
pub(super) type GuardedLease = (LeaseId, Vec<GuardedPair>);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct RdmaDeadlines {
    leases: BTreeMap<LeaseId, Guarded>,
    /// The known deadlines, the earliest first.
    ends: BTreeSet<(BootTime, LeaseId)>,
    /// Time of the daemon's last message about a cut.
    heard: BootTime,
    failures: u32,
    not_before: BootTime,
}

#[derive(Debug, Default)]
struct Guarded {
    pairs: Vec<GuardedPair>,
    /// `None` until the deadline is known; until then no client knows the queue pairs.
    end: Option<BootTime>,
}

impl RdmaDeadlines {
    /// Notes a message. `now`: when it was received.
    pub(super) fn note(&mut self, message: WatchdogMessage, now: BootTime) {
        match message {
            WatchdogMessage::Opens(lease, pair) => {
                let pairs = &mut self.leases.entry(lease).or_default().pairs;
                pairs.retain(|known| known.number != pair.number);
                pairs.push(pair);
            }
            WatchdogMessage::Extend(lease, end) => {
                if let Some(guarded) = self.leases.get_mut(&lease) {
                    if let Some(before) = guarded.end.replace(end) {
                        self.ends.remove(&(before, lease));
                    }
                    self.ends.insert((end, lease));
                }
            }
            WatchdogMessage::Ends(lease, number) => {
                self.heard = now;
                self.forget(lease, number);
            }
            WatchdogMessage::Moves => self.heard = now,
            _ => {}
        }
    }

    /// When [`RdmaDeadlines::due`] next returns leases.
    pub(super) fn next(&self) -> Option<BootTime> {
        let (end, _) = self.ends.first()?;
        Some((self.heard.max(*end) + DAEMON_PATIENCE).max(self.not_before))
    }

    /// Some of the leases whose cut is overdue, if the daemon has reported no cut meanwhile.
    pub(super) fn due(&self, now: BootTime) -> Vec<GuardedLease> {
        if self.next().is_none_or(|next| now < next) {
            return Vec::new();
        }
        let overdue = self.ends.iter();
        let overdue = overdue.take_while(|(end, _)| *end + DAEMON_PATIENCE <= now);
        overdue
            .take(TOGETHER)
            .filter_map(|(_, lease)| Some((*lease, self.leases.get(lease)?.pairs.clone())))
            .collect()
    }

    /// Notes leases that were cut.
    pub(super) fn cut(&mut self, done: &[GuardedLease]) {
        self.failures = 0;
        for (lease, pairs) in done {
            pairs
                .iter()
                .for_each(|pair| self.forget(*lease, pair.number));
        }
    }

    /// Notes a failed cut. Returns the pause before the next try, which grows.
    pub(super) fn not_cut(&mut self, now: BootTime) -> Duration {
        let pause = Duration::from_secs(1 << self.failures.min(DOUBLINGS));
        self.not_before = now + pause;
        self.failures += 1;
        pause
    }

    /// The daemon's process has ended, and its queue pairs are destroyed.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Messages with all queue pairs and deadlines, for another watchdog.
    pub(super) fn messages(&self) -> impl Iterator<Item = WatchdogMessage> + '_ {
        self.leases.iter().flat_map(|(lease, guarded)| {
            let opens = guarded
                .pairs
                .iter()
                .map(|pair| WatchdogMessage::Opens(*lease, *pair));
            opens.chain(guarded.end.map(|end| WatchdogMessage::Extend(*lease, end)))
        })
    }

    fn forget(&mut self, lease: LeaseId, number: u32) {
        let Some(guarded) = self.leases.get_mut(&lease) else {
            return;
        };
        guarded.pairs.retain(|pair| pair.number != number);
        if guarded.pairs.is_empty()
            && let Some(end) = self.leases.remove(&lease).and_then(|it| it.end)
        {
            self.ends.remove(&(end, lease));
        }
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

    fn pair(number: u32) -> GuardedPair {
        GuardedPair {
            number,
            peer: number + 100,
            handle: number,
            descriptor: 5,
            driver: 14,
            device_index: 0,
            port: 1,
        }
    }

    fn told(messages: &[WatchdogMessage]) -> RdmaDeadlines {
        let mut memory = RdmaDeadlines::default();
        messages
            .iter()
            .for_each(|message| memory.note(*message, at(0)));
        memory
    }

    /// Two leases: A until 10, B until 12.
    fn two() -> RdmaDeadlines {
        told(&[
            WatchdogMessage::Opens(A, pair(1)),
            WatchdogMessage::Extend(A, at(10)),
            WatchdogMessage::Opens(B, pair(2)),
            WatchdogMessage::Extend(B, at(12)),
        ])
    }

    #[test]
    fn two_seconds_of_silence_after_its_deadline_a_lease_is_cut_and_its_neighbour_is_not() {
        let mut memory = two();
        assert_eq!(memory.next(), Some(at(12)));
        assert_eq!(memory.due(at(11)), []);
        let due = memory.due(at(12));
        assert_eq!(due, [(A, vec![pair(1)])]);
        memory.cut(&due);
        assert_eq!((memory.due(at(13)), memory.next()), (vec![], Some(at(14))));
        assert_eq!(memory.due(at(14)), [(B, vec![pair(2)])]);
    }

    #[test]
    fn a_daemon_that_goes_on_with_its_cuts_is_let_do_so() {
        let mut memory = two();
        memory.note(WatchdogMessage::Moves, at(11));
        assert_eq!((memory.due(at(12)), memory.next()), (vec![], Some(at(13))));
        memory.note(WatchdogMessage::Ends(LeaseId(0xC), 7), at(13));
        assert_eq!((memory.due(at(14)), memory.next()), (vec![], Some(at(15))));
        assert_eq!(memory.due(at(15)).len(), 2);
    }

    #[test]
    fn what_the_daemon_has_cut_or_told_of_as_failed_is_not_cut_again() {
        let mut memory = two();
        memory.note(WatchdogMessage::Ends(A, 1), at(10));
        assert_eq!(memory.due(at(12)), []);
        memory.note(WatchdogMessage::Ends(B, 2), at(12));
        assert_eq!((memory.next(), memory.is_empty()), (None, true));
    }

    #[test]
    fn a_lease_moves_to_another_queue_pair_and_its_term_is_renewed() {
        let mut memory = two();
        for message in [
            WatchdogMessage::Opens(A, pair(3)),
            WatchdogMessage::Ends(A, 1),
            WatchdogMessage::Extend(A, at(30)),
        ] {
            memory.note(message, at(5));
        }
        assert_eq!(memory.due(at(14)), [(B, vec![pair(2)])]);
        memory.note(WatchdogMessage::Extend(A, at(8)), at(5));
        assert_eq!(memory.due(at(10)), [(A, vec![pair(3)])]);
    }

    #[test]
    fn pairs_of_which_nobody_was_told_have_no_end_and_a_lease_without_pairs_none_to_keep() {
        let mut memory = told(&[
            WatchdogMessage::Opens(A, pair(1)),
            WatchdogMessage::Extend(B, at(1)),
        ]);
        assert_eq!((memory.next(), memory.due(at(99))), (None, vec![]));
        memory.note(WatchdogMessage::Ends(A, 1), at(1));
        assert!(memory.is_empty());
    }

    #[test]
    fn what_fails_is_tried_again_less_and_less_often() {
        let mut memory = two();
        let mut now = at(20);
        for pause in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert_eq!(memory.due(now).len(), 2);
            memory.not_cut(now);
            assert_eq!(memory.due(now), []);
            now = now + Duration::from_secs(pause);
            assert_eq!(memory.next(), Some(now));
        }
        memory.cut(&[(A, vec![pair(1)])]);
        memory.not_cut(now);
        assert_eq!(memory.next(), Some(now + Duration::from_secs(1)));
    }

    #[test]
    fn a_successor_can_be_told_everything() {
        let messages: Vec<WatchdogMessage> = two().messages().collect();
        assert_eq!(told(&messages).messages().collect::<Vec<_>>(), messages);
        assert_eq!(told(&messages).due(at(14)), two().due(at(14)));
    }
}
