//! The threads that serve: each has a socket, takes what has come and answers it.

use std::{
    io,
    net::UdpSocket,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};

use super::{
    batch::{BATCH, Batch, Letter},
    clock,
    counters::{Counters, Tally},
    serving::{Outcome, Serving},
};
use crate::{Rate, Sources, limit::Allowance, unauthenticated};

/// Between two looks at what can be forgotten when nobody asks anything.
const IDLE_MS: u16 = 60_000;

/// The threads, until dropped.
#[derive(Debug)]
pub(super) struct Workers {
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
}

impl Workers {
    /// A thread for each socket, each with a clerk of its own.
    pub(super) fn start<C: Clerk>(
        sockets: Vec<UdpSocket>,
        clerk: impl Fn() -> io::Result<C>,
    ) -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let stop = Stop {
            said: AtomicBool::new(false),
            event: EventFd::from_value_and_flags(0, flags)?,
        };
        let mut workers = Self {
            stop: Arc::new(stop),
            threads: Vec::new(),
        };
        for socket in sockets {
            let (stop, clerk) = (Arc::clone(&workers.stop), clerk()?);
            let body = move || Worker::new(socket, stop, clerk).run();
            let thread = thread::Builder::new().name("fbmu".into()).spawn(body)?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.said.store(true, Ordering::Release);
        if let Err(errno) = self.stop.event.write(1) {
            tracing::error!(%errno, "the threads of FBMU cannot be told to stop");
            return;
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of FBMU panicked");
            }
        }
    }
}

struct Worker<C> {
    socket: UdpSocket,
    stop: Arc<Stop>,
    batch: Batch,
    clerk: C,
    complaints: Complaints,
}

/// Answers one datagram after the other.
pub(super) struct Server {
    serving: Arc<Serving>,
    counters: Arc<Counters>,
    sources: Sources,
}

/// Failures of the socket, for the log: one a second, since anybody may be able to cause them.
struct Complaints(Allowance);

impl<C: Clerk> Worker<C> {
    fn new(socket: UdpSocket, stop: Arc<Stop>, clerk: C) -> Self {
        Self {
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
                    self.complaints.say("receive", errno);
                    self.wait();
                }
            }
        }
    }

    fn send(&mut self, count: usize) {
        let sent = self.batch.send(self.socket.as_fd(), count);
        if let Some(errno) = sent.errno {
            self.clerk.unsent(sent.unsent);
            self.complaints.say("send", errno);
        }
    }

    /// Until something comes or the end is said.
    fn wait(&mut self) {
        let mut events = [
            PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.stop.event.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut events, PollTimeout::from(IDLE_MS)) {
            Ok(0) => self.clerk.idle(),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => self.complaints.say("poll", errno),
        }
    }
}

impl Server {
    pub(super) fn new(serving: &Arc<Serving>, counters: &Arc<Counters>) -> io::Result<Self> {
        let seed = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self {
            serving: Arc::clone(serving),
            counters: Arc::clone(counters),
            sources: Sources::new(seed),
        })
    }
}

impl Clerk for Server {
    /// Counted before anything is sent: who has a reply finds it counted.
    fn handle(&mut self, letters: &mut [Letter]) {
        let received = clock::now();
        let mut tally = Tally {
            received: letters.len() as u64,
            ..Tally::default()
        };
        for letter in letters {
            self.answer(letter, received, &mut tally);
        }
        self.counters.add(&tally);
    }

    fn unsent(&mut self, replies: u64) {
        self.counters.add_unsent(replies);
    }

    fn idle(&mut self) {
        self.serving.leases.forget_old(clock::now());
    }
}

impl Server {
    fn answer(&mut self, letter: &mut Letter, received: Duration, tally: &mut Tally) {
        let Some(source) = letter.source() else {
            tally.dropped += 1;
            return;
        };
        let (datagram, reply) = letter.open();
        let length = match self.serving.serve(datagram, source, reply) {
            Outcome::Reply(reply) => {
                tally.answered[reply.status as usize] += 1;
                reply.length
            }
            Outcome::Unauthenticated(header) if self.sources.take(source, received) => {
                tally.unauthenticated += 1;
                unauthenticated(&header, reply)
            }
            Outcome::Unauthenticated(_) | Outcome::Nothing => {
                tally.dropped += 1;
                return;
            }
        };
        letter.answer(length);
    }
}

impl Complaints {
    fn new() -> Self {
        Self(Allowance::new(Rate::new(1, 1)))
    }

    fn say(&mut self, call: &str, errno: Errno) {
        if self.0.take(clock::now()) {
            tracing::warn!(call, %errno, "socket of FBMU");
        }
    }
}
