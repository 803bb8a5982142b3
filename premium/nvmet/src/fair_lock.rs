//! Decides which cut uses the kernel's target next: the kernel has one lock for the target's whole configuration.
//!
//! Cuts end access one after the other. If they ran side by side, the first step of each would wait for the first steps
//! of all others, and so on, and all of them would end only at the very end. Cuts that only prove the end of access let
//! the other cuts go first.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, Thread, ThreadId},
    time::{Duration, Instant},
};

/// Longest wait without progress: the thread whose turn it is may be stuck in the kernel.
const STUCK: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct FairLock {
    stuck: Duration,
    queue: Mutex<Queue>,
    over: Condvar,
}

#[derive(Debug)]
struct Queue {
    waiting: VecDeque<Thread>,
    ending: usize,
    moved: Instant,
}

/// The turn of one thread. A drop ends the turn.
#[derive(Debug)]
pub(super) struct FairGuard<'a> {
    fair_lock: &'a FairLock,
}

impl Default for FairLock {
    fn default() -> Self {
        Self::new(STUCK)
    }
}

impl Queue {
    fn is_over(&self) -> bool {
        self.ending == 0 && self.waiting.is_empty()
    }

    /// Longest wait of the thread; `None`: it is the thread's turn.
    fn wait_for(&self, me: ThreadId, stuck: Duration) -> Option<Duration> {
        let is_first = self.waiting.front().is_some_and(|first| first.id() == me);
        if is_first && self.ending == 0 {
            return None;
        }
        let left = stuck.saturating_sub(self.moved.elapsed());
        (!left.is_zero()).then_some(left)
    }
}

impl FairLock {
    fn new(stuck: Duration) -> Self {
        let queue = Queue {
            waiting: VecDeque::new(),
            ending: 0,
            moved: Instant::now(),
        };
        Self {
            stuck,
            queue: Mutex::new(queue),
            over: Condvar::new(),
        }
    }

    /// Waits until earlier threads have finished, or one of them is stuck.
    pub(super) fn acquire(&self) -> FairGuard<'_> {
        let me = thread::current();
        let mut queue = self.lock();
        if queue.is_over() {
            queue.moved = Instant::now();
        }
        queue.waiting.push_back(me.clone());
        while let Some(left) = queue.wait_for(me.id(), self.stuck) {
            drop(queue);
            thread::park_timeout(left);
            queue = self.lock();
        }
        queue.waiting.retain(|waiting| waiting.id() != me.id());
        queue.ending += 1;
        FairGuard { fair_lock: self }
    }

    /// Waits until no cut is ending access, or one of them is stuck.
    pub(super) fn wait_until_idle(&self) {
        let some = |queue: &mut Queue| !queue.is_over();
        drop(self.over.wait_timeout_while(self.lock(), self.stuck, some));
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FairGuard<'_> {
    fn drop(&mut self) {
        let mut queue = self.fair_lock.lock();
        queue.ending -= 1;
        queue.moved = Instant::now();
        match queue.waiting.front() {
            Some(next) => next.unpark(),
            None => self.fair_lock.over.notify_all(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_take_guards_in_the_order_in_which_they_came() {
        let fair_lock = FairLock::new(Duration::MAX);
        let seen = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let first = fair_lock.acquire();
            for number in 0..4 {
                let (fair_lock, seen) = (&fair_lock, &seen);
                scope.spawn(move || {
                    let _guard = fair_lock.acquire();
                    seen.lock().unwrap().push(number);
                });
                while fair_lock.lock().waiting.len() <= number {
                    thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(*seen.lock().unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn who_is_stuck_holds_up_neither_cuts_nor_proofs() {
        let fair_lock = FairLock::new(Duration::from_millis(1));
        let stuck = fair_lock.acquire();
        drop(fair_lock.acquire());
        fair_lock.wait_until_idle();
        drop(stuck);
        fair_lock.wait_until_idle();
    }
}
