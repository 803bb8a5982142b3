//! Deadlines hold while the daemon is dead, stopped or wedged.
//!
//! The kernel serves NVMe-oF by itself, and a device its queue pairs: they would go on after a lease's deadline if nobody
//! were there to cut. So a small process of its own knows the deadlines, told over a socket. While the daemon lives it
//! leaves it some time for a cut with a proof. When the daemon is dead it cuts what goes on over NVMe-oF, at the
//! deadline, and goes when there is none left; the next daemon's watchdog takes its place. Of a daemon that hangs it cuts the
//! leases over RDMA too, while that does not run, and lets it go on; where that is refused it kills it. What it has cut is
//! proved, and taken away, by the daemon, or the next one. What it did is in `watchdog.log` in the state directory.
//!
//! Everything else that is leased ends with the daemon's process.

mod answers;
mod daemon;
mod duty;
mod keeper;
mod lock;
mod memory;
mod pace;
mod process;
mod report;
mod stand_in;
mod watch;
mod word;

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
};

use anyhow::{Context, bail};
use fabricbios_helper::Program;
use fabricbios_lease::{BindingId, BootTime};
use fabricbios_rdma::{Guard, GuardedPair};
use fabricbios_wire::{LeaseId, NodeId};

pub use process::{Arguments, watchdog_main};

use answers::{Answer, Answers};
use keeper::Keeper;
use memory::Memory;
use pace::{Pace, START};
use watch::Watch;
use word::Word;

/// Looked at when it is opened.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// The daemon's end of it. Telling it something never blocks.
#[derive(Clone, Debug)]
pub struct Watchdog {
    events: Sender<Event>,
    shared: Arc<Shared>,
}

/// What others than the keeper look at.
#[derive(Debug, Default)]
struct Shared {
    /// Whether there is one that watches.
    watches: AtomicBool,
    answers: Mutex<Answers>,
}

#[derive(Debug)]
enum Event {
    Said(Word),
    /// Start it; told when it watches.
    Begin(Sender<io::Result<()>>),
    /// The one of that number answers.
    Answered(u64, Answer),
    /// It has ended.
    Gone(u64),
}

impl Watchdog {
    /// One that has not begun: it is told of the leases of an earlier run first. Whatever is on the disk of the state
    /// directory is opened here. `program` is `fabricbiosd`.
    pub fn new(program: &Program, state_dir: &Path, node_id: NodeId) -> anyhow::Result<Self> {
        let lock = open(&state_dir.join("watchdog.lock"))?;
        tell_reason(&lock)?;
        let log = open(&state_dir.join("watchdog.log"))?;
        if log.metadata()?.len() > LOG_BYTES_MAX {
            log.set_len(0)?;
        }
        let (events, happens) = mpsc::channel();
        let shared = Arc::<Shared>::default();
        let keeper = Keeper {
            program: program.clone(),
            node_id,
            lock,
            log,
            blocks: Watch::default(),
            memory: Memory::default(),
            process: None,
            unsent: Vec::new(),
            pace: Pace::new(),
            waiting: None,
            events: events.clone(),
            shared: Arc::clone(&shared),
        };
        thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || keeper.keep(&happens))
            .context("start the watchdog's thread")?;
        Ok(Self { events, shared })
    }

    /// Starts the process, which takes the place of an earlier run's. From then on there is one, or another one is
    /// started.
    pub fn begin(&self) -> anyhow::Result<()> {
        let (tell, told) = mpsc::channel();
        self.tell(Event::Begin(tell));
        match told.recv_timeout(START) {
            Ok(begun) => begun.context("start the watchdog"),
            Err(RecvTimeoutError::Timeout) => bail!("the watchdog does not answer"),
            Err(RecvTimeoutError::Disconnected) => bail!("the watchdog ended at once"),
        }
    }

    /// Whether there is one that watches. Without one nobody gets access that only a living daemon would end.
    #[must_use]
    pub fn watches(&self) -> bool {
        self.shared.watches.load(Ordering::SeqCst)
    }

    /// The lease over NVMe-oF may be used until then.
    pub fn extend(&self, binding_id: BindingId, deadline: BootTime) {
        self.say(Word::Until(
            binding_id.lease_id,
            binding_id.generation,
            deadline,
        ));
    }

    /// Its end is proven.
    pub fn over(&self, binding_id: BindingId) {
        self.say(Word::Over(binding_id.lease_id, binding_id.generation));
    }

    fn say(&self, word: Word) {
        self.tell(Event::Said(word));
    }

    /// The thread ends with the process only.
    fn tell(&self, event: Event) {
        self.events.send(event).ok();
    }
}

impl Guard for Watchdog {
    fn watches(&self) -> bool {
        self.watches()
    }

    fn opens(&self, lease: LeaseId, pair: GuardedPair) {
        self.say(Word::Opens(lease, pair));
    }

    fn extend(&self, lease: LeaseId, deadline: BootTime) {
        self.say(Word::Extend(lease, deadline));
    }

    fn moves(&self) {
        self.say(Word::Moves);
    }

    fn ends(&self, lease: LeaseId, number: u32) {
        self.say(Word::Ends(lease, number));
    }

    /// It was said before this process went on; the thread that waits for it may not have read it yet.
    fn has_done(&self, lease: LeaseId) -> Option<String> {
        let mut answers = self.shared.answers();
        answers.read(&self.events);
        answers.take_done(lease)
    }
}

impl Shared {
    fn answers(&self) -> MutexGuard<'_, Answers> {
        // Nothing panics with the lock held; an answer is whole at any time.
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open(path: &Path) -> anyhow::Result<File> {
    let opened = OpenOptions::new()
        .create(true)
        .read(true)
        .append(true)
        .mode(0o600)
        .open(path);
    opened.with_context(|| format!("open {}", path.display()))
}

/// Why the watchdog of an earlier run killed its daemon, if it did.
fn tell_reason(mut lock: &File) -> anyhow::Result<()> {
    let mut reason = String::new();
    lock.read_to_string(&mut reason)
        .context("read watchdog.lock")?;
    if !reason.is_empty() {
        tracing::warn!("the run before was ended: {reason}");
        lock.set_len(0).context("empty watchdog.lock")?;
    }
    Ok(())
}
