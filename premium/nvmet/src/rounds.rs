//! Questions of many that are answered together: whoever comes while nobody asks does it for those that wait,
//! and who comes meanwhile is in a later round.

use std::{
    collections::BTreeMap,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Longer than any round takes that is not stuck in the kernel, and than any cut is waited for by default.
const PATIENCE: Duration = Duration::from_secs(15);

/// Questions that wait and answers that were not fetched yet, by the order in which they came.
#[derive(Debug)]
pub(super) struct Rounds<Q, A> {
    /// Questions in one round.
    at_most: usize,
    /// Longest that somebody waits while no round ends.
    patience: Duration,
    inner: Mutex<Inner<Q, A>>,
    over: Condvar,
}

#[derive(Debug)]
struct Inner<Q, A> {
    next: u64,
    is_led: bool,
    waiting: BTreeMap<u64, Q>,
    answers: BTreeMap<u64, A>,
}

impl<Q, A> Default for Rounds<Q, A> {
    fn default() -> Self {
        let inner = Inner {
            next: 0,
            is_led: false,
            waiting: BTreeMap::new(),
            answers: BTreeMap::new(),
        };
        Self {
            at_most: usize::MAX,
            patience: PATIENCE,
            inner: Mutex::new(inner),
            over: Condvar::new(),
        }
    }
}

impl<Q: Clone, A> Rounds<Q, A> {
    /// Where a round takes the longer the more it answers: those who are answered go on, and are seen to,
    /// while the next ones are asked.
    pub(super) fn of_at_most(questions: usize) -> Self {
        Self {
            at_most: questions,
            ..Self::default()
        }
    }

    /// The answer to `question`, from a round that began after this call. `hold` answers all of one round,
    /// in their order; every caller brings the same. Who came first is in the first round that there is room in.
    /// `None`: for [`PATIENCE`] no round has ended.
    pub(super) fn ask(&self, question: Q, hold: impl Fn(&[Q]) -> Vec<A>) -> Option<A> {
        let mut inner = self.lock();
        let mine = inner.next;
        inner.next += 1;
        inner.waiting.insert(mine, question);
        loop {
            if let Some(answer) = inner.answers.remove(&mine) {
                return Some(answer);
            }
            if !inner.is_led {
                inner = self.lead(mine, inner, &hold);
                continue;
            }
            let waited = self.over.wait_timeout(inner, self.patience);
            let (woken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            inner = woken;
            if waited.timed_out() && inner.waiting.remove(&mine).is_some() {
                return None;
            }
        }
    }

    fn lead<'a>(
        &'a self,
        mine: u64,
        mut inner: MutexGuard<'a, Inner<Q, A>>,
        hold: impl Fn(&[Q]) -> Vec<A>,
    ) -> MutexGuard<'a, Inner<Q, A>> {
        inner.is_led = true;
        let waiting = inner.waiting.clone().into_iter();
        let (numbers, questions): (Vec<u64>, Vec<Q>) = waiting.take(self.at_most).unzip();
        drop(inner);
        let led = Led { rounds: self, mine };
        let answers = hold(&questions);
        let mut inner = self.lock();
        for (number, answer) in numbers.into_iter().zip(answers) {
            // Who has given up fetches no answer.
            if inner.waiting.remove(&number).is_some() {
                inner.answers.insert(number, answer);
            }
        }
        drop(inner);
        drop(led);
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Inner<Q, A>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// However a round ends, another can be held: what it did not answer waits on, but for what nobody waits
/// for any more.
struct Led<'a, Q: Clone, A> {
    rounds: &'a Rounds<Q, A>,
    mine: u64,
}

impl<Q: Clone, A> Drop for Led<'_, Q, A> {
    fn drop(&mut self) {
        let mut inner = self.rounds.lock();
        inner.is_led = false;
        if thread::panicking() {
            inner.waiting.remove(&self.mine);
        }
        self.rounds.over.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn who_comes_during_a_round_is_answered_with_all_the_others_in_the_next() {
        let rounds = &Rounds::default();
        let sizes = Mutex::new(Vec::new());
        let (begun, begin) = channel();
        let (end, ended) = channel::<()>();
        let first = Mutex::new(Some((begun, ended)));
        let hold = &|questions: &[u32]| {
            sizes.lock().unwrap().push(questions.len());
            if let Some((begun, ended)) = first.lock().unwrap().take() {
                begun.send(()).unwrap();
                ended.recv().unwrap();
            }
            questions.iter().map(|it| it * 2).collect()
        };
        thread::scope(|scope| {
            let early = scope.spawn(|| rounds.ask(1, hold));
            begin.recv().unwrap();
            let late: Vec<_> = (2..10)
                .map(|it| scope.spawn(move || rounds.ask(it, hold)))
                .collect();
            while rounds.lock().waiting.len() < 9 {
                thread::yield_now();
            }
            end.send(()).unwrap();
            assert_eq!(early.join().unwrap(), Some(2));
            let answers: Vec<_> = late.into_iter().map(|it| it.join().unwrap()).collect();
            assert_eq!(answers, (2..10).map(|it| Some(it * 2)).collect::<Vec<_>>());
        });
        assert_eq!(*sizes.lock().unwrap(), [1, 8]);
    }

    #[test]
    fn who_waits_for_a_round_that_is_stuck_gives_up() {
        let rounds = &Rounds {
            patience: Duration::from_millis(1),
            ..Rounds::default()
        };
        let (begun, begin) = channel();
        let (end, ended) = channel::<()>();
        let stuck = Mutex::new((begun, ended));
        thread::scope(|scope| {
            let first = scope.spawn(move || {
                rounds.ask(1, |questions: &[u32]| {
                    let (begun, ended) = &*stuck.lock().unwrap();
                    begun.send(()).unwrap();
                    ended.recv().unwrap();
                    questions.to_vec()
                })
            });
            begin.recv().unwrap();
            assert_eq!(rounds.ask(2, <[u32]>::to_vec), None);
            end.send(()).unwrap();
            assert_eq!(first.join().unwrap(), Some(1));
        });
        assert_eq!(rounds.ask(3, <[u32]>::to_vec), Some(3));
        let inner = rounds.lock();
        assert!(inner.waiting.is_empty() && inner.answers.is_empty());
    }

    #[test]
    fn everybody_is_answered_however_many_wait() {
        let rounds = &Rounds::of_at_most(4);
        let gate = &Mutex::new(());
        let held = gate.lock().unwrap();
        let hold = &|questions: &[usize]| {
            let _opened = gate.lock().unwrap();
            assert!(questions.len() <= 4);
            questions.to_vec()
        };
        thread::scope(|scope| {
            let all = 0..12;
            let asked: Vec<_> = all
                .clone()
                .map(|it| scope.spawn(move || rounds.ask(it, hold)))
                .collect();
            while rounds.lock().waiting.len() < all.len() {
                thread::yield_now();
            }
            drop(held);
            let answers = asked.into_iter().map(|it| it.join().unwrap());
            assert!(answers.eq(all.map(Some)));
        });
    }

    #[test]
    fn a_round_that_dies_takes_nobody_with_it() {
        let rounds = Rounds::default();
        let died = thread::scope(|scope| {
            let asked =
                scope.spawn(|| rounds.ask(1, |_: &[u32]| -> Vec<usize> { panic!("on purpose") }));
            asked.join().is_err()
        });
        assert!(died);
        let whole = |questions: &[u32]| vec![questions.len(); questions.len()];
        assert_eq!(rounds.ask(2, whole), Some(1));
    }
}
