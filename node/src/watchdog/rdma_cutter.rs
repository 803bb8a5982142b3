//! Cuts leases over RDMA in place of the daemon, on a thread of its own, because a call to the device may hang.

use std::sync::mpsc::{self, Receiver};

use anyhow::Context;
use fabricbios_lease::StepError;

use super::{
    daemon::Daemon,
    message::WatchdogReply,
    process::Event,
    rdma_deadlines::GuardedLease,
    reply_writer::{ReplyWriter, leave_reason},
};
use crate::driver::mailbox::Sender;

/// See the module.
#[derive(Debug)]
pub(super) struct RdmaCutter(mpsc::Sender<Vec<GuardedLease>>);

impl RdmaCutter {
    /// Starts the thread, which reports the outcome of each order to `events`.
    pub(super) fn start(
        daemon: Daemon,
        replies: ReplyWriter,
        events: Sender<Event>,
    ) -> anyhow::Result<Self> {
        let (order, orders) = mpsc::channel();
        std::thread::Builder::new()
            .name("stand in".into())
            .spawn(move || serve(&daemon, &replies, &orders, &events))
            .context("start a thread")?;
        Ok(Self(order))
    }

    /// Orders the cut of these leases. Never blocks.
    pub(super) fn order(&self, leases: Vec<GuardedLease>) {
        self.0.send(leases).ok();
    }
}

fn serve(
    daemon: &Daemon,
    replies: &ReplyWriter,
    orders: &Receiver<Vec<GuardedLease>>,
    events: &Sender<Event>,
) {
    for leases in orders {
        let outcome = cut_or_kill(daemon, replies, &leases);
        events.notify(match outcome {
            Ok(()) => Event::Cut(leases),
            Err(error) => Event::NotCut(error),
        });
    }
}

fn cut_or_kill(
    daemon: &Daemon,
    replies: &ReplyWriter,
    leases: &[GuardedLease],
) -> Result<(), StepError> {
    let Err(error) = cut(daemon, replies, leases) else {
        return Ok(());
    };
    if daemon.is_killed() {
        return Err(error);
    }
    kill(daemon, &error)?;
    // A thread that waits in the kernel keeps the descriptors of the killed daemon open, so the queue pairs still
    // exist.
    cut(daemon, replies, leases)
}

/// Tries every lease, also after a failure.
fn cut(daemon: &Daemon, replies: &ReplyWriter, leases: &[GuardedLease]) -> Result<(), StepError> {
    // The daemon continues after the replies were sent.
    let _stopped = daemon.stop()?;
    let mut cut = Ok(());
    for lease in leases {
        cut = cut.and(cut_one(daemon, replies, lease));
    }
    replies.flush();
    cut
}

fn cut_one(
    daemon: &Daemon,
    replies: &ReplyWriter,
    (lease, pairs): &GuardedLease,
) -> Result<(), StepError> {
    let mut shut = 0;
    for pair in pairs {
        let descriptor = || daemon.descriptor(pair.descriptor);
        shut += usize::from(pair.shut(daemon.number(), descriptor)?);
    }
    if shut > 0 {
        tracing::warn!(%lease, queue_pairs = shut, "watchdog: cut in place of the daemon");
        replies.add(&WatchdogReply::HasCut(*lease));
    }
    Ok(())
}

/// The last resort: kills the daemon, whose end also ends its leases over RDMA. The next start logs the reason.
pub(super) fn kill(daemon: &Daemon, why: &StepError) -> Result<(), StepError> {
    let reason = format!(
        "the watchdog killed the daemon, process {}: it did not cut leases over RDMA whose term was over, and nobody else could: {why}",
        daemon.number()
    );
    tracing::error!("{reason}");
    leave_reason(reason);
    let killed = daemon.kill();
    killed
        .map(drop)
        .map_err(|error| StepError::new("kill the daemon", error))
}
