//! Streams of clients, each served by a thread.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::net::{UnixListener, UnixStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use fabricbios_wire::{GpuOpened, GpuReply, GpuRequest, Refusal};
use nix::libc;

use super::{
    engine::Engine,
    queue,
    refusal::{busy, invalid, not_found},
};
use crate::QUEUE_SLOTS;

/// Most streams at once, including refused ones.
const CONNECTIONS_MAX: usize = 256;
/// How long an ending worker waits until the answers of other queues are sent.
const GRACE: Duration = Duration::from_secs(2);
/// How long the worker accepts no streams when the system has no resources for another one.
const PAUSE: Duration = Duration::from_millis(100);
/// Exit status: the context was lost, or memory could not be wiped.
const EXIT_LOST: i32 = 3;

/// The worker's side of all streams.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) engine: Engine,
    traffic: Mutex<Traffic>,
    changed: Condvar,
    /// The file that gets the number of a wiped session.
    mark: File,
    /// Everything of the session was wiped.
    is_wiped: AtomicBool,
}

#[derive(Debug, Default)]
struct Traffic {
    connections: usize,
    queues: u16,
    /// Operations that are not answered yet.
    running: usize,
    is_leaving: bool,
}

/// Counts one operation while it exists.
#[derive(Debug)]
pub(super) struct Running<'a>(&'a Server);

/// Counts one queue while it exists.
#[derive(Debug)]
pub(super) struct Slot<'a>(&'a Server);

impl Server {
    pub(super) fn new(engine: Engine, mark: File) -> Self {
        Self {
            engine,
            mark,
            traffic: Mutex::default(),
            changed: Condvar::new(),
            is_wiped: AtomicBool::new(false),
        }
    }

    /// Accepts streams until the session ends, which ends the process.
    pub(super) fn serve(self: &Arc<Self>, listener: &UnixListener) -> ! {
        loop {
            match listener.accept() {
                Ok((stream, _)) => self.begin(stream),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "no stream can be accepted at the moment");
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    fn begin(self: &Arc<Self>, stream: UnixStream) {
        let mut traffic = self.traffic();
        if traffic.connections == CONNECTIONS_MAX {
            return;
        }
        traffic.connections += 1;
        drop(traffic);
        let server = Arc::clone(self);
        let thread = thread::Builder::new().name("queue".into());
        let begun = thread.spawn(move || {
            if let Err(error) = queue::serve(&server, stream) {
                tracing::debug!(%error, "a stream has ended");
            }
            server.leave_if_over();
            server.traffic().connections -= 1;
        });
        if let Err(error) = begun {
            tracing::warn!(%error, "no thread for another stream");
            self.traffic().connections -= 1;
        }
    }

    /// Gives a queue to a stream whose first request is this one.
    pub(super) fn admit(&self, request: &GpuRequest) -> Result<Slot<'_>, Refusal> {
        let order = &self.engine.order;
        let (lease, own) = (order.lease_id, order.session);
        let GpuRequest::Open { lease_id, session } = request else {
            let first = request.message_type();
            let why = format!("the first frame of a stream is {first:?}: open the session first");
            return Err(invalid(why));
        };
        if *lease_id != lease {
            return Err(not_found(format!(
                "lease {lease_id} has no session here, where lease {lease} has one"
            )));
        }
        if *session != 0 && *session != own {
            let why = format!(
                "session {session} is over: lease {lease} has session {own}; open it with session 0"
            );
            return Err(not_found(why));
        }
        self.engine.check_open()?;
        let mut traffic = self.traffic();
        let slots = self.slots();
        if traffic.queues == slots {
            let why = format!(
                "session {own} has {slots} streams, all that it can have at once: end one of them first"
            );
            return Err(busy(why));
        }
        traffic.queues += 1;
        Ok(Slot(self))
    }

    /// The session, for the answer to its opening.
    pub(super) fn opened(&self) -> GpuReply {
        let order = &self.engine.order;
        GpuReply::Opened(GpuOpened {
            session: order.session,
            vram_bytes: order.vram_bytes,
            vram_used: self.engine.used(),
            queue_slots: self.slots(),
            device: order.device.name.clone(),
            uuid: order.device.uuid.clone(),
        })
    }

    fn slots(&self) -> u16 {
        if self.engine.order.one_shot {
            1
        } else {
            QUEUE_SLOTS
        }
    }

    /// Begins an operation.
    pub(super) fn running(&self) -> Running<'_> {
        self.traffic().running += 1;
        Running(self)
    }

    /// Records that everything of the session was wiped: writes the session's number to the mark. The process ends when
    /// this operation is answered.
    pub(super) fn note_wiped(&self) {
        let written = writeln!(&self.mark, "{}", self.engine.order.session);
        if let Err(error) = written {
            tracing::warn!(%error, "cannot report that the session was wiped");
        }
        self.is_wiped.store(true, Ordering::Release);
    }

    /// Whether the context is lost or everything was wiped.
    pub(super) fn is_over(&self) -> bool {
        self.engine.is_lost() || self.is_wiped.load(Ordering::Acquire)
    }

    /// Ends the process if the session is over. Waits for the answers to other operations that end soon.
    pub(super) fn leave_if_over(&self) {
        if !self.is_over() {
            return;
        }
        let mut traffic = self.traffic();
        while traffic.is_leaving {
            traffic = self
                .changed
                .wait(traffic)
                .unwrap_or_else(PoisonError::into_inner);
        }
        traffic.is_leaving = true;
        let is_busy = |traffic: &mut Traffic| traffic.running > 0;
        let waited = self.changed.wait_timeout_while(traffic, GRACE, is_busy);
        let (traffic, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_idle = traffic.running == 0;
        drop(traffic);
        let code = if self.engine.is_lost() { EXIT_LOST } else { 0 };
        if code == 0 && is_idle {
            // If the context cannot be released, it ends with the process.
            self.engine.context.release().ok();
        }
        // SAFETY: the call ends the process at once. Exit handlers of the vendor's library must not run while other
        // threads use it.
        unsafe { libc::_exit(code) }
    }

    fn traffic(&self) -> MutexGuard<'_, Traffic> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.traffic().running -= 1;
        self.0.changed.notify_all();
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.traffic().queues -= 1;
    }
}
