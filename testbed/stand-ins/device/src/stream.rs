//! Streams: queues of work. Each has a thread that does the work in order.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

use crate::lock;

/// A piece of work.
type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    queue: VecDeque<Work>,
    submitted: u64,
    done: u64,
    /// The least number of `done` that somebody waits for. Only it wakes them, so that a wait costs one wake.
    awaited: Option<u64>,
    is_closed: bool,
}

/// A queue of work.
pub(crate) struct Stream {
    state: Mutex<State>,
    changed: Condvar,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Stream").finish_non_exhaustive()
    }
}

/// A point in a stream: after all the work that was added before.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    stream: Arc<Stream>,
    submitted: u64,
}

impl Stream {
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let stream = Arc::new(Self {
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
        });
        let of_thread = Arc::clone(&stream);
        let name = "stand-in stream".to_owned();
        thread::Builder::new()
            .name(name)
            .spawn(move || of_thread.serve())?;
        Ok(stream)
    }

    fn serve(&self) {
        loop {
            let mut state = lock(&self.state);
            let work = loop {
                if let Some(work) = state.queue.pop_front() {
                    break work;
                }
                if state.is_closed {
                    return;
                }
                let woken = self.changed.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            work();
            let mut state = lock(&self.state);
            state.done += 1;
            if state.awaited.is_some_and(|awaited| state.done >= awaited) {
                state.awaited = None;
                drop(state);
                self.changed.notify_all();
            }
        }
    }

    /// Adds work.
    pub(crate) fn submit(&self, work: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.state);
        state.submitted += 1;
        state.queue.push_back(Box::new(work));
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn mark(self: &Arc<Self>) -> Mark {
        Mark {
            stream: Arc::clone(self),
            submitted: lock(&self.state).submitted,
        }
    }

    /// Ends the stream's thread when all work is done.
    pub(crate) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.changed.notify_all();
    }
}

impl Mark {
    /// Waits until the mark is reached, no longer than `patience`; returns whether it was reached.
    pub(crate) fn wait_for(&self, patience: Duration) -> bool {
        let state = lock(&self.stream.state);
        let is_behind = |state: &mut State| {
            let is_behind = state.done < self.submitted;
            if is_behind {
                let awaited = state.awaited.unwrap_or(self.submitted);
                state.awaited = Some(awaited.min(self.submitted));
            }
            is_behind
        };
        let waited = self
            .stream
            .changed
            .wait_timeout_while(state, patience, is_behind);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.done >= self.submitted
    }
}
