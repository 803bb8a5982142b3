//! Cuts leases whose deadlines the daemon has missed.

use std::{
    iter,
    path::Path,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Context;
use fabricbios_lease::{BootTime, StepError};
use fabricbios_nvmet::EmergencyRevoker;
use fabricbios_rdma::GuardedPair;
use fabricbios_wire::{LeaseId, NodeId};

use super::{
    block_deadlines::BlockDeadlines,
    daemon::Daemon,
    lock,
    message::WatchdogMessage,
    process::Event,
    rdma_cutter::{self, RdmaCutter},
    rdma_deadlines::RdmaDeadlines,
    reply_writer::{REFUSED, ReplyWriter, WATCHING, WELL},
};
use crate::{block::CONFIGFS, clock};

/// How long a cut over RDMA may take; after that the device counts as stuck.
const STUCK: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Enforcer {
    began: bool,
    tried: bool,
    blocks: BlockDeadlines,
    revoker: Arc<EmergencyRevoker>,
    unswept: mpsc::Sender<(LeaseId, Vec<u16>)>,
    memory: RdmaDeadlines,
    /// The daemon, while it exists, and the thread that cuts RDMA leases.
    daemon: Option<(Daemon, RdmaCutter)>,
    /// Start of the current cut of leases over RDMA.
    cutting: Option<BootTime>,
    replies: ReplyWriter,
}

impl Enforcer {
    /// Also returns the sweeping thread, which ends after this is dropped.
    pub(super) fn new(
        node_id: NodeId,
        daemon: Option<(Daemon, RdmaCutter)>,
        replies: ReplyWriter,
    ) -> anyhow::Result<(Self, JoinHandle<()>)> {
        let revoker = Arc::new(EmergencyRevoker::new(Path::new(CONFIGFS), node_id));
        let (unswept, sweeps) = mpsc::channel();
        let sweeper = {
            let revoker = Arc::clone(&revoker);
            let sweep = move || sweep(&revoker, &sweeps);
            let thread = thread::Builder::new().name("sweep".into());
            thread.spawn(sweep).context("start a thread")?
        };
        let enforcer = Self {
            began: false,
            tried: false,
            blocks: BlockDeadlines::default(),
            revoker,
            unswept,
            memory: RdmaDeadlines::default(),
            daemon,
            cutting: None,
            replies,
        };
        Ok((enforcer, sweeper))
    }

    pub(super) fn on_event(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Message(WatchdogMessage::Begin) => {
                lock::take_over()?;
                self.began = true;
                self.replies.tell(WATCHING);
            }
            Event::Message(WatchdogMessage::Ping) => self.replies.tell(WELL),
            Event::Message(message) => {
                if let WatchdogMessage::Opens(_, pair) = message {
                    self.try_once(pair);
                }
                self.blocks.note(message);
                self.memory.note(message, clock::now().boot);
            }
            Event::Orphaned => self.blocks.orphan(),
            Event::Ended => self.memory.clear(),
            Event::Cut(leases) => {
                self.cutting = None;
                self.memory.cut(&leases);
            }
            Event::NotCut(error) => {
                self.cutting = None;
                let pause = self.memory.not_cut(clock::now().boot);
                tracing::error!(%error, ?pause, "watchdog: leases over RDMA are not cut; trying again");
            }
        }
        Ok(())
    }

    /// Tries once, early, whether the watchdog may duplicate the daemon's descriptors, and reports a refusal.
    fn try_once(&mut self, pair: GuardedPair) {
        let (Some((daemon, _)), false) = (&self.daemon, self.tried) else {
            return;
        };
        self.tried = true;
        if let Err(error) = daemon.descriptor(pair.descriptor) {
            tracing::warn!(%error, "watchdog: all that it could do with a daemon that hangs is to kill it");
            self.replies.tell(format_args!("{REFUSED} {error}"));
        }
    }

    /// True if no lease is left and no message will come. A watchdog that was not told to begin has nothing to do: an
    /// earlier one watches.
    pub(super) fn is_done(&self) -> bool {
        let nothing_left = self.blocks.is_done() && self.memory.is_empty();
        nothing_left || (self.blocks.is_orphan() && !self.began)
    }

    pub(super) fn next(&self) -> Option<BootTime> {
        let memory = match self.cutting {
            Some(since) => Some(since + STUCK),
            None => self.memory.next(),
        };
        self.blocks.next().into_iter().chain(memory).min()
    }

    pub(super) fn cut_due(&mut self) {
        if self.began {
            let now = clock::now().boot;
            self.cut_memory(now);
            self.cut_block(now);
        }
    }

    /// Cuts one lease, so that messages of the daemon are read before the next cut.
    fn cut_block(&mut self, now: BootTime) {
        let Some(due) = self.blocks.take_due(now) else {
            return;
        };
        let lease = due.lease;
        match self.revoker.revoke(lease) {
            Ok(ports) if ports.is_empty() => {}
            Ok(ports) => {
                tracing::warn!(%lease, ports = ports.len(), "watchdog: cut in the daemon's stead");
                if self.blocks.is_orphan() {
                    // The sweeping thread ends after this one.
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
        let Some((daemon, cutter)) = &self.daemon else {
            return;
        };
        match self.cutting {
            None => {
                let due = self.memory.due(now);
                if !due.is_empty() {
                    self.cutting = Some(now);
                    cutter.order(due);
                }
            }
            Some(since) if now >= since + STUCK => {
                self.cutting = Some(now);
                let why = StepError::new("modify_qp ERR", "the device does not answer");
                if !daemon.is_killed()
                    && let Err(error) = rdma_cutter::kill(daemon, &why)
                {
                    tracing::error!(%error, "watchdog: the daemon goes on");
                }
            }
            Some(_) => {}
        }
    }
}

/// Sweeps on a thread of its own, so that no cut waits for it. If another watchdog takes over before it is done, the
/// daemon's proof sweeps.
fn sweep(revoker: &EmergencyRevoker, unswept: &mpsc::Receiver<(LeaseId, Vec<u16>)>) {
    while let Ok(first) = unswept.recv() {
        let shut: Vec<_> = iter::once(first).chain(unswept.try_iter()).collect();
        if let Err(error) = revoker.sweep(&shut) {
            tracing::error!(%error, "watchdog: not swept; the next start of the daemon does it");
        }
    }
}
