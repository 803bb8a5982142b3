//! Ends access over RDMA in the daemon's stead: on a thread of its own, since a device may keep whoever asks it something.

use std::sync::mpsc::{self, Receiver};

use anyhow::Context;
use fabricbios_lease::StepError;

use super::{
    daemon::Daemon,
    memory::Reach,
    process::Heard,
    report::{Report, leave_reason},
};
use crate::mailbox::Sender;

/// See the module.
#[derive(Debug)]
pub(super) struct StandIn(mpsc::Sender<Vec<Reach>>);

impl StandIn {
    /// What comes of each order reaches `heard`.
    pub(super) fn start(
        daemon: Daemon,
        report: Report,
        heard: Sender<Heard>,
    ) -> anyhow::Result<Self> {
        let (order, orders) = mpsc::channel();
        std::thread::Builder::new()
            .name("stand in".into())
            .spawn(move || serve(&daemon, &report, &orders, &heard))
            .context("start a thread")?;
        Ok(Self(order))
    }

    /// Has these leases cut. Never waits.
    pub(super) fn order(&self, leases: Vec<Reach>) {
        self.0.send(leases).ok();
    }
}

fn serve(daemon: &Daemon, report: &Report, orders: &Receiver<Vec<Reach>>, heard: &Sender<Heard>) {
    for leases in orders {
        let outcome = cut_or_kill(daemon, report, &leases);
        heard.done(match outcome {
            Ok(()) => Heard::Cut(leases),
            Err(error) => Heard::NotCut(error),
        });
    }
}

fn cut_or_kill(daemon: &Daemon, report: &Report, leases: &[Reach]) -> Result<(), StepError> {
    let Err(error) = cut(daemon, report, leases) else {
        return Ok(());
    };
    if daemon.is_killed() {
        return Err(error);
    }
    kill(daemon, &error)?;
    // A thread of it waits in the kernel, and has its descriptors until that ends.
    cut(daemon, report, leases)
}

/// Every lease is tried, whatever came of the others.
fn cut(daemon: &Daemon, report: &Report, leases: &[Reach]) -> Result<(), StepError> {
    // Goes on when it has been told.
    let _stopped = daemon.stop()?;
    let mut cut = Ok(());
    for lease in leases {
        cut = cut.and(cut_one(daemon, report, lease));
    }
    report.flush();
    cut
}

fn cut_one(daemon: &Daemon, report: &Report, (lease, pairs): &Reach) -> Result<(), StepError> {
    let mut shut = 0;
    for pair in pairs {
        let descriptor = || daemon.descriptor(pair.descriptor);
        shut += usize::from(pair.shut(daemon.number(), descriptor)?);
    }
    if shut > 0 {
        tracing::warn!(%lease, queue_pairs = shut, "watchdog: cut in the daemon's stead");
        report.cut(*lease);
    }
    Ok(())
}

/// The one end that is left. Its leases end with it, and the next start says why.
pub(super) fn kill(daemon: &Daemon, why: &StepError) -> Result<(), StepError> {
    let reason = format!(
        "the watchdog killed the daemon, process {}: it cut no lease over RDMA that was over, and nobody else could: {why}",
        daemon.number()
    );
    tracing::error!("{reason}");
    leave_reason(reason);
    let killed = daemon.kill();
    killed
        .map(drop)
        .map_err(|error| StepError::new("kill the daemon", error))
}
