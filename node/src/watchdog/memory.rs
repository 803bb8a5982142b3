//! Which leases over RDMA end when, and which of them the daemon should have cut by now.
//!
//! A daemon that is busy cuts one lease after the other and says so; one that is stopped or hangs says nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fabricbios_lease::BootTime;
use fabricbios_rdma::GuardedPair;
use fabricbios_wire::LeaseId;

use super::{watch::DAEMON_PATIENCE, word::Word};

/// Leases that are cut together: the daemon does not run meanwhile, and may have others to attend to.
const TOGETHER: usize = 256;

/// The time between two tries of what fails doubles so often: up to 64 s.
const DOUBLINGS: u32 = 6;

/// A lease and the queue pairs through which it can be reached.
pub(super) type Reach = (LeaseId, Vec<GuardedPair>);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Memory {
    leases: BTreeMap<LeaseId, Guarded>,
    /// The ends that are known, the earliest first.
    ends: BTreeSet<(BootTime, LeaseId)>,
    /// When the daemon last said something about a cut.
    heard: BootTime,
    failures: u32,
    not_before: BootTime,
}

#[derive(Debug, Default)]
struct Guarded {
    pairs: Vec<GuardedPair>,
    /// Nobody has been told of the pairs before this is known.
    end: Option<BootTime>,
}

impl Memory {
    /// `now`: when it was said.
    pub(super) fn hear(&mut self, word: Word, now: BootTime) {
        match word {
            Word::Opens(lease, pair) => {
                let pairs = &mut self.leases.entry(lease).or_default().pairs;
                pairs.retain(|known| known.number != pair.number);
                pairs.push(pair);
            }
            Word::Extend(lease, end) => {
                if let Some(guarded) = self.leases.get_mut(&lease) {
                    if let Some(before) = guarded.end.replace(end) {
                        self.ends.remove(&(before, lease));
                    }
                    self.ends.insert((end, lease));
                }
            }
            Word::Ends(lease, number) => {
                self.heard = now;
                self.forget(lease, number);
            }
            Word::Moves => self.heard = now,
            _ => {}
        }
    }

    /// When [`Memory::due`] has something to say.
    pub(super) fn next(&self) -> Option<BootTime> {
        let (end, _) = self.ends.first()?;
        Some((self.heard.max(*end) + DAEMON_PATIENCE).max(self.not_before))
    }

    /// Leases that somebody should have cut by now, some of them: the daemon has said nothing of cuts meanwhile.
    pub(super) fn due(&self, now: BootTime) -> Vec<Reach> {
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

    /// These were cut.
    pub(super) fn cut(&mut self, done: &[Reach]) {
        self.failures = 0;
        for (lease, pairs) in done {
            pairs
                .iter()
                .for_each(|pair| self.forget(*lease, pair.number));
        }
    }

    /// The cut failed: it is tried again, less and less often; how long it waits.
    pub(super) fn not_cut(&mut self, now: BootTime) -> Duration {
        let pause = Duration::from_secs(1 << self.failures.min(DOUBLINGS));
        self.not_before = now + pause;
        self.failures += 1;
        pause
    }

    /// The daemon's process is gone, and its queue pairs with it.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Everything that is known, to be said once more.
    pub(super) fn words(&self) -> impl Iterator<Item = Word> + '_ {
        self.leases.iter().flat_map(|(lease, guarded)| {
            let opens = guarded.pairs.iter().map(|pair| Word::Opens(*lease, *pair));
            opens.chain(guarded.end.map(|end| Word::Extend(*lease, end)))
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

    fn told(words: &[Word]) -> Memory {
        let mut memory = Memory::default();
        words.iter().for_each(|word| memory.hear(*word, at(0)));
        memory
    }

    /// A until 10, B until 12.
    fn two() -> Memory {
        told(&[
            Word::Opens(A, pair(1)),
            Word::Extend(A, at(10)),
            Word::Opens(B, pair(2)),
            Word::Extend(B, at(12)),
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
        memory.hear(Word::Moves, at(11));
        assert_eq!((memory.due(at(12)), memory.next()), (vec![], Some(at(13))));
        memory.hear(Word::Ends(LeaseId(0xC), 7), at(13));
        assert_eq!((memory.due(at(14)), memory.next()), (vec![], Some(at(15))));
        assert_eq!(memory.due(at(15)).len(), 2);
    }

    #[test]
    fn what_the_daemon_has_cut_or_told_of_as_failed_is_not_cut_again() {
        let mut memory = two();
        memory.hear(Word::Ends(A, 1), at(10));
        assert_eq!(memory.due(at(12)), []);
        memory.hear(Word::Ends(B, 2), at(12));
        assert_eq!((memory.next(), memory.is_empty()), (None, true));
    }

    #[test]
    fn a_lease_moves_to_another_queue_pair_and_its_term_is_renewed() {
        let mut memory = two();
        for word in [
            Word::Opens(A, pair(3)),
            Word::Ends(A, 1),
            Word::Extend(A, at(30)),
        ] {
            memory.hear(word, at(5));
        }
        assert_eq!(memory.due(at(14)), [(B, vec![pair(2)])]);
        memory.hear(Word::Extend(A, at(8)), at(5));
        assert_eq!(memory.due(at(10)), [(A, vec![pair(3)])]);
    }

    #[test]
    fn pairs_of_which_nobody_was_told_have_no_end_and_a_lease_without_pairs_none_to_keep() {
        let mut memory = told(&[Word::Opens(A, pair(1)), Word::Extend(B, at(1))]);
        assert_eq!((memory.next(), memory.due(at(99))), (None, vec![]));
        memory.hear(Word::Ends(A, 1), at(1));
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
        let words: Vec<Word> = two().words().collect();
        assert_eq!(told(&words).words().collect::<Vec<_>>(), words);
        assert_eq!(told(&words).due(at(14)), two().due(at(14)));
    }
}
