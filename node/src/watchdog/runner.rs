//! Runs the watchdog process: restarts it when it has ended, replaces it when it does not reply, sends it messages.

use std::{
    ffi::OsString,
    fs::File,
    io, iter,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::Child,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use fabricbios_channel::{Channel, Outgoing};
use fabricbios_helper::{Pidfd, Program};
use fabricbios_wire::ResourceType;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{signal::Signal, socket::MsgFlags},
    unistd::Pid,
};

use super::{
    RunnerEvent, SharedWatch,
    deadlines::Deadlines,
    message::{CHANNEL, WatchdogMessage, WatchdogReply},
    rdma_deadlines::RdmaDeadlines,
    restart::{Action, RestartPolicy},
};
use crate::{driver::workers::raise_priority, process::clock};

/// How long a watchdog may leave messages unread.
const LISTENS: Duration = Duration::from_secs(5);

/// Most events that are read before messages are sent.
const TOGETHER: usize = 1_024;

/// Has the process, and the state that the next process needs. Waits for no disk, except for the libraries that the
/// dynamic loader reads.
pub(super) struct Runner {
    pub(super) program: Program,
    /// The arguments that say how the process finds the leases of each kind.
    pub(super) arguments: Vec<OsString>,
    /// The lock file of the watchdogs.
    pub(super) lock: File,
    /// The watchdog has its own log: readers of the daemon's output must not wait for the watchdog's end.
    pub(super) log: File,
    pub(super) kinds: Vec<Deadlines>,
    pub(super) memory: RdmaDeadlines,
    pub(super) process: Option<Process>,
    pub(super) unsent: Outgoing,
    pub(super) restarts: RestartPolicy,
    pub(super) waiting: Option<Sender<io::Result<()>>>,
    pub(super) events: Sender<RunnerEvent>,
    pub(super) shared: Arc<SharedWatch>,
}

/// The current watchdog.
pub(super) struct Process {
    number: u64,
    handle: Pidfd,
    socket: UnixStream,
}

impl Runner {
    pub(super) fn run(mut self, events: &Receiver<RunnerEvent>) {
        raise_priority();
        let mut tick = Instant::now();
        loop {
            let now = Instant::now();
            if now >= tick {
                self.step(now);
                tick = self.restarts.next(Instant::now());
            }
            match events.recv_timeout(tick.saturating_duration_since(now)) {
                Ok(first) => {
                    let more = events.try_iter().take(TOGETHER);
                    iter::once(first).chain(more).for_each(|it| self.take(it));
                    tick = tick.min(self.restarts.next(Instant::now()));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.flush();
        }
    }

    fn take(&mut self, event: RunnerEvent) {
        match event {
            RunnerEvent::Send(message) => {
                self.kinds.iter_mut().for_each(|kind| kind.note(message));
                self.memory.note(message, clock::now().boot);
                self.send(message);
            }
            // Both sorts of network functions are one kind here; the first call counts.
            RunnerEvent::Ends(kind, _) if self.has(kind) => {}
            RunnerEvent::Ends(kind, argument) => {
                self.kinds.push(Deadlines::new(kind));
                self.arguments
                    .extend(["--end".into(), kind.to_string().into(), argument]);
            }
            RunnerEvent::Begin(waiting) => {
                self.waiting = Some(waiting);
                self.start();
            }
            RunnerEvent::Replied(number, reply) if self.is_there(number) => match reply {
                WatchdogReply::Watches => {
                    self.restarts.watches(Instant::now());
                    self.shared.watches.store(true, Ordering::SeqCst);
                    if self.waiting.is_none() {
                        tracing::info!("another watchdog watches");
                    }
                    self.tell(Ok(()));
                }
                WatchdogReply::IsWell => self.restarts.answered(),
                // The reader has noted these.
                WatchdogReply::MayNotCut(_) | WatchdogReply::HasCut(_) => {}
            },
            RunnerEvent::Gone(number) if self.is_there(number) => self.gone("it has ended"),
            // These events are of a watchdog that was replaced.
            RunnerEvent::Replied(..) | RunnerEvent::Gone(_) => {}
        }
    }

    fn step(&mut self, now: Instant) {
        match self.restarts.step(now) {
            Action::Nothing => {}
            Action::Ask => self.send(WatchdogMessage::Ping),
            Action::Kill(why) => self.gone(why),
            Action::Start => self.start(),
        }
    }

    fn has(&self, kind: ResourceType) -> bool {
        self.kinds.iter().any(|it| it.kind() == kind)
    }

    fn is_there(&self, number: u64) -> bool {
        self.process.as_ref().is_some_and(|it| it.number == number)
    }

    fn send(&mut self, message: WatchdogMessage) {
        if self.process.is_some()
            && let Err(error) = self.unsent.push(&message)
        {
            tracing::error!(%error, "the watchdog is not told");
        }
    }

    /// Sends the messages. Waits some seconds for a watchdog that does not read.
    fn flush(&mut self) {
        let Some(process) = &self.process else {
            return;
        };
        loop {
            let flags = MsgFlags::MSG_DONTWAIT;
            match self.unsent.send_to(&process.socket, None, flags) {
                Ok(true) => return,
                Ok(false) if waits_for_room(&process.socket) => {}
                Ok(false) => return self.gone("it does not listen"),
                // The reading thread reports its end.
                Err(_) => return self.unsent = Outgoing::new(CHANNEL),
            }
        }
    }

    fn start(&mut self) {
        self.unsent = Outgoing::new(CHANNEL);
        match self.spawn() {
            Ok(process) => {
                self.process = Some(process);
                self.restarts.started(Instant::now());
                let known = self.kinds.iter().flat_map(Deadlines::messages);
                let known = known.chain(self.memory.messages());
                let messages: Vec<WatchdogMessage> =
                    known.chain([WatchdogMessage::Begin]).collect();
                messages.into_iter().for_each(|message| self.send(message));
            }
            Err(error) => {
                self.restarts.gone(Instant::now());
                if self.waiting.is_none() {
                    tracing::error!(%error, "the watchdog cannot be started; trying again");
                }
                self.tell(Err(error));
            }
        }
    }

    /// Kills the watchdog, if it has not ended, and schedules a restart. If the watchdog did not begin, the start
    /// fails.
    fn gone(&mut self, why: &str) {
        self.shared.watches.store(false, Ordering::SeqCst);
        self.shared.replies().replace(None);
        self.restarts.gone(Instant::now());
        if let Some(process) = self.process.take() {
            // The process may be gone already.
            process.handle.signal(Signal::SIGKILL).ok();
        }
        match self.waiting.take() {
            Some(waiting) => drop(waiting),
            None => tracing::warn!(
                "the watchdog is replaced: {why}; until the next one watches, no lease is granted that could outlive this daemon"
            ),
        }
    }

    /// Reports the outcome of the start. The receiver may have given up.
    fn tell(&mut self, begun: io::Result<()>) {
        self.waiting.take().map(|waiting| waiting.send(begun));
    }

    fn spawn(&self) -> io::Result<Process> {
        let (ours, its) = UnixStream::pair()?;
        let mut command = self.program.command();
        let child = command
            .arg("watchdog")
            .args(&self.arguments)
            .stdin(OwnedFd::from(its))
            .stdout(self.lock.try_clone()?)
            .stderr(self.log.try_clone()?)
            .spawn()?;
        // The daemon has not waited for the child yet, so no other process has its pid.
        let handle = Pidfd::open(Pid::from_raw(child.id().cast_signed()))?;
        let channel = Channel::over(CHANNEL, ours.try_clone()?);
        let number = self.shared.replies().replace(Some(channel));
        self.attend(child, number, ours.try_clone()?)?;
        Ok(Process {
            number,
            handle,
            socket: ours,
        })
    }

    /// Reads the watchdog's replies on a thread, which reports the watchdog's end.
    fn attend(&self, mut child: Child, number: u64, socket: UnixStream) -> io::Result<()> {
        let (shared, events) = (Arc::clone(&self.shared), self.events.clone());
        let attend = move || {
            loop {
                let mut readable = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
                poll(&mut readable, PollTimeout::NONE).ok();
                let mut replies = shared.replies();
                if replies.number() != number || !replies.read(&events) {
                    break;
                }
            }
            let status = child.wait();
            tracing::debug!(?status, "the watchdog has ended");
            events.send(RunnerEvent::Gone(number)).ok();
        };
        let name = "watchdog's".into();
        thread::Builder::new().name(name).spawn(attend)?;
        Ok(())
    }
}

fn waits_for_room(socket: &UnixStream) -> bool {
    let mut writable = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
    let until = PollTimeout::try_from(LISTENS).unwrap_or(PollTimeout::MAX);
    !matches!(poll(&mut writable, until), Ok(0))
}
