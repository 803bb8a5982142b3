//! The threads that serve: each has a socket, takes what has come and answers it.

use std::{
    io,
    net::UdpSocket,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};

use super::{
    batch::{BATCH, Batch, Letter, Replies, Sent},
    clock,
};
use crate::{Rate, limit::Allowance};

/// Between two looks at what can be forgotten when nobody asks anything.
pub(super) const IDLE_MS: u16 = 60_000;

/// The threads, until dropped.
#[derive(Debug)]
pub(super) struct Workers {
    name: &'static str,
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
}

/// Said once, heard by all: the event is never read, so it stays.
#[derive(Debug)]
struct Stop {
    said: AtomicBool,
    event: EventFd,
}

/// What a thread does with what has come.
pub(super) trait Clerk: Send + 'static {
    /// Answers a batch.
    fn handle(&mut self, letters: &mut [Letter]);

    /// So many replies were not taken by the system.
    fn unsent(&mut self, _replies: u64) {}

    /// Nothing has come for a while.
    fn idle(&mut self) {}

    /// Sleeps until one of `inputs` can be read or something of its own is over; `false`: neither was for
    /// a while.
    fn wait(&mut self, inputs: [BorrowedFd<'_>; 2]) -> Result<bool, Errno> {
        let mut events = inputs.map(|input| PollFd::new(input, PollFlags::POLLIN));
        Ok(poll(&mut events, PollTimeout::from(IDLE_MS))? > 0)
    }

    /// The thread ends.
    fn close(&mut self) {}

    /// Has those replies sent that were not ready with their batch.
    fn late(&mut self, _send: &mut dyn FnMut(Replies<'_>)) {}
}

impl Workers {
    /// A thread for each socket, each with a clerk of its own.
    pub(super) fn start<C: Clerk>(
        name: &'static str,
        sockets: Vec<UdpSocket>,
        clerk: impl Fn() -> io::Result<C>,
    ) -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let stop = Stop {
            said: AtomicBool::new(false),
            event: EventFd::from_value_and_flags(0, flags)?,
        };
        let mut workers = Self {
            name,
            stop: Arc::new(stop),
            threads: Vec::new(),
        };
        for socket in sockets {
            let (stop, clerk) = (Arc::clone(&workers.stop), clerk()?);
            let body = move || Worker::new(name, socket, stop, clerk).run();
            let thread = thread::Builder::new().name(name.to_lowercase());
            let thread = thread.spawn(body)?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.said.store(true, Ordering::Release);
        if let Err(errno) = self.stop.event.write(1) {
            tracing::error!(service = self.name, %errno, "the threads cannot be told to stop");
            return;
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!(service = self.name, "a thread panicked");
            }
        }
    }
}

struct Worker<C> {
    name: &'static str,
    socket: UdpSocket,
    stop: Arc<Stop>,
    batch: Batch,
    clerk: C,
    complaints: Complaints,
}

/// Failures for the log: one a second, since anybody may be able to cause them.
pub(super) struct Complaints(Allowance);

impl<C: Clerk> Worker<C> {
    fn new(name: &'static str, socket: UdpSocket, stop: Arc<Stop>, clerk: C) -> Self {
        Self {
            name,
            socket,
            stop,
            batch: Batch::new(),
            clerk,
            complaints: Complaints::new(),
        }
    }

    fn run(mut self) {
        while !self.stop.said.load(Ordering::Acquire) {
            match self.batch.receive(self.socket.as_fd()) {
                Ok(letters) => {
                    let count = letters.len();
                    self.clerk.handle(letters);
                    self.send(count);
                    if count < BATCH {
                        self.wait();
                    }
                }
                Err(Errno::EAGAIN) => self.wait(),
                Err(Errno::EINTR) => {}
                Err(errno) => {
                    self.complain("receive", errno);
                    self.wait();
                }
            }
        }
        self.clerk.close();
    }

    fn send(&mut self, count: usize) {
        let sent = self.batch.send(self.socket.as_fd(), count);
        self.note(&sent);
        self.send_late();
    }

    fn send_late(&mut self) {
        let mut all = Sent::default();
        let (batch, socket) = (&mut self.batch, self.socket.as_fd());
        self.clerk
            .late(&mut |replies| all.add(&batch.send_all(socket, replies)));
        self.note(&all);
    }

    fn note(&mut self, sent: &Sent) {
        if let Some(errno) = sent.errno {
            self.clerk.unsent(sent.unsent);
            self.complain("send", errno);
        }
    }

    /// Until something comes, something is over or the end is said.
    fn wait(&mut self) {
        let inputs = [self.socket.as_fd(), self.stop.event.as_fd()];
        match self.clerk.wait(inputs) {
            Ok(false) => self.clerk.idle(),
            Ok(true) | Err(Errno::EINTR) => {}
            Err(errno) => self.complain("wait", errno),
        }
        self.send_late();
    }

    fn complain(&mut self, call: &str, errno: Errno) {
        if self.complaints.may_speak() {
            tracing::warn!(service = self.name, call, %errno, "socket");
        }
    }
}

impl Complaints {
    pub(super) fn new() -> Self {
        Self(Allowance::new(Rate::new(1, 1)))
    }

    /// Whether it is time for another one.
    pub(super) fn may_speak(&mut self) -> bool {
        self.0.take(clock::now())
    }
}
