//! The watchdog: keeps deadlines while the daemon is dead, stopped or hangs.
//!
//! The kernel serves NVMe-oF, and a device serves its queue pairs, without the daemon: access would go on after the
//! deadline if the daemon could not cut. So a small process receives the deadlines over a socket. While the daemon
//! runs, the watchdog gives the daemon some time to cut with a proof. When the daemon is dead, the watchdog ends leases
//! by name at their deadlines, each kind in its own way ([`Watchdog::ends`]) and on its own thread. The watchdog's
//! process ends when no lease is left; the watchdog of the next daemon replaces it. When the daemon hangs, the watchdog
//! also cuts leases over RDMA: it stops the daemon for the cut and continues it afterwards, or kills it if the cut
//! fails. The daemon, or the next daemon, proves these cuts and removes the leases' objects. The log is `watchdog.log`
//! in the state directory.
//!
//! All other access ends with the daemon's process.

mod daemon;
mod deadlines;
mod ends;
mod enforcer;
mod lock;
mod message;
mod process;
mod rdma_cutter;
mod rdma_deadlines;
mod reply_reader;
mod reply_writer;
mod restart;
mod runner;

use std::{
    ffi::OsString,
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
use fabricbios_channel::Outgoing;
use fabricbios_contract::Guard;
use fabricbios_helper::Program;
use fabricbios_lease::{BindingId, BootTime};
use fabricbios_rdma::GuardedPair;
use fabricbios_wire::{LeaseId, ResourceType};

pub use ends::KindEnd;
pub use message::{CHANNEL, WatchdogMessage, WatchdogReply};
pub use process::{Arguments, watchdog_main};

use rdma_deadlines::RdmaDeadlines;
use reply_reader::ReplyReader;
use restart::{RestartPolicy, START};
use runner::Runner;

use crate::process::helpers;

/// A longer log is emptied when it is opened.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// The daemon's handle of the watchdog. Its calls never block, except [`Watchdog::begin`].
#[derive(Clone, Debug)]
pub struct Watchdog {
    events: Sender<RunnerEvent>,
    shared: Arc<SharedWatch>,
}

/// State that threads other than the runner read.
#[derive(Debug, Default)]
struct SharedWatch {
    /// True while a watchdog watches.
    watches: AtomicBool,
    replies: Mutex<ReplyReader>,
}

#[derive(Debug)]
enum RunnerEvent {
    Send(WatchdogMessage),
    /// The process ends leases of this kind by name; the argument says how to find them.
    Ends(ResourceType, OsString),
    /// Start the process; the sender reports when it watches, or why it does not.
    Begin(Sender<io::Result<()>>),
    /// The watchdog with this number replied.
    Replied(u64, WatchdogReply),
    /// The watchdog with this number has ended.
    Gone(u64),
}

impl Watchdog {
    /// A watchdog that has not begun. Before [`Watchdog::begin`], register how leases are ended, and the leases of an
    /// earlier run. Opens its files in the state directory. `program` is `fabricbiosd`.
    ///
    /// # Errors
    /// The files cannot be opened, or no thread can be started.
    pub fn new(program: &Program, state_dir: &Path) -> anyhow::Result<Self> {
        let lock = open(&state_dir.join("watchdog.lock"))?;
        tell_reason(&lock)?;
        let log = open(&state_dir.join("watchdog.log"))?;
        if log.metadata()?.len() > LOG_BYTES_MAX {
            log.set_len(0)?;
        }
        let (events, happens) = mpsc::channel();
        let shared = Arc::<SharedWatch>::default();
        let runner = Runner {
            program: program.clone(),
            arguments: vec!["--calls".into(), helpers::lock_of(state_dir).into()],
            lock,
            log,
            kinds: Vec::new(),
            memory: RdmaDeadlines::default(),
            process: None,
            unsent: Outgoing::new(CHANNEL),
            restarts: RestartPolicy::new(),
            waiting: None,
            events: events.clone(),
            shared: Arc::clone(&shared),
        };
        thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || runner.run(&happens))
            .context("start the watchdog's thread")?;
        Ok(Self { events, shared })
    }

    /// Starts the process, which replaces the watchdog of an earlier run. From then on it is restarted whenever it
    /// ends.
    ///
    /// # Errors
    /// The process cannot be started or does not reply in time.
    pub fn begin(&self) -> anyhow::Result<()> {
        let (tell, told) = mpsc::channel();
        self.tell(RunnerEvent::Begin(tell));
        match told.recv_timeout(START) {
            Ok(begun) => begun.context("start the watchdog"),
            Err(RecvTimeoutError::Timeout) => bail!("the watchdog does not answer"),
            Err(RecvTimeoutError::Disconnected) => bail!("the watchdog ended at once"),
        }
    }

    /// True while a watchdog watches. Otherwise the node opens no access that only a running daemon could end.
    #[must_use]
    pub fn watches(&self) -> bool {
        self.shared.watches.load(Ordering::SeqCst)
    }

    /// Makes the watchdog's process end leases of this kind by name: `argument` says how to find them, see
    /// [`crate::kinds::Kind::end`]. Call it before [`Watchdog::begin`]; the first call for a kind counts.
    pub fn ends(&self, kind: ResourceType, argument: impl Into<OsString>) {
        self.tell(RunnerEvent::Ends(kind, argument.into()));
    }

    /// The guard by which a path of this kind informs the watchdog. Call [`Watchdog::ends`] first.
    #[must_use]
    pub fn guard(&self, kind: ResourceType) -> Arc<dyn Guard> {
        Arc::new(KindGuard {
            watchdog: self.clone(),
            kind,
        })
    }

    fn send(&self, message: WatchdogMessage) {
        self.tell(RunnerEvent::Send(message));
    }

    /// Sends an event to the runner. The runner's thread ends only with the process.
    fn tell(&self, event: RunnerEvent) {
        self.events.send(event).ok();
    }
}

/// See [`Watchdog::guard`].
#[derive(Debug)]
struct KindGuard {
    watchdog: Watchdog,
    kind: ResourceType,
}

impl Guard for KindGuard {
    fn watches(&self) -> bool {
        self.watchdog.watches()
    }

    fn extend(&self, binding_id: BindingId, deadline: BootTime) {
        self.watchdog.send(WatchdogMessage::Until(
            self.kind,
            binding_id.lease_id,
            binding_id.generation,
            deadline,
        ));
    }

    fn over(&self, binding_id: BindingId) {
        self.watchdog.send(WatchdogMessage::Over(
            self.kind,
            binding_id.lease_id,
            binding_id.generation,
        ));
    }
}

impl fabricbios_rdma::Guard for Watchdog {
    fn watches(&self) -> bool {
        self.watches()
    }

    fn opens(&self, lease: LeaseId, pair: GuardedPair) {
        self.send(WatchdogMessage::Opens(lease, pair));
    }

    fn extend(&self, lease: LeaseId, deadline: BootTime) {
        self.send(WatchdogMessage::Extend(lease, deadline));
    }

    fn moves(&self) {
        self.send(WatchdogMessage::Moves);
    }

    fn ends(&self, lease: LeaseId, number: u32) {
        self.send(WatchdogMessage::Ends(lease, number));
    }

    /// Reads the replies first: the watchdog sent them before it continued this process, and the reading thread may be
    /// late.
    fn has_done(&self, lease: LeaseId) -> Option<String> {
        let mut replies = self.shared.replies();
        replies.read(&self.events);
        replies.take_done(lease)
    }
}

impl SharedWatch {
    fn replies(&self) -> MutexGuard<'_, ReplyReader> {
        // The state is consistent at any time, also after a panic.
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Logs why the watchdog of an earlier run killed its daemon, if it did.
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
