//! Deadlines hold while the daemon is dead or wedged.
//!
//! The kernel serves NVMe-oF by itself: it would go on after a lease's deadline if nobody were there to
//! cut. So a small process of its own knows the deadlines, told over a pipe. While the daemon lives it leaves it
//! some time for a cut with a proof; when the pipe closes it does the cut itself, at the deadline, and goes when
//! there is none left. The next daemon's watchdog takes its place. What it has cut is proved, and taken away, by the
//! next daemon. What it did is in `watchdog.log` in the state directory.
//!
//! Everything else that is leased ends with the daemon's process.

mod process;
mod watch;
mod word;

use std::{
    ffi::OsString,
    fs::File,
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use fabricbios_lease::{BootTime, Tag};
use fabricbios_wire::NodeId;

pub use process::{Arguments, watchdog_main};

use watch::Watch;
use word::Word;

/// What it says when it has taken over.
const WATCHING: &str = "watching";

/// How long that may take.
const START: Duration = Duration::from_secs(10);

/// Looked at when it is opened.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// How often one that was killed is replaced in the life of a daemon: something is wrong then.
const STARTS_MAX: u32 = 8;

/// The daemon's end of it. Telling it something never blocks.
#[derive(Clone, Debug)]
pub struct Watchdog(Sender<Event>);

#[derive(Debug)]
enum Event {
    Said(Word),
    /// Start it; told when it watches.
    Begin(Sender<io::Result<()>>),
    /// It says that it watches.
    Watches,
    /// It has ended.
    Gone,
}

impl Watchdog {
    /// One that has not begun: it is told of the leases of an earlier run first.
    pub fn new(state_dir: &Path, node_id: NodeId) -> anyhow::Result<Self> {
        let (sender, events) = mpsc::channel();
        let lock = state_dir.join("watchdog.lock");
        let node_id = node_id.to_string();
        let keeper = Keeper {
            // Also when the program's file has been replaced.
            command: ["/proc/self/exe", "watchdog", "--lock"]
                .map(OsString::from)
                .into_iter()
                .chain([lock.into(), "--node-id".into(), node_id.into()])
                .collect(),
            log: state_dir.join("watchdog.log"),
            watch: Watch::default(),
            pipe: None,
            starts: 0,
            waiting: None,
            events: sender.clone(),
        };
        thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || keeper.keep(&events))
            .context("start the watchdog's thread")?;
        Ok(Self(sender))
    }

    /// Starts the process, which takes the place of an earlier run's.
    pub fn begin(&self) -> anyhow::Result<()> {
        let (tell, told) = mpsc::channel();
        self.tell(Event::Begin(tell));
        match told.recv_timeout(START) {
            Ok(begun) => begun.context("start the watchdog"),
            Err(RecvTimeoutError::Timeout) => bail!("the watchdog does not answer"),
            Err(RecvTimeoutError::Disconnected) => bail!("the watchdog ended at once"),
        }
    }

    /// The lease may be used until then.
    pub fn extend(&self, tag: Tag, deadline: BootTime) {
        self.tell(Event::Said(Word::Until(
            tag.lease_id,
            tag.generation,
            deadline,
        )));
    }

    /// Its end is proven.
    pub fn over(&self, tag: Tag) {
        self.tell(Event::Said(Word::Over(tag.lease_id, tag.generation)));
    }

    /// The thread ends with the process only.
    fn tell(&self, event: Event) {
        self.0.send(event).ok();
    }
}

/// Has the process's pipe, and knows what it was told, to tell another one should it be killed.
struct Keeper {
    command: Vec<OsString>,
    /// Of its own: whoever reads the daemon's output must not wait for the watchdog's end.
    log: PathBuf,
    watch: Watch,
    pipe: Option<ChildStdin>,
    starts: u32,
    waiting: Option<Sender<io::Result<()>>>,
    events: Sender<Event>,
}

impl Keeper {
    fn keep(mut self, events: &Receiver<Event>) {
        for event in events {
            match event {
                Event::Said(word) => self.said(word),
                Event::Begin(waiting) => {
                    self.waiting = Some(waiting);
                    self.start();
                }
                Event::Watches => self.answer(Ok(())),
                Event::Gone => self.gone(),
            }
        }
    }

    fn said(&mut self, word: Word) {
        self.watch.hear(word);
        if let Some(pipe) = &mut self.pipe {
            // If it is gone, that is told, and the next one is told everything.
            writeln!(pipe, "{word}").ok();
        }
    }

    fn gone(&mut self) {
        self.pipe = None;
        // One that did not even begin would not do so at the next try.
        if self.waiting.take().is_some() {
            return;
        }
        if self.starts < STARTS_MAX {
            tracing::warn!("the watchdog was ended; starting another");
            self.start();
        } else {
            tracing::error!(
                "the watchdog ends again and again: from now on, leases over NVMe-oF are cut only \
                 while this daemon runs"
            );
        }
    }

    fn start(&mut self) {
        self.starts += 1;
        match self.spawn() {
            Ok(pipe) => self.pipe = Some(pipe),
            Err(error) => self.answer(Err(error)),
        }
    }

    fn answer(&mut self, begun: io::Result<()>) {
        match (self.waiting.take(), begun) {
            // Whoever asked may have given up.
            (Some(waiting), begun) => drop(waiting.send(begun)),
            (None, Err(error)) => tracing::error!(%error, "the watchdog cannot be started"),
            (None, Ok(())) => {}
        }
    }

    fn spawn(&self) -> io::Result<ChildStdin> {
        let (program, arguments) = self.command.split_first().ok_or(io::ErrorKind::NotFound)?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(self.open_log()?)
            .spawn()?;
        let mut pipe = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        self.attend(child)?;
        for word in self.watch.words().chain([Word::Begin]) {
            writeln!(pipe, "{word}")?;
        }
        Ok(pipe)
    }

    /// One that has grown begins again.
    fn open_log(&self) -> io::Result<File> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        if log.metadata()?.len() > LOG_BYTES_MAX {
            log.set_len(0)?;
        }
        Ok(log)
    }

    /// Says when it watches and when it is gone.
    fn attend(&self, mut child: Child) -> io::Result<()> {
        let events = self.events.clone();
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let attend = move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if line == WATCHING {
                    events.send(Event::Watches).ok();
                }
            }
            let status = child.wait();
            tracing::debug!(?status, "the watchdog has ended");
            events.send(Event::Gone).ok();
        };
        let name = "watchdog's".into();
        thread::Builder::new().name(name).spawn(attend)?;
        Ok(())
    }
}
