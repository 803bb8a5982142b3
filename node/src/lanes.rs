//! Threads that do what blocks: one lane for what ends access, one for what opens it, one for what
//! cleans up, so that a cut never queues behind a bind.
//!
//! A lane starts a thread whenever a job finds none idle, up to a bound: a call that is stuck in
//! the kernel takes its thread with it and nobody else's. Idle threads leave after a while, all but
//! the first few of an urgent lane: a deadline should not wait for a thread to be made.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

type Job = Box<dyn FnOnce() + Send>;

/// How long a thread waits for more before it leaves.
const LINGER: Duration = Duration::from_secs(10);

/// Before everything of the usual niceness, behind what the administrator wants first of all.
const HURRIED_NICENESS: i32 = -15;

/// Threads of an urgent lane that stay.
const KEPT_READY: usize = 2;

/// How much hurry a lane is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Deadlines wait for it.
    Deadline,
    /// Somebody waits for it.
    Usual,
}

/// One lane.
#[derive(Clone, Debug)]
pub struct Lane(Arc<Inner>);

struct Inner {
    name: &'static str,
    threads_max: usize,
    urgency: Urgency,
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        f.debug_struct("Lane")
            .field("name", &self.name)
            .field("waiting", &state.jobs.len())
            .field("threads", &state.threads)
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A job runs without the lock, so its panic cannot leave the state half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    /// A lane of at most `threads_max` threads.
    #[must_use]
    pub fn new(name: &'static str, threads_max: usize, urgency: Urgency) -> Self {
        let (state, more) = (Mutex::default(), Condvar::new());
        let lane = Self(Arc::new(Inner {
            name,
            threads_max,
            urgency,
            state,
            more,
        }));
        if urgency == Urgency::Deadline {
            (0..KEPT_READY).for_each(|_| lane.add_thread());
        }
        lane
    }

    fn add_thread(&self) {
        self.0.lock().threads += 1;
        self.start_thread();
    }

    /// Runs `job` as soon as a thread is free. Never blocks.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock();
        state.jobs.push_back(Box::new(job));
        if state.jobs.len() <= state.idle {
            self.0.more.notify_one();
        } else if state.threads < self.0.threads_max {
            state.threads += 1;
            drop(state);
            self.start_thread();
        }
    }

    fn start_thread(&self) {
        let inner = self.0.clone();
        let started = thread::Builder::new()
            .name(format!("{} lane", inner.name))
            .spawn(move || work(&inner));
        if let Err(error) = started {
            // The jobs wait for the threads that there are; the table's deadlines judge the delay.
            self.0.lock().threads -= 1;
            tracing::error!(lane = self.0.name, %error, "cannot start a thread");
        }
    }
}

fn work(inner: &Inner) {
    if inner.urgency == Urgency::Deadline {
        hurry();
    }
    while let Some(job) = next(inner) {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
        if outcome.is_err() {
            tracing::error!(
                lane = inner.name,
                "a job panicked; its lease will be fenced as overdue"
            );
        }
    }
}

/// The next job; `None` when it is time to leave.
fn next(inner: &Inner) -> Option<Job> {
    let mut state = inner.lock();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            return Some(job);
        }
        state.idle += 1;
        let waited = inner.more.wait_timeout(state, LINGER);
        let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        state = guard;
        state.idle -= 1;
        let stays = inner.urgency == Urgency::Deadline && state.threads <= KEPT_READY;
        if timeout.timed_out() && state.jobs.is_empty() && !stays {
            state.threads -= 1;
            return None;
        }
    }
}

/// Puts the calling thread before what else runs on this machine. Without the privilege it goes on
/// as it is: the table's deadlines judge the delay.
pub(crate) fn hurry() {
    if let Err(errno) = rustix::process::setpriority_process(None, HURRIED_NICENESS) {
        tracing::debug!(%errno, "cannot raise a thread's priority");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_stuck_job_does_not_hold_up_the_next() {
        let lane = Lane::new("test", 2, Urgency::Usual);
        let (unstick, stuck) = channel::<()>();
        lane.run(move || assert!(stuck.recv().is_err()));
        let (done, finished) = channel();
        lane.run(move || done.send(()).unwrap());
        finished.recv().unwrap();
        drop(unstick);
    }

    #[test]
    fn every_job_runs_once_even_beyond_the_threads() {
        let lane = Lane::new("test", 3, Urgency::Deadline);
        let (done, finished) = channel();
        for n in 0..100 {
            let done = done.clone();
            lane.run(move || done.send(n).unwrap());
        }
        drop(done);
        let mut seen: Vec<i32> = finished.iter().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_job_that_panics_takes_nothing_with_it() {
        let lane = Lane::new("test", 1, Urgency::Usual);
        lane.run(|| panic!("on purpose"));
        let (done, finished) = channel();
        lane.run(move || done.send(()).unwrap());
        finished.recv().unwrap();
    }
}
