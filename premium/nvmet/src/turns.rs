//! Who goes first at the kernel's one lock for all of its target's configuration.
//!
//! Cuts that end access take turns: side by side, each would have its first step behind the first steps of
//! all others, its second behind their second ones, and all of them would be through only at the very end.
//! Cuts that only prove it let those go first.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, Thread, ThreadId},
    time::{Duration, Instant},
};

/// Longest that somebody waits while nobody moves: who is at it may be stuck in the kernel.
const STUCK: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Turns {
    stuck: Duration,
    line: Mutex<Line>,
    over: Condvar,
}

#[derive(Debug)]
struct Line {
    waiting: VecDeque<Thread>,
    ending: usize,
    moved: Instant,
}

/// A turn, as long as it lives.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
}

impl Default for Turns {
    fn default() -> Self {
        Self::new(STUCK)
    }
}

impl Line {
    fn is_over(&self) -> bool {
        self.ending == 0 && self.waiting.is_empty()
    }

    /// How long the thread has to wait at most; `None`: it is its turn.
    fn wait_for(&self, me: ThreadId, stuck: Duration) -> Option<Duration> {
        let is_first = self.waiting.front().is_some_and(|first| first.id() == me);
        if is_first && self.ending == 0 {
            return None;
        }
        let left = stuck.saturating_sub(self.moved.elapsed());
        (!left.is_zero()).then_some(left)
    }
}

impl Turns {
    fn new(stuck: Duration) -> Self {
        let line = Line {
            waiting: VecDeque::new(),
            ending: 0,
            moved: Instant::now(),
        };
        Self {
            stuck,
            line: Mutex::new(line),
            over: Condvar::new(),
        }
    }

    /// When those that came before are through, or one of them is stuck.
    pub(super) fn begin(&self) -> Turn<'_> {
        let me = thread::current();
        let mut line = self.lock();
        if line.is_over() {
            line.moved = Instant::now();
        }
        line.waiting.push_back(me.clone());
        while let Some(left) = line.wait_for(me.id(), self.stuck) {
            drop(line);
            thread::park_timeout(left);
            line = self.lock();
        }
        line.waiting.retain(|waiting| waiting.id() != me.id());
        line.ending += 1;
        Turn { turns: self }
    }

    /// Until no cut is ending access, or long enough.
    pub(super) fn step_aside(&self) {
        let some = |line: &mut Line| !line.is_over();
        drop(self.over.wait_timeout_while(self.lock(), self.stuck, some));
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut line = self.turns.lock();
        line.ending -= 1;
        line.moved = Instant::now();
        match line.waiting.front() {
            Some(next) => next.unpark(),
            None => self.turns.over.notify_all(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_take_turns_in_the_order_in_which_they_came() {
        let turns = Turns::new(Duration::MAX);
        let seen = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let first = turns.begin();
            for number in 0..4 {
                let (turns, seen) = (&turns, &seen);
                scope.spawn(move || {
                    let _turn = turns.begin();
                    seen.lock().unwrap().push(number);
                });
                while turns.lock().waiting.len() <= number {
                    thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(*seen.lock().unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn who_is_stuck_holds_up_neither_cuts_nor_proofs() {
        let turns = Turns::new(Duration::from_millis(1));
        let stuck = turns.begin();
        drop(turns.begin());
        turns.step_aside();
        drop(stuck);
        turns.step_aside();
    }
}
