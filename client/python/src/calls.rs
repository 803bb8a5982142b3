//! Calls of the SDK: without the lock of the interpreter, and open to signals on the main thread.

use std::{
    io, mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{RecvTimeoutError, Sender, SyncSender, channel, sync_channel},
    },
    thread,
    time::Duration,
};

use fabricbios_client::{Error, wire::LeaseId};
use nix::unistd::{getpid, gettid};
use pyo3::prelude::*;

use crate::{
    errors,
    process::{enter_sdk, pass, try_pass},
};

/// How soon the main thread notices a signal.
const SIGNALS: Duration = Duration::from_millis(20);

/// Waits for `work` without the lock of the interpreter. On the main thread, where Python runs its signal handlers, another
/// thread does the work: if a handler raises an exception, this returns at once, and that thread goes on alone. It holds
/// `buffer` until the work has ended.
pub(crate) fn call<B: Send + 'static, T: Send + 'static>(
    py: Python<'_>,
    lease_id: Option<LeaseId>,
    mut buffer: B,
    work: impl FnOnce(&mut B) -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    if !enter_sdk() {
        return Err(forked(py, lease_id));
    }
    let done = if gettid() == getpid() {
        on_another_thread(py, buffer, work)?
    } else {
        detached(py, || work(&mut buffer))
    };
    done.map_err(|error| errors::raised(py, &error, lease_id))
}

/// The error in a process whose parent has used the SDK.
pub(crate) fn forked(py: Python<'_>, lease_id: Option<LeaseId>) -> PyErr {
    let why = "this process was made by fork() after its parent had used fabricbios, and has none of the parent's threads: \
               use fabricbios in one of them, or start processes with multiprocessing's \"spawn\" or \"forkserver\"";
    errors::raised(py, &Error::Usage(why.to_owned()), lease_id)
}

fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    let (value, _passing) = py.detach(|| (work(), pass()));
    value
}

fn on_another_thread<B: Send + 'static, T: Send + 'static>(
    py: Python<'_>,
    mut buffer: B,
    work: impl FnOnce(&mut B) -> Result<T, Error> + Send + 'static,
) -> PyResult<Result<T, Error>> {
    let (sender, mut receiver) = sync_channel(1);
    let started = give_to_worker(Work(Box::new(move |worker| {
        let done = work(&mut buffer);
        idle().push(worker.clone());
        hand_back(sender, (done, buffer));
    })));
    if let Err(error) = started {
        let (what, why) = ("start a thread", error.to_string());
        return Ok(Err(Error::Local { what, why }));
    }
    loop {
        let waiting = &mut receiver;
        match detached(py, move || waiting.recv_timeout(SIGNALS)) {
            Ok((done, _buffer)) => return Ok(done),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                let (what, why) = ("finish a call", "its thread has panicked".to_owned());
                return Ok(Err(Error::Local { what, why }));
            }
        }
    }
}

/// Work for a worker thread, which gets the way to itself.
struct Work(Box<Job>);

type Job = dyn FnOnce(&Sender<Work>) + Send;

/// Workers without work: to wake one is much cheaper than to start one.
static IDLE: Mutex<Vec<Sender<Work>>> = Mutex::new(Vec::new());

fn idle() -> MutexGuard<'static, Vec<Sender<Work>>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn give_to_worker(work: Work) -> io::Result<()> {
    let worker = match idle().pop() {
        Some(worker) => worker,
        None => start_worker()?,
    };
    worker
        .send(work)
        .map_err(|_ended| io::Error::other("the last one has panicked"))
}

fn start_worker() -> io::Result<Sender<Work>> {
    let (worker, works) = channel::<Work>();
    let itself = worker.clone();
    let thread = thread::Builder::new().name("fabricbios-call".to_owned());
    thread.spawn(move || works.iter().for_each(|work| work.0(&itself)))?;
    Ok(worker)
}

/// Nobody takes the buffer of a call that was left by an exception. Releasing it needs the interpreter.
fn hand_back<T>(sender: SyncSender<T>, done: T) {
    if let Err(left) = sender.send(done) {
        match try_pass() {
            Some(_passing) => drop(left),
            None => mem::forget(left),
        }
    }
}
