//! `fabricbiosd watchdog`: the process that the daemon leaves behind when it dies.
//!
//! Its standard input is a socket to the daemon, both ways; its standard output the file that one watchdog at a time has
//! locked; its standard error the log. Once it has begun, nothing that a cut waits for is on a disk.

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
    daemon::Daemon, duty::Duty, memory::Reach, report::Report, stand_in::StandIn, word::Word,
};
use crate::{
    left_behind::outlive_the_daemon,
    log_format,
    mailbox::{Mailbox, Sender},
    workers::raise_priority,
};

/// Lines of the log that wait for its disk; more are dropped and counted.
const LINES_WAITING_MAX: usize = 1_024;

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

/// The file may be on a disk that does not answer.
fn log_to_stderr() -> (WorkerGuard, ErrorCounter) {
    let (writer, dropped, guard) = log_format::stderr(LINES_WAITING_MAX);
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(writer)
        .init();
    (guard, dropped)
}

/// What is there now is read from its file once, and what comes later never was in one.
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
    let (mut duty, sweeper) = Duty::new(node_id, daemon, report)?;
    stay_in_memory();
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
