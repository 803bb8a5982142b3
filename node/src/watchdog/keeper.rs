//! Keeps a watchdog going: started again when it is gone, replaced when it does not answer, told everything.

use std::{
    fs::File,
    io::{self, ErrorKind, Write},
    iter,
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

use fabricbios_helper::{Pidfd, Program};
use fabricbios_wire::NodeId;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::Signal,
    unistd::Pid,
};

use super::{
    Event, Shared,
    answers::Answer,
    memory::Memory,
    pace::{Pace, Step},
    watch::Watch,
    word::Word,
};
use crate::{clock, workers::raise_priority};

/// How long one may leave its words unread.
const LISTENS: Duration = Duration::from_secs(5);

/// Words that are sent together.
const TOGETHER: usize = 1_024;

/// Has the process, and knows what it was told, to tell the next one. Waits for no disk but that of the system's loader of programs.
pub(super) struct Keeper {
    pub(super) program: Program,
    pub(super) node_id: NodeId,
    /// What one watchdog at a time has locked.
    pub(super) lock: File,
    /// Of its own: whoever reads the daemon's output must not wait for the watchdog's end.
    pub(super) log: File,
    pub(super) blocks: Watch,
    pub(super) memory: Memory,
    pub(super) process: Option<Process>,
    pub(super) unsent: Vec<u8>,
    pub(super) pace: Pace,
    pub(super) waiting: Option<Sender<io::Result<()>>>,
    pub(super) events: Sender<Event>,
    pub(super) shared: Arc<Shared>,
}

/// The watchdog that is there.
pub(super) struct Process {
    number: u64,
    handle: Pidfd,
    socket: UnixStream,
}

impl Keeper {
    pub(super) fn keep(mut self, events: &Receiver<Event>) {
        raise_priority();
        let mut tick = Instant::now();
        loop {
            let now = Instant::now();
            if now >= tick {
                self.step(now);
                tick = self.pace.next(Instant::now());
            }
            match events.recv_timeout(tick.saturating_duration_since(now)) {
                Ok(first) => {
                    let more = events.try_iter().take(TOGETHER);
                    iter::once(first).chain(more).for_each(|it| self.take(it));
                    tick = tick.min(self.pace.next(Instant::now()));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.flush();
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Said(word) => {
                self.blocks.hear(word);
                self.memory.hear(word, clock::now().boot);
                self.say(word);
            }
            Event::Begin(waiting) => {
                self.waiting = Some(waiting);
                self.start();
            }
            Event::Answered(number, answer) if self.is_there(number) => match answer {
                Answer::Watches => {
                    self.pace.watches(Instant::now());
                    self.shared.watches.store(true, Ordering::SeqCst);
                    if self.waiting.is_none() {
                        tracing::info!("another watchdog watches");
                    }
                    self.tell(Ok(()));
                }
                Answer::IsWell => self.pace.answered(),
            },
            Event::Gone(number) if self.is_there(number) => self.gone("it has ended"),
            // Of one that was replaced.
            Event::Answered(..) | Event::Gone(_) => {}
        }
    }

    fn step(&mut self, now: Instant) {
        match self.pace.step(now) {
            Step::Nothing => {}
            Step::Ask => self.say(Word::Ping),
            Step::Kill(why) => self.gone(why),
            Step::Start => self.start(),
        }
    }

    fn is_there(&self, number: u64) -> bool {
        self.process.as_ref().is_some_and(|it| it.number == number)
    }

    fn say(&mut self, word: Word) {
        if self.process.is_some() {
            // Writing to a Vec cannot fail.
            writeln!(self.unsent, "{word}").unwrap_or_default();
        }
    }

    /// Waits for a watchdog that does not listen for a while, and not for ever.
    fn flush(&mut self) {
        let Some(process) = &mut self.process else {
            return;
        };
        while !self.unsent.is_empty() {
            let failed = match process.socket.write(&self.unsent) {
                Ok(sent) => {
                    self.unsent.drain(..sent);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    !waits_for_room(&process.socket)
                }
                // Its end is told by the thread that attends it.
                Err(_) => return self.unsent.clear(),
            };
            if failed {
                return self.gone("it does not listen");
            }
        }
    }

    fn start(&mut self) {
        self.unsent.clear();
        match self.spawn() {
            Ok(process) => {
                self.process = Some(process);
                self.pace.started(Instant::now());
                let known = self.blocks.words().chain(self.memory.words());
                let words: Vec<Word> = known.chain([Word::Begin]).collect();
                words.into_iter().for_each(|word| self.say(word));
            }
            Err(error) => {
                self.pace.gone(Instant::now());
                if self.waiting.is_none() {
                    tracing::error!(%error, "the watchdog cannot be started; trying again");
                }
                self.tell(Err(error));
            }
        }
    }

    /// Ends it, if it has not ended, and has another one started. One that did not even begin would not do so at the
    /// next try.
    fn gone(&mut self, why: &str) {
        self.shared.watches.store(false, Ordering::SeqCst);
        self.shared.answers().replace(None);
        self.pace.gone(Instant::now());
        if let Some(process) = self.process.take() {
            // It may be gone.
            process.handle.signal(Signal::SIGKILL).ok();
        }
        match self.waiting.take() {
            Some(waiting) => drop(waiting),
            None => tracing::warn!(
                "the watchdog is replaced: {why}; until the next one watches, nothing is granted over RDMA and NVMe-oF"
            ),
        }
    }

    /// Whoever asked may have given up.
    fn tell(&mut self, begun: io::Result<()>) {
        self.waiting.take().map(|waiting| waiting.send(begun));
    }

    fn spawn(&self) -> io::Result<Process> {
        let (ours, its) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut command = self.program.command();
        let child = command
            .args(["watchdog", "--node-id", &self.node_id.to_string()])
            .stdin(OwnedFd::from(its))
            .stdout(self.lock.try_clone()?)
            .stderr(self.log.try_clone()?)
            .spawn()?;
        // Nobody has waited for it yet: the number is its own.
        let handle = Pidfd::open(Pid::from_raw(child.id().cast_signed()))?;
        let number = self.shared.answers().replace(Some(ours.try_clone()?));
        self.attend(child, number, ours.try_clone()?)?;
        Ok(Process {
            number,
            handle,
            socket: ours,
        })
    }

    /// Has its answers read, and says when it is gone.
    fn attend(&self, mut child: Child, number: u64, socket: UnixStream) -> io::Result<()> {
        let (shared, events) = (Arc::clone(&self.shared), self.events.clone());
        let attend = move || {
            loop {
                let mut readable = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
                poll(&mut readable, PollTimeout::NONE).ok();
                let mut answers = shared.answers();
                if answers.number() != number || !answers.read(&events) {
                    break;
                }
            }
            let status = child.wait();
            tracing::debug!(?status, "the watchdog has ended");
            events.send(Event::Gone(number)).ok();
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
