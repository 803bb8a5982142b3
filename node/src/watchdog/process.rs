//! `fabricbiosd watchdog`: the process that the daemon leaves behind when it dies.
//!
//! Its standard input is a socket to the daemon, in both directions; its standard output is the lock file, its standard
//! error the log. Once it has begun, no cut waits for a disk.

use std::{
    io::{self, BufRead},
    process::ExitCode,
    thread,
};

use anyhow::Context;
use clap::Args;
use fabricbios_lease::StepError;
use fabricbios_wire::NodeId;
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::prctl::set_name;
use tracing_appender::non_blocking::{ErrorCounter, WorkerGuard};

use super::{
    daemon::Daemon, enforcer::Enforcer, message::WatchdogMessage, rdma_cutter::RdmaCutter,
    rdma_deadlines::GuardedLease, reply_writer::ReplyWriter,
};
use crate::{
    detached::outlive_the_daemon,
    log_format,
    mailbox::{Mailbox, Sender},
    workers::raise_priority,
};

/// Most log lines that wait for the disk; further lines are dropped and counted.
const LINES_WAITING_MAX: usize = 1_024;

/// Arguments of the subcommand.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Whose subsystems are cut
    #[arg(long)]
    node_id: NodeId,
}

/// An event of the watchdog.
#[derive(Debug)]
pub(super) enum Event {
    Message(WatchdogMessage),
    /// The daemon's end of the socket is closed.
    Orphaned,
    /// The daemon's process has ended, and its queue pairs are destroyed.
    Ended,
    /// These leases over RDMA are cut.
    Cut(Vec<GuardedLease>),
    /// The cut of leases over RDMA failed.
    NotCut(StepError),
}

/// Watches until the daemon is gone and all its leases have ended.
#[must_use]
pub fn watchdog_main(arguments: &Arguments) -> ExitCode {
    // Before another thread could receive the signals.
    let outlives = outlive_the_daemon();
    let (_until_written, dropped) = log_to_stderr();
    let outcome = outlives
        .and_then(|()| set_name(c"fb-watchdog").context("take a name"))
        .and_then(|()| watch(arguments.node_id, &dropped));
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
    let (writer, dropped, guard) = log_format::stderr(LINES_WAITING_MAX);
    tracing_subscriber::fmt()
        .with_ansi(false)
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

fn watch(node_id: NodeId, dropped: &ErrorCounter) -> anyhow::Result<()> {
    raise_priority();
    let (mailbox, sender) = Mailbox::new().context("create a mailbox")?;
    let replies = ReplyWriter::default();
    let daemon = Daemon::parent()?;
    listen(sender.clone(), daemon.clone())?;
    let daemon = match daemon {
        Some(daemon) => {
            let cutter = RdmaCutter::start(daemon.clone(), replies.clone(), sender)?;
            Some((daemon, cutter))
        }
        None => None,
    };
    let (mut enforcer, sweeper) = Enforcer::new(node_id, daemon, replies)?;
    stay_in_memory();
    let mut told = 0;
    while !enforcer.is_done() {
        mailbox.wait(enforcer.next())?;
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
    sweeper.join().ok();
    Ok(())
}

fn listen(sender: Sender<Event>, daemon: Option<Daemon>) -> anyhow::Result<()> {
    let listen = move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            match line.parse() {
                Ok(message) => sender.notify(Event::Message(message)),
                Err(super::message::NotAMessage) => {
                    tracing::error!(line, "watchdog: the daemon says what is not understood");
                    continue;
                }
            };
        }
        sender.notify(Event::Orphaned);
        let ended = daemon.map_or(Ok(()), |daemon| daemon.wait());
        match ended {
            Ok(()) => drop(sender.notify(Event::Ended)),
            Err(error) => tracing::error!(%error, "watchdog: the daemon's end is not seen"),
        }
    };
    thread::Builder::new()
        .name("listen".into())
        .spawn(listen)
        .context("start a thread")?;
    Ok(())
}
