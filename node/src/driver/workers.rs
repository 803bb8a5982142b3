//! Worker pools for calls that block. A pool serves tenants in turn. A call that is stuck in the kernel keeps only its
//! own thread.
//!
//! A pool starts with few threads and adds more, up to a maximum, while jobs wait and the threads make no progress
//! because their calls sleep or are stuck. One thread for each job would take the processors from the driver.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use crate::driver::fair::{FairQueue, Owner};

/// A call that may block.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// How long an idle thread stays.
const LINGER: Duration = Duration::from_secs(10);

/// A pool that finishes fewer than [`FIRST_THREADS`] jobs in this time, while jobs wait, gets as many more threads.
const STALL: Duration = Duration::from_millis(5);

/// Threads that a pool starts with.
const FIRST_THREADS: usize = 2;

/// Slightly above normal priority: the threads of the data plane, which have normal priority, must not wait long behind
/// the ends of many leases.
const RAISED_NICENESS: i32 = -5;

/// Threads of a pool for deadlines that never leave.
const KEPT_READY: usize = 2;

/// How urgent the work of a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Deadlines depend on it.
    Deadline,
    /// A client waits for it.
    Usual,
}

/// A pool.
#[derive(Clone, Debug)]
pub struct WorkerPool(Arc<Inner>);

struct Inner {
    name: &'static str,
    threads_max: usize,
    urgency: Urgency,
    state: Mutex<State>,
    more: Condvar,
    /// Wakes the thread that adds threads.
    backlog: Condvar,
}

#[derive(Default)]
struct State {
    jobs: FairQueue<Job>,
    /// Running jobs, by owner.
    running: HashMap<Owner, usize>,
    threads: usize,
    idle: usize,
    finished: usize,
    is_watched: bool,
}

impl State {
    /// The next job. One owner has at most half of the pool's threads.
    fn next(&mut self, threads_max: usize) -> Option<(Owner, Job)> {
        let most = threads_max.div_ceil(2);
        let running = &self.running;
        let may = |owner: &Owner| running.get(owner).is_none_or(|its| *its < most);
        let (owner, job) = self.jobs.pop_of(may)?;
        *self.running.entry(owner.clone()).or_default() += 1;
        Some((owner, job))
    }

    fn is_done(&mut self, owner: &Owner) {
        self.finished += 1;
        if let Some(its) = self.running.get_mut(owner) {
            *its -= 1;
            if *its == 0 {
                self.running.remove(owner);
            }
        }
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        f.debug_struct("WorkerPool")
            .field("name", &self.name)
            .field("waiting", &state.jobs.len())
            .field("threads", &state.threads)
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Jobs run without the lock, so a panic leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkerPool {
    /// A pool of at most `threads_max` threads, of which one tenant has at most half.
    #[must_use]
    pub fn new(name: &'static str, threads_max: usize, urgency: Urgency) -> Self {
        let pool = Self(Arc::new(Inner {
            name,
            threads_max,
            urgency,
            state: Mutex::default(),
            more: Condvar::new(),
            backlog: Condvar::new(),
        }));
        if urgency == Urgency::Deadline {
            let mut state = pool.0.lock();
            pool.add_threads(&mut state, KEPT_READY);
            drop(state);
        }
        pool
    }

    /// Queues `job`; it runs when its owner has the turn and a thread is free. Never blocks.
    pub fn run(&self, owner: Owner, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock();
        state.jobs.push(owner, Box::new(job));
        // An idle thread may be one that the jobs of other owners have no right to.
        if state.idle > 0 {
            self.0.more.notify_one();
        }
        if state.jobs.len() <= state.idle {
            return;
        }
        if state.threads < FIRST_THREADS.min(self.0.threads_max) {
            self.add_threads(&mut state, 1);
        } else if state.is_watched {
            self.0.backlog.notify_one();
        } else {
            state.is_watched = self.start("watch", Self::watch);
        }
    }

    fn add_threads(&self, state: &mut State, wanted: usize) {
        let room = self.0.threads_max.saturating_sub(state.threads);
        let started = (0..wanted.min(room)).filter(|_| self.start("work", Self::work));
        state.threads += started.count();
    }

    fn start(&self, what: &str, act: fn(&Self)) -> bool {
        let pool = self.clone();
        let builder = thread::Builder::new().name(format!("{} {what}", self.0.name));
        let started = builder.spawn(move || act(&pool));
        if let Err(error) = &started {
            // Jobs wait for the existing threads; the table's deadlines judge the delay.
            tracing::error!(pool = self.0.name, %error, "cannot start a thread");
        }
        started.is_ok()
    }

    /// Adds threads while jobs wait and the existing threads make no progress.
    fn watch(&self) {
        self.raise_priority();
        let mut state = self.0.lock();
        loop {
            let finished = state.finished;
            state = self.wait(&self.0.backlog, state, STALL, |_| true);
            let stalled = state.finished.wrapping_sub(finished) < FIRST_THREADS;
            if stalled && !state.jobs.is_empty() {
                let wanted = state.jobs.len().min(FIRST_THREADS);
                self.add_threads(&mut state, wanted);
            }
            if state.jobs.is_empty() {
                state = self.wait(&self.0.backlog, state, LINGER, |state| {
                    state.jobs.is_empty()
                });
            }
            if state.jobs.is_empty() {
                state.is_watched = false;
                return;
            }
        }
    }

    fn wait<'a>(
        &self,
        condition: &Condvar,
        state: MutexGuard<'a, State>,
        at_most: Duration,
        until_not: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let waited = condition.wait_timeout_while(state, at_most, |state| until_not(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn work(&self) {
        self.raise_priority();
        let mut state = self.0.lock();
        loop {
            if let Some((owner, job)) = state.next(self.0.threads_max) {
                drop(state);
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    let pool = self.0.name;
                    tracing::error!(
                        pool,
                        "a job panicked: its cut or release is fenced as overdue; its bind or remediation waits for the next start"
                    );
                }
                state = self.0.lock();
                state.is_done(&owner);
                continue;
            }
            state.idle += 1;
            let (guard, timeout) =
                { self.0.more.wait_timeout(state, LINGER) }.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            let stays = self.0.urgency == Urgency::Deadline && state.threads <= KEPT_READY;
            if timeout.timed_out() && state.jobs.is_empty() && !stays {
                state.threads -= 1;
                return;
            }
        }
    }

    fn raise_priority(&self) {
        if self.0.urgency == Urgency::Deadline {
            raise_priority();
        }
    }
}

/// Raises the priority of the calling thread. Without the privilege the priority stays as it is: the table's deadlines
/// judge the delay.
pub(crate) fn raise_priority() {
    if let Err(errno) = fabricbios_helper::set_niceness(RAISED_NICENESS) {
        tracing::debug!(%errno, "cannot raise a thread's priority");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn tenant(name: &str) -> Owner {
        Some(name.into())
    }

    #[test]
    fn a_stuck_job_does_not_hold_up_the_next() {
        let pool = WorkerPool::new("test", 2, Urgency::Usual);
        let (unstick, stuck) = channel::<()>();
        pool.run(None, move || assert!(stuck.recv().is_err()));
        let (done, finished) = channel();
        pool.run(tenant("a"), move || done.send(()).unwrap());
        finished.recv().unwrap();
        drop(unstick);
    }

    #[test]
    fn stuck_jobs_of_one_tenant_hold_up_nobody_else_and_take_half_of_the_threads() {
        let pool = WorkerPool::new("test", 16, Urgency::Deadline);
        let (begun, began) = channel();
        let stuck = Arc::new(Mutex::new(()));
        let held = stuck.lock().unwrap();
        for _ in 0..100 {
            let (begun, stuck) = (begun.clone(), stuck.clone());
            pool.run(tenant("loud"), move || {
                begun.send(()).unwrap();
                drop(stuck.lock());
            });
        }
        (0..8).for_each(|_| began.recv().unwrap());
        // The pool grows to its most threads, of which half find no job that they may take.
        while pool.0.lock().idle < 8 {
            thread::yield_now();
        }
        let (done, finished) = channel();
        for _ in 0..50 {
            let done = done.clone();
            pool.run(tenant("quiet"), move || done.send(()).unwrap());
        }
        (0..50).for_each(|_| finished.recv().unwrap());
        assert!(began.try_recv().is_err(), "more than half of the threads");
        drop(held);
        (0..92).for_each(|_| began.recv().unwrap());
    }

    #[test]
    fn every_job_runs_once_even_beyond_the_threads() {
        let pool = WorkerPool::new("test", 3, Urgency::Deadline);
        let (done, finished) = channel();
        for n in 0..100 {
            let done = done.clone();
            pool.run(tenant(&n.to_string()), move || done.send(n).unwrap());
        }
        drop(done);
        let mut seen: Vec<i32> = finished.iter().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_job_that_panics_takes_nothing_with_it() {
        let pool = WorkerPool::new("test", 1, Urgency::Usual);
        pool.run(None, || panic!("on purpose"));
        let (done, finished) = channel();
        pool.run(None, move || done.send(()).unwrap());
        finished.recv().unwrap();
    }
}
