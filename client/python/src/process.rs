//! The end of the interpreter, and processes made by fork(2).

use std::{
    process,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread::{self, ThreadId},
};

use pyo3::prelude::*;

/// The process that has used the SDK first, 0: none yet.
static USED_BY: AtomicU32 = AtomicU32::new(0);

/// Whether a parent of this process has used the SDK: its threads are not in this process.
pub(crate) fn is_forked() -> bool {
    ![0, process::id()].contains(&USED_BY.load(Ordering::Relaxed))
}

/// Notes that this process uses the SDK. `false`: it must not, because its parent has.
pub(crate) fn enter_sdk() -> bool {
    let (none, this) = (0, process::id());
    let before = USED_BY.compare_exchange(none, this, Ordering::Relaxed, Ordering::Relaxed);
    before.is_ok_and(|_| true) || !is_forked()
}

/// A thread that waits for the interpreter while it ends would be ended by it, inside of native code, and that ends the
/// process with a signal. Threads pass this gate first; once the interpreter ends it is closed, and they stay before it.
static GATE: Gate = Gate {
    state: Mutex::new(State {
        passing: 0,
        closed_by: None,
    }),
    passed: Condvar::new(),
};

struct Gate {
    state: Mutex<State>,
    passed: Condvar,
}

struct State {
    passing: usize,
    closed_by: Option<ThreadId>,
}

/// A thread that has passed the gate and does not have the interpreter yet.
pub(crate) struct Passing(());

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `None`: the interpreter is ending, by another thread.
pub(crate) fn try_pass() -> Option<Passing> {
    let mut state = GATE.state();
    if state
        .closed_by
        .is_some_and(|by| by != thread::current().id())
    {
        return None;
    }
    state.passing += 1;
    Some(Passing(()))
}

/// Does not return if the interpreter is ending, by another thread.
pub(crate) fn pass() -> Passing {
    loop {
        match try_pass() {
            Some(passing) => return passing,
            None => thread::park(),
        }
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        GATE.state().passing -= 1;
        GATE.passed.notify_all();
    }
}

/// Closes the gate; for `atexit`.
#[pyfunction]
pub(crate) fn close_at_exit(py: Python<'_>) {
    if is_forked() {
        return;
    }
    py.detach(|| {
        let mut state = GATE.state();
        state.closed_by = Some(thread::current().id());
        while state.passing > 0 {
            state = GATE
                .passed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    });
}
