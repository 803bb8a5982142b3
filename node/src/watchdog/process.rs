//! `fabricbiosd watchdog`: the process that stays when the daemon dies.
//!
//! Its standard input is a socket to the daemon, in both directions; its standard output is the lock file, its standard
//! error the log. Once it has begun, no cut waits for a disk.

use std::{
    ffi::{OsStr, OsString},
    io::stdin,
    os::fd::AsFd,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
    thread,
};

use anyhow::Context;
use clap::Args;
use fabricbios_channel::Channel;
use fabricbios_lease::StepError;
use nix::sys::{
    mman::{MlockAllFlags, mlockall},
    prctl::set_name,
};
use tracing_appender::non_blocking::{ErrorCounter, WorkerGuard};

use super::{
    daemon::Daemon,
    ends::{Ended, Ends, KindEnd},
    enforcer::Enforcer,
    message::{CHANNEL, WatchdogMessage},
    rdma_cutter::RdmaCutter,
    rdma_deadlines::GuardedLease,
    reply_writer::ReplyWriter,
};
use crate::{
    driver::{
        mailbox::{Mailbox, Sender},
        workers::raise_priority,
    },
    process::detached::outlive_the_daemon,
};

/// Most log lines that wait for the disk; further lines are dropped and counted.
const LINES_WAITING_MAX: usize = 1_024;

/// Arguments of the subcommand.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// End leases of this kind by name; the argument says how to find them
    #[arg(long, num_args = 2, value_names = ["KIND", "ARGUMENT"])]
    end: Vec<OsString>,
    /// The file in which calls that may hang take their locks
    #[arg(long)]
    pub(crate) calls: Option<PathBuf>,
}

impl Arguments {
    /// Each kind whose leases are ended by name, and how to find them.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        let pairs = self.end.as_chunks::<2>().0.iter();
        pairs.map(|[kind, argument]| (&**kind, &**argument))
    }
}

/// An event of the watchdog.
#[derive(Debug)]
pub(super) enum Event {
    Message(WatchdogMessage),
    /// The daemon's end of the socket is closed.
    Orphaned,
    /// The daemon's process has ended, and its queue pairs are destroyed.
    Gone,
    /// The end of a lease by name has succeeded or failed.
    Ended(Ended),
    /// These leases over RDMA are cut.
    Cut(Vec<GuardedLease>),
    /// The cut of leases over RDMA failed.
    NotCut(StepError),
}

/// Watches until the daemon is gone and all its leases have ended. `ends` returns the ends of leases by name;
/// its argument becomes true when the daemon is gone.
#[must_use]
pub fn watchdog_main(
    ends: impl FnOnce(&Arc<AtomicBool>) -> anyhow::Result<Vec<KindEnd>>,
) -> ExitCode {
    // The handlers are set before another thread could receive the signals.
    let outlives = outlive_the_daemon();
    let (_until_written, dropped) = log_to_stderr();
    let outcome = outlives
        .and_then(|()| set_name(c"fb-watchdog").context("take a name"))
        .and_then(|()| watch(ends, &dropped));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("watchdog: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Logs through a queue, because the file may be on a disk that does not answer.
fn log_to_stderr() -> (WorkerGuard, ErrorCounter) {
    let (writer, dropped, guard) = fabricbios_log::stderr(LINES_WAITING_MAX);
    tracing_subscriber::fmt()
        .with_ansi(false)
        .fmt_fields(fabricbios_log::Fields)
        .with_writer(writer)
        .init();
    (guard, dropped)
}

/// Locks the memory of the process, so that no page is read from a disk during a cut.
fn stay_in_memory() {
    let locked = mlockall(MlockAllFlags::MCL_CURRENT).and_then(|()| {
        mlockall(
            MlockAllFlags::MCL_CURRENT
                | MlockAllFlags::MCL_FUTURE
                | MlockAllFlags::from_bits_retain(nix::libc::MCL_ONFAULT),
        )
    });
    if let Err(errno) = locked {
        tracing::warn!(%errno, "watchdog: its memory is not locked, and may have to be read from a disk");
    }
}

fn watch(
    ends: impl FnOnce(&Arc<AtomicBool>) -> anyhow::Result<Vec<KindEnd>>,
    dropped: &ErrorCounter,
) -> anyhow::Result<()> {
    raise_priority();
    let (mailbox, sender) = Mailbox::new().context("create a mailbox")?;
    let replies = ReplyWriter::new();
    let daemon = Daemon::parent()?;
    listen(sender.clone(), daemon.clone())?;
    let daemon = match daemon {
        Some(daemon) => {
            let cutter = RdmaCutter::start(daemon.clone(), replies.clone(), sender.clone())?;
            Some((daemon, cutter))
        }
        None => None,
    };
    let is_orphan = Arc::default();
    let kinds = ends(&is_orphan)?;
    // The mailbox exists until the threads have ended.
    let tell = move |ended| {
        sender.notify(Event::Ended(ended));
    };
    let (ends, threads) = Ends::start(kinds, is_orphan, tell)?;
    let mut enforcer = Enforcer::new(ends, daemon, replies);
    stay_in_memory();
    let mut told = 0;
    while !enforcer.is_done() {
        mailbox.wait(enforcer.next(), None)?;
        while let Some(event) = mailbox.take_notice() {
            enforcer.on_event(event)?;
        }
        enforcer.cut_due();
        let lines = dropped.dropped_lines();
        if lines > told {
            tracing::warn!(lines, "watchdog: lines of this log were dropped so far");
            told = lines;
        }
    }
    drop(enforcer);
    for thread in threads {
        thread.join().ok();
    }
    Ok(())
}

fn listen(sender: Sender<Event>, daemon: Option<Daemon>) -> anyhow::Result<()> {
    let socket = stdin().as_fd().try_clone_to_owned();
    let mut channel = Channel::over(CHANNEL, socket.context("copy the daemon's socket")?);
    let listen = move || {
        loop {
            match channel.receive() {
                Ok(Some(message)) => drop(sender.notify(Event::Message(message))),
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "watchdog: a message of the daemon is not understood");
                    if !error.is_garbled() {
                        break;
                    }
                }
            }
        }
        sender.notify(Event::Orphaned);
        let ended = daemon.map_or(Ok(()), |daemon| daemon.wait());
        match ended {
            Ok(()) => drop(sender.notify(Event::Gone)),
            Err(error) => tracing::error!(%error, "watchdog: cannot watch for the daemon's end"),
        }
    };
    thread::Builder::new()
        .name("listen".into())
        .spawn(listen)
        .context("start a thread")?;
    Ok(())
}
