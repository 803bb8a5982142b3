//! Answers the questions of several threads in batches. If no batch is running, the first thread with a question
//! answers all waiting questions. Questions that come meanwhile go into a later batch.

use std::{
    collections::BTreeMap,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Longest wait for the end of a batch. Longer than the default limit of a cut, and longer than any batch that is not
/// stuck in the kernel.
const PATIENCE: Duration = Duration::from_secs(15);

/// The waiting questions and the answers not fetched yet, in the order of arrival.
#[derive(Debug)]
pub(super) struct Batcher<Q, A> {
    /// Largest number of questions in one batch.
    max_batch: usize,
    /// Longest wait while no batch ends.
    patience: Duration,
    inner: Mutex<Inner<Q, A>>,
    ended: Condvar,
}

#[derive(Debug)]
struct Inner<Q, A> {
    next: u64,
    is_running: bool,
    waiting: BTreeMap<u64, Q>,
    answers: BTreeMap<u64, A>,
}

impl<Q, A> Default for Batcher<Q, A> {
    fn default() -> Self {
        let inner = Inner {
            next: 0,
            is_running: false,
            waiting: BTreeMap::new(),
            answers: BTreeMap::new(),
        };
        Self {
            max_batch: usize::MAX,
            patience: PATIENCE,
            inner: Mutex::new(inner),
            ended: Condvar::new(),
        }
    }
}

impl<Q: Clone, A> Batcher<Q, A> {
    /// Limits the size of a batch. For batches that take longer with more questions: threads that have their answer
    /// continue while the next batch runs.
    pub(super) fn with_max_batch(questions: usize) -> Self {
        Self {
            max_batch: questions,
            ..Self::default()
        }
    }

    /// Returns the answer to `question`, from a batch that begins after this call. `answer_all` answers all questions
    /// of a batch, in their order; every caller passes the same function. Questions are answered in the order of
    /// arrival. `None`: no batch has ended for [`PATIENCE`].
    pub(super) fn ask(&self, question: Q, answer_all: impl Fn(&[Q]) -> Vec<A>) -> Option<A> {
        let mut inner = self.lock();
        let mine = inner.next;
        inner.next += 1;
        inner.waiting.insert(mine, question);
        loop {
            if let Some(answer) = inner.answers.remove(&mine) {
                return Some(answer);
            }
            if !inner.is_running {
                inner = self.run_batch(mine, inner, &answer_all);
                continue;
            }
            let waited = self.ended.wait_timeout(inner, self.patience);
            let (woken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            inner = woken;
            if waited.timed_out() && inner.waiting.remove(&mine).is_some() {
                return None;
            }
        }
    }

    fn run_batch<'a>(
        &'a self,
        mine: u64,
        mut inner: MutexGuard<'a, Inner<Q, A>>,
        answer_all: impl Fn(&[Q]) -> Vec<A>,
    ) -> MutexGuard<'a, Inner<Q, A>> {
        inner.is_running = true;
        let waiting = inner.waiting.clone().into_iter();
        let (numbers, questions): (Vec<u64>, Vec<Q>) = waiting.take(self.max_batch).unzip();
        drop(inner);
        let running = RunningBatch {
            batcher: self,
            mine,
        };
        let answers = answer_all(&questions);
        let mut inner = self.lock();
        for (number, answer) in numbers.into_iter().zip(answers) {
            // The answer for a thread that gave up is dropped: no thread fetches it.
            if inner.waiting.remove(&number).is_some() {
                inner.answers.insert(number, answer);
            }
        }
        drop(inner);
        drop(running);
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Inner<Q, A>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running batch. A drop ends it, also after a panic, so that another batch can run. Unanswered questions go on
/// waiting, except the question of a thread that panicked.
struct RunningBatch<'a, Q: Clone, A> {
    batcher: &'a Batcher<Q, A>,
    mine: u64,
}

impl<Q: Clone, A> Drop for RunningBatch<'_, Q, A> {
    fn drop(&mut self) {
        let mut inner = self.batcher.lock();
        inner.is_running = false;
        if thread::panicking() {
            inner.waiting.remove(&self.mine);
        }
        self.batcher.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn who_comes_during_a_round_is_answered_with_all_the_others_in_the_next() {
        let batcher = &Batcher::default();
        let sizes = Mutex::new(Vec::new());
        let (begun, begin) = channel();
        let (end, ended) = channel::<()>();
        let first = Mutex::new(Some((begun, ended)));
        let answer_all = &|questions: &[u32]| {
            sizes.lock().unwrap().push(questions.len());
            if let Some((begun, ended)) = first.lock().unwrap().take() {
                begun.send(()).unwrap();
                ended.recv().unwrap();
            }
            questions.iter().map(|it| it * 2).collect()
        };
        thread::scope(|scope| {
            let early = scope.spawn(|| batcher.ask(1, answer_all));
            begin.recv().unwrap();
            let late: Vec<_> = (2..10)
                .map(|it| scope.spawn(move || batcher.ask(it, answer_all)))
                .collect();
            while batcher.lock().waiting.len() < 9 {
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
        let batcher = &Batcher {
            patience: Duration::from_millis(1),
            ..Batcher::default()
        };
        let (begun, begin) = channel();
        let (end, ended) = channel::<()>();
        let stuck = Mutex::new((begun, ended));
        thread::scope(|scope| {
            let first = scope.spawn(move || {
                batcher.ask(1, |questions: &[u32]| {
                    let (begun, ended) = &*stuck.lock().unwrap();
                    begun.send(()).unwrap();
                    ended.recv().unwrap();
                    questions.to_vec()
                })
            });
            begin.recv().unwrap();
            assert_eq!(batcher.ask(2, <[u32]>::to_vec), None);
            end.send(()).unwrap();
            assert_eq!(first.join().unwrap(), Some(1));
        });
        assert_eq!(batcher.ask(3, <[u32]>::to_vec), Some(3));
        let inner = batcher.lock();
        assert!(inner.waiting.is_empty() && inner.answers.is_empty());
    }

    #[test]
    fn everybody_is_answered_however_many_wait() {
        let batcher = &Batcher::with_max_batch(4);
        let gate = &Mutex::new(());
        let held = gate.lock().unwrap();
        let answer_all = &|questions: &[usize]| {
            let _opened = gate.lock().unwrap();
            assert!(questions.len() <= 4);
            questions.to_vec()
        };
        thread::scope(|scope| {
            let all = 0..12;
            let asked: Vec<_> = all
                .clone()
                .map(|it| scope.spawn(move || batcher.ask(it, answer_all)))
                .collect();
            while batcher.lock().waiting.len() < all.len() {
                thread::yield_now();
            }
            drop(held);
            let answers = asked.into_iter().map(|it| it.join().unwrap());
            assert!(answers.eq(all.map(Some)));
        });
    }

    #[test]
    fn a_round_that_dies_takes_nobody_with_it() {
        let batcher = Batcher::default();
        let died = thread::scope(|scope| {
            let asked =
                scope.spawn(|| batcher.ask(1, |_: &[u32]| -> Vec<usize> { panic!("on purpose") }));
            asked.join().is_err()
        });
        assert!(died);
        let whole = |questions: &[u32]| vec![questions.len(); questions.len()];
        assert_eq!(batcher.ask(2, whole), Some(1));
    }
}
