//! Which requests of a session were done, and their results.
//!
//! The window is read before a request is done and written after it, both under the lock of the lease, so that the same
//! request on two sockets is done once. A request that waits for the storage is recorded when it begins, and its status
//! when it ends.

use fabricbios_wire::{DATA_TAG_LEN, DataStatus};

/// How many requests a session remembers. HELLO returns the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayWindow(u16);

impl ReplayWindow {
    /// 128 requests, the default.
    pub const LONGEST: Self = Self(128);
    /// 64 requests, the least that the protocol allows.
    pub const SHORTEST: Self = Self(64);

    /// The number of requests.
    #[must_use]
    pub fn requests(self) -> u16 {
        self.0
    }
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self::LONGEST
    }
}

const SLOTS: usize = ReplayWindow::LONGEST.0 as usize;

/// The first bytes of a request's tag. They distinguish it from another request with the same nonce.
pub(crate) type Mark = [u8; 8];

/// The mark of a tag.
#[must_use]
pub(crate) fn mark(tag: &[u8; DATA_TAG_LEN]) -> Mark {
    core::array::from_fn(|i| tag[i])
}

/// The state of a request in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The request is new.
    Fresh,
    /// The request was done, with this status.
    Same(DataStatus),
    /// The request is in flight.
    InFlight,
    /// Another request used its counter.
    Other,
    /// Its counter is behind the window.
    TooOld,
}

/// The last counters up to the highest.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    length: ReplayWindow,
    highest: u32,
    /// Bit `i` is the counter `highest - i`.
    used: u128,
    /// By counter modulo the longest window; `None`: in flight.
    statuses: [Option<DataStatus>; SLOTS],
    marks: [Mark; SLOTS],
}

impl Window {
    /// Nothing is remembered.
    pub(crate) fn new(length: ReplayWindow) -> Self {
        Self {
            length,
            highest: 0,
            used: 0,
            statuses: [None; SLOTS],
            marks: [Mark::default(); SLOTS],
        }
    }

    /// The highest counter that was used; 0: none.
    #[must_use]
    pub(crate) fn highest(&self) -> u32 {
        self.highest
    }

    /// Looks up the request with this counter and mark.
    #[must_use]
    pub(crate) fn look(&self, counter: u32, mark: Mark) -> Seen {
        let Some(age) = self.highest.checked_sub(counter) else {
            return Seen::Fresh;
        };
        if self.is_behind(counter) {
            return Seen::TooOld;
        }
        let at = slot(counter);
        match self.used >> age & 1 {
            0 => Seen::Fresh,
            _ if self.marks[at] == mark => self.statuses[at].map_or(Seen::InFlight, Seen::Same),
            _ => Seen::Other,
        }
    }

    /// Whether a counter is behind the window.
    #[must_use]
    pub(crate) fn is_behind(&self, counter: u32) -> bool {
        self.highest.saturating_sub(counter) >= u32::from(self.length.0)
    }

    /// Records a request. `status` is `None` while it is in flight. `false`: its counter was used, or is behind the
    /// window.
    pub(crate) fn commit(&mut self, counter: u32, mark: Mark, status: Option<DataStatus>) -> bool {
        let is_fresh = self.look(counter, mark) == Seen::Fresh;
        if let Some(ahead @ 1..) = counter.checked_sub(self.highest) {
            self.used = self.used.checked_shl(ahead).unwrap_or(0);
            self.highest = counter;
        }
        self.used |= 1u128.checked_shl(self.highest - counter).unwrap_or(0);
        self.statuses[slot(counter)] = status;
        self.marks[slot(counter)] = mark;
        is_fresh
    }

    /// Records the status of a request that was in flight, unless it fell behind the window. Returns the request as it
    /// was before.
    pub(crate) fn finish(&mut self, counter: u32, mark: Mark, status: DataStatus) -> Seen {
        let seen = self.look(counter, mark);
        if seen == Seen::InFlight {
            self.statuses[slot(counter)] = Some(status);
        }
        seen
    }
}

fn slot(counter: u32) -> usize {
    // The remainder is below 128 on every machine.
    (counter % u32::from(ReplayWindow::LONGEST.0)) as usize
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const A: Mark = *b"aaaaaaaa";
    const B: Mark = *b"bbbbbbbb";

    #[test]
    fn what_is_under_way_has_an_answer_when_it_is_over() {
        let mut window = Window::new(ReplayWindow::LONGEST);
        window.commit(1, A, None);
        assert_eq!(window.look(1, A), Seen::InFlight);
        assert_eq!(window.look(1, B), Seen::Other);
        window.finish(1, A, DataStatus::Io);
        window.finish(1, A, DataStatus::Ok);
        assert_eq!(window.look(1, A), Seen::Same(DataStatus::Io));
    }

    #[test]
    fn an_end_that_comes_too_late_hits_no_other_request() {
        let mut window = Window::new(ReplayWindow::LONGEST);
        window.commit(1, A, None);
        window.commit(129, B, None);
        window.finish(1, A, DataStatus::Io);
        assert_eq!(window.look(129, B), Seen::InFlight);
        assert_eq!(window.look(1, A), Seen::TooOld);
    }

    proptest! {
        /// The window answers like a map of all counters ever used, except that it forgets the old ones.
        #[test]
        fn the_window_is_a_map_with_a_short_memory(
            steps in prop::collection::vec((1..1000u32, 0..3u8), 1..400),
            base in prop::sample::select(&[0, 70_000, u32::MAX - 1000][..]),
            length in prop::sample::select(&[ReplayWindow::LONGEST, ReplayWindow::SHORTEST][..]),
        ) {
            let mut window = Window::new(length);
            let mut all: BTreeMap<u32, Mark> = BTreeMap::new();
            for (counter, who) in steps {
                let (counter, mark) = (base + counter, [who; 8]);
                let highest = all.keys().next_back().copied().unwrap_or(0);
                let expected = match all.get(&counter) {
                    _ if u64::from(counter) + u64::from(length.requests()) <= u64::from(highest) => Seen::TooOld,
                    None => Seen::Fresh,
                    Some(used) if *used == mark => Seen::Same(DataStatus::Ok),
                    Some(_) => Seen::Other,
                };
                prop_assert_eq!(window.look(counter, mark), expected);
                if expected == Seen::Fresh {
                    window.commit(counter, mark, Some(DataStatus::Ok));
                    all.insert(counter, mark);
                }
            }
        }
    }
}
