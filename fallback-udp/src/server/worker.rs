//! The threads of a service: each receives datagrams from its own socket and answers them.

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
    batch::{BATCH, Batch, Exchange, Replies, Sent},
    clock,
};
use crate::{Rate, limit::Allowance};

/// A thread without datagrams calls [`Handler::idle`] this often.
pub(super) const IDLE_MS: u16 = 60_000;

/// The threads of a service; dropping this stops them.
#[derive(Debug)]
pub(super) struct Workers {
    name: &'static str,
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
}

/// The stop signal of all threads. The event is never read, so every thread sees it.
#[derive(Debug)]
struct Stop {
    requested: AtomicBool,
    event: EventFd,
}

/// The handler of a thread's datagrams.
pub(super) trait Handler: Send + 'static {
    /// Answers a batch.
    fn handle(&mut self, exchanges: &mut [Exchange]);

    /// Called when the system refused to send this many replies.
    fn unsent(&mut self, _replies: u64) {}

    /// Called after [`IDLE_MS`] without a datagram or a finished I/O.
    fn idle(&mut self) {}

    /// Sleeps until one of `inputs` is readable or an I/O of the handler has finished; `false`: neither happened for
    /// [`IDLE_MS`].
    fn wait(&mut self, inputs: [BorrowedFd<'_>; 2]) -> Result<bool, Errno> {
        let mut events = inputs.map(|input| PollFd::new(input, PollFlags::POLLIN));
        Ok(poll(&mut events, PollTimeout::from(IDLE_MS))? > 0)
    }

    /// Called when the thread ends.
    fn close(&mut self) {}

    /// Sends the replies that were not ready with their batch.
    fn late(&mut self, _send: &mut dyn FnMut(Replies<'_>)) {}
}

impl Workers {
    /// Starts a thread for each socket, each with a handler of its own.
    pub(super) fn start<C: Handler>(
        name: &'static str,
        sockets: Vec<UdpSocket>,
        handler: impl Fn() -> io::Result<C>,
    ) -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let stop = Stop {
            requested: AtomicBool::new(false),
            event: EventFd::from_value_and_flags(0, flags)?,
        };
        let mut workers = Self {
            name,
            stop: Arc::new(stop),
            threads: Vec::new(),
        };
        for socket in sockets {
            let (stop, handler) = (Arc::clone(&workers.stop), handler()?);
            let body = move || Worker::new(name, socket, stop, handler).run();
            let thread = thread::Builder::new().name(name.to_lowercase());
            let thread = thread.spawn(body)?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.requested.store(true, Ordering::Release);
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
    handler: C,
    log_limit: LogLimit,
}

/// Limits log lines about failures to one per second, since any sender may be able to cause them.
pub(super) struct LogLimit(Allowance);

impl<C: Handler> Worker<C> {
    fn new(name: &'static str, socket: UdpSocket, stop: Arc<Stop>, handler: C) -> Self {
        Self {
            name,
            socket,
            stop,
            batch: Batch::new(),
            handler,
            log_limit: LogLimit::new(),
        }
    }

    fn run(mut self) {
        while !self.stop.requested.load(Ordering::Acquire) {
            match self.batch.receive(self.socket.as_fd()) {
                Ok(exchanges) => {
                    let count = exchanges.len();
                    self.handler.handle(exchanges);
                    self.send(count);
                    if count < BATCH {
                        self.wait();
                    }
                }
                Err(Errno::EAGAIN) => self.wait(),
                Err(Errno::EINTR) => {}
                Err(errno) => {
                    self.log_failure("receive", errno);
                    self.wait();
                }
            }
        }
        self.handler.close();
    }

    fn send(&mut self, count: usize) {
        let sent = self.batch.send(self.socket.as_fd(), count);
        self.note(&sent);
        self.send_late();
    }

    fn send_late(&mut self) {
        let mut all = Sent::default();
        let (batch, socket) = (&mut self.batch, self.socket.as_fd());
        self.handler
            .late(&mut |replies| all.add(&batch.send_all(socket, replies)));
        self.note(&all);
    }

    fn note(&mut self, sent: &Sent) {
        if let Some(errno) = sent.errno {
            self.handler.unsent(sent.unsent);
            self.log_failure("send", errno);
        }
    }

    /// Sleeps until a datagram comes, an I/O finishes or the stop signal is given.
    fn wait(&mut self) {
        let inputs = [self.socket.as_fd(), self.stop.event.as_fd()];
        match self.handler.wait(inputs) {
            Ok(false) => self.handler.idle(),
            Ok(true) | Err(Errno::EINTR) => {}
            Err(errno) => self.log_failure("wait", errno),
        }
        self.send_late();
    }

    fn log_failure(&mut self, call: &str, errno: Errno) {
        if self.log_limit.may_log() {
            tracing::warn!(service = self.name, call, %errno, "socket");
        }
    }
}

impl LogLimit {
    pub(super) fn new() -> Self {
        Self(Allowance::new(Rate::new(1, 1)))
    }

    /// Whether another line may be logged now.
    pub(super) fn may_log(&mut self) -> bool {
        self.0.take(clock::now())
    }
}
