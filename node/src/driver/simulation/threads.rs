//! Threads of which one runs at a time. Each job of a worker pool has a thread. It runs until it sleeps; then the
//! simulation decides which thread goes on. A thread that never goes on dies with its process.

use std::{
    any::Any,
    cell::RefCell,
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::mpsc::{Receiver, Sender, channel},
    thread::{Builder, JoinHandle},
    time::Duration,
};

use fabricbios_wire::LeaseId;

use crate::driver::workers::Job;

/// A job that has not begun.
pub(super) struct NewJob {
    pub(super) name: &'static str,
    /// The leases that the job is for.
    pub(super) about: BTreeSet<LeaseId>,
    /// The job takes the locks of its leases, in [`fabricbios_contract::Provider`] or in its paths. Of jobs of one lease
    /// that do, one begins when the one before has ended: a thread that waits for a lock never sleeps here.
    pub(super) locks: bool,
    pub(super) work: Job,
}

/// Why a thread does not go on by itself.
pub(super) enum Pause {
    /// It sleeps until this time.
    Until(u64),
    /// It is stuck in the kernel.
    Stuck,
    Done,
    Panicked(Box<dyn Any + Send>),
}

/// The panic that ends a thread of a process that dies.
struct Died;

struct Baton {
    about: BTreeSet<LeaseId>,
    goes_on: Receiver<()>,
    pauses: Sender<Pause>,
}

thread_local! {
    static BATON: RefCell<Option<Baton>> = const { RefCell::new(None) };
}

/// A simulated thread.
pub(super) struct Thread {
    /// The locks that it holds.
    pub(super) locks: BTreeSet<LeaseId>,
    go_on: Sender<()>,
    paused: Receiver<Pause>,
    handle: JoinHandle<()>,
}

impl Thread {
    /// A thread that has not begun yet.
    pub(super) fn new(job: NewJob) -> Self {
        let NewJob {
            name,
            about,
            locks,
            work,
        } = job;
        let (go_on, goes_on) = channel();
        let (pauses, paused) = channel();
        let locks = if locks {
            about.clone()
        } else {
            BTreeSet::new()
        };
        let run = move || {
            if goes_on.recv().is_err() {
                return;
            }
            let done = pauses.clone();
            BATON.set(Some(Baton {
                about,
                goes_on,
                pauses,
            }));
            let ended = catch_unwind(AssertUnwindSafe(work));
            let ended = ended.map_or_else(Pause::Panicked, |()| Pause::Done);
            // Nobody listens to a process that has died.
            done.send(ended).ok();
        };
        let handle = Builder::new().name(name.to_owned()).spawn(run);
        Self {
            locks,
            go_on,
            paused,
            handle: handle.expect("the host has threads"),
        }
    }

    /// Runs the thread until its next pause.
    pub(super) fn run(&self) -> Pause {
        self.go_on.send(()).expect("it sleeps");
        let patience = Duration::from_secs(300);
        let paused = self.paused.recv_timeout(patience);
        paused.expect("a simulated thread waits for something that is not simulated")
    }

    /// Ends the thread where it sleeps.
    pub(super) fn dies(self) {
        drop(self.go_on);
        self.handle.join().expect("it catches its panics");
    }
}

/// Pauses the calling thread.
pub(super) fn pause(why: Pause) {
    BATON.with_borrow(|baton| {
        let baton = baton.as_ref().expect("only simulated threads may block");
        baton.pauses.send(why).ok();
        if baton.goes_on.recv().is_err() {
            resume_unwind(Box::new(Died));
        }
    });
}

/// The leases that the calling thread works for; `None`: it is not simulated.
pub(super) fn about() -> Option<BTreeSet<LeaseId>> {
    BATON.with_borrow(|baton| baton.as_ref().map(|it| it.about.clone()))
}
