//! `fabricbiosd watchdog`: the process that the daemon leaves behind when it dies.
//!
//! Its standard input is a socket to the daemon, both ways; its standard output the file that one watchdog at a time has
//! locked; its standard error the log. Once it has begun, nothing that a cut waits for is on a disk.

use std::{
    io::{self, BufRead},
    iter,
    path::Path,
    process::ExitCode,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use fabricbios_lease::{BootTime, StepError};
use fabricbios_premium::{nvmet::Shutter, rdma::GuardedPair};
use fabricbios_wire::{LeaseId, NodeId};
use nix::sys::signal::SigSet;
use rustix::{
    io::Errno,
    mm::{MlockAllFlags, mlockall},
    process::setsid,
};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};

use super::{
    daemon::Daemon,
    lock,
    memory::{Memory, Reach},
    report::Report,
    stand_in::{self, StandIn},
    watch::Watch,
    word::Word,
};
use crate::{
    block::CONFIGFS,
    clock,
    mailbox::{Mailbox, Sender},
    workers::raise_priority,
};

/// Lines of the log that wait for its disk; more are dropped and counted.
const LINES_WAITING_MAX: usize = 1_024;

/// How long a cut over RDMA may take altogether; then the device does not answer.
const STUCK: Duration = Duration::from_secs(10);

/// What the daemon gives it.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Whose subsystems are cut
    #[arg(long)]
    node_id: NodeId,
}

/// What it hears.
#[derive(Debug)]
pub(super) enum Heard {
    Word(Word),
    /// The daemon's end of the socket is closed.
    Orphaned,
    /// The daemon's process has ended, and its queue pairs with it.
    Ended,
    /// These leases over RDMA are cut.
    Cut(Vec<Reach>),
    /// They are not.
    NotCut(StepError),
}

/// Watches until the daemon is gone and every lease that it left has ended.
#[must_use]
pub fn watchdog_main(arguments: &Arguments) -> ExitCode {
    // Before there is a thread that would take the signals.
    let outlives = outlive_the_daemon();
    let (_until_written, dropped) = log_to_stderr();
    let outcome = outlives.and_then(|()| watch(arguments.node_id, &dropped));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("watchdog: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What ends the daemon, a terminal's Ctrl-C or a service manager's stop, must not end its watchdog first.
fn outlive_the_daemon() -> anyhow::Result<()> {
    SigSet::from_iter([
        nix::sys::signal::SIGTERM,
        nix::sys::signal::SIGINT,
        nix::sys::signal::SIGHUP,
    ])
    .thread_block()
    .context("block signals")?;
    match setsid() {
        // It leads a session already: that is as well.
        Ok(_) | Err(Errno::PERM) => Ok(()),
        Err(errno) => Err(errno).context("leave the daemon's session"),
    }
}

/// On a thread of its own: the file may be on a disk that does not answer.
fn log_to_stderr() -> (WorkerGuard, ErrorCounter) {
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(LINES_WAITING_MAX)
        .thread_name("log")
        .finish(io::stderr());
    let dropped = writer.error_counter();
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(writer)
        .init();
    (guard, dropped)
}

/// What is there now is read from its file once, and what comes later never was in one.
fn stay_in_memory() {
    let locked = mlockall(MlockAllFlags::CURRENT).and_then(|()| {
        mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
    });
    if let Err(errno) = locked {
        tracing::warn!(%errno, "watchdog: its memory is not locked, and may have to be read from a disk");
    }
}

/// Everything that it does.
struct Duty {
    began: bool,
    tried: bool,
    blocks: Watch,
    shutter: Arc<Shutter>,
    unswept: mpsc::Sender<(LeaseId, Vec<u16>)>,
    memory: Memory,
    /// Of a daemon that is still there.
    daemon: Option<(Daemon, StandIn)>,
    /// Since when leases over RDMA are being cut.
    cutting: Option<BootTime>,
    report: Report,
}

fn watch(node_id: NodeId, dropped: &ErrorCounter) -> anyhow::Result<()> {
    raise_priority();
    let (mailbox, sender) = Mailbox::new().context("create a mailbox")?;
    let report = Report::default();
    let daemon = Daemon::parent()?;
    listen(sender.clone(), daemon.clone())?;
    let daemon = match daemon {
        Some(daemon) => {
            let stand_in = StandIn::start(daemon.clone(), report.clone(), sender)?;
            Some((daemon, stand_in))
        }
        None => None,
    };
    let shutter = Arc::new(Shutter::new(Path::new(CONFIGFS), node_id));
    let (unswept, sweeps) = mpsc::channel();
    let sweeper = {
        let shutter = Arc::clone(&shutter);
        let sweep = move || sweep(&shutter, &sweeps);
        let thread = thread::Builder::new().name("sweep".into());
        thread.spawn(sweep).context("start a thread")?
    };
    stay_in_memory();
    let mut duty = Duty {
        began: false,
        tried: false,
        blocks: Watch::default(),
        shutter,
        unswept,
        memory: Memory::default(),
        daemon,
        cutting: None,
        report,
    };
    let mut told = 0;
    while !duty.is_done() {
        mailbox.wait(duty.next())?;
        while let Some(heard) = mailbox.take_done() {
            duty.hear(heard)?;
        }
        duty.cut_due();
        let lines = dropped.dropped_lines();
        if lines > told {
            tracing::warn!(lines, "watchdog: lines of this log were dropped so far");
            told = lines;
        }
    }
    drop(duty);
    sweeper.join().ok();
    Ok(())
}

fn listen(sender: Sender<Heard>, daemon: Option<Daemon>) -> anyhow::Result<()> {
    let listen = move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            match line.parse() {
                Ok(word) => sender.done(Heard::Word(word)),
                Err(super::word::NotAWord) => {
                    tracing::error!(line, "watchdog: the daemon says what is not understood");
                    continue;
                }
            };
        }
        sender.done(Heard::Orphaned);
        let ended = daemon.map_or(Ok(()), |daemon| daemon.wait());
        match ended {
            Ok(()) => drop(sender.done(Heard::Ended)),
            Err(error) => tracing::error!(%error, "watchdog: the daemon's end is not seen"),
        }
    };
    thread::Builder::new()
        .name("listen".into())
        .spawn(listen)
        .context("start a thread")?;
    Ok(())
}

impl Duty {
    fn hear(&mut self, heard: Heard) -> anyhow::Result<()> {
        match heard {
            Heard::Word(Word::Begin) => {
                lock::take_over()?;
                self.began = true;
                self.report.watching();
            }
            Heard::Word(Word::Ping) => self.report.well(),
            Heard::Word(word) => {
                if let Word::Opens(_, pair) = word {
                    self.try_once(pair);
                }
                self.blocks.hear(word);
                self.memory.hear(word, clock::now().boot);
            }
            Heard::Orphaned => self.blocks.orphan(),
            Heard::Ended => self.memory.clear(),
            Heard::Cut(leases) => {
                self.cutting = None;
                self.memory.cut(&leases);
            }
            Heard::NotCut(error) => {
                self.cutting = None;
                let pause = self.memory.not_cut(clock::now().boot);
                tracing::error!(%error, ?pause, "watchdog: leases over RDMA are not cut; trying again");
            }
        }
        Ok(())
    }

    /// Whether it may look into the daemon is told while there is time.
    fn try_once(&mut self, pair: GuardedPair) {
        let (Some((daemon, _)), false) = (&self.daemon, self.tried) else {
            return;
        };
        self.tried = true;
        if let Err(error) = daemon.descriptor(pair.descriptor) {
            tracing::warn!(%error, "watchdog: all that it could do with a daemon that hangs is to kill it");
            self.report.refused(&error);
        }
    }

    /// Nothing is left to do, and nothing will come. Before it is told to begin, another one does it.
    fn is_done(&self) -> bool {
        let nothing_left = self.blocks.is_done() && self.memory.is_empty();
        nothing_left || (self.blocks.is_orphan() && !self.began)
    }

    fn next(&self) -> Option<BootTime> {
        let memory = match self.cutting {
            Some(since) => Some(since + STUCK),
            None => self.memory.next(),
        };
        self.blocks.next().into_iter().chain(memory).min()
    }

    fn cut_due(&mut self) {
        if self.began {
            let now = clock::now().boot;
            self.cut_memory(now);
            self.cut_block(now);
        }
    }

    /// One at a time: what the daemon says meanwhile is heard before the next.
    fn cut_block(&mut self, now: BootTime) {
        let Some(due) = self.blocks.take_due(now) else {
            return;
        };
        let lease = due.lease;
        match self.shutter.shut(lease) {
            Ok(ports) if ports.is_empty() => {}
            Ok(ports) => {
                tracing::warn!(%lease, ports = ports.len(), "watchdog: cut in the daemon's stead");
                if self.blocks.is_orphan() {
                    // The thread ends after this one.
                    self.unswept.send((lease, ports)).ok();
                }
            }
            Err(error) => {
                let times = due.failures + 1;
                if times.is_power_of_two() {
                    tracing::error!(%lease, %error, times, "watchdog: not cut; trying again");
                }
                self.blocks.try_again(now, due);
            }
        }
    }

    fn cut_memory(&mut self, now: BootTime) {
        let Some((daemon, stand_in)) = &self.daemon else {
            return;
        };
        match self.cutting {
            None => {
                let due = self.memory.due(now);
                if !due.is_empty() {
                    self.cutting = Some(now);
                    stand_in.order(due);
                }
            }
            Some(since) if now >= since + STUCK => {
                self.cutting = Some(now);
                let why = StepError::new("modify_qp ERR", "the device does not answer");
                if !daemon.is_killed()
                    && let Err(error) = stand_in::kill(daemon, &why)
                {
                    tracing::error!(%error, "watchdog: the daemon goes on");
                }
            }
            Some(_) => {}
        }
    }
}

/// Beside the cuts: none of them waits for the sweep of another. What this leaves, because another watchdog takes
/// over, the daemon's proof sweeps.
fn sweep(shutter: &Shutter, unswept: &mpsc::Receiver<(LeaseId, Vec<u16>)>) {
    while let Ok(first) = unswept.recv() {
        let shut: Vec<_> = iter::once(first).chain(unswept.try_iter()).collect();
        if let Err(error) = shutter.sweep(&shut) {
            tracing::error!(%error, "watchdog: not swept; the next start of the daemon does it");
        }
    }
}
