//! Cuts leases whose deadlines the daemon has missed.

use std::time::Duration;

use fabricbios_lease::{BootTime, StepError};
use fabricbios_rdma::GuardedPair;

use super::{
    daemon::Daemon,
    ends::Ends,
    lock,
    message::{WatchdogMessage, WatchdogReply},
    process::Event,
    rdma_cutter::{self, RdmaCutter},
    rdma_deadlines::RdmaDeadlines,
    reply_writer::ReplyWriter,
};
use crate::process::clock;

/// How long a cut over RDMA may take; after that the device counts as stuck.
const STUCK: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Enforcer {
    began: bool,
    tried: bool,
    ends: Ends,
    memory: RdmaDeadlines,
    /// The daemon while it exists, and the thread that cuts RDMA leases.
    daemon: Option<(Daemon, RdmaCutter)>,
    /// Start of the current cut of leases over RDMA.
    cutting: Option<BootTime>,
    replies: ReplyWriter,
}

impl Enforcer {
    pub(super) fn new(
        ends: Ends,
        daemon: Option<(Daemon, RdmaCutter)>,
        replies: ReplyWriter,
    ) -> Self {
        Self {
            began: false,
            tried: false,
            ends,
            memory: RdmaDeadlines::default(),
            daemon,
            cutting: None,
            replies,
        }
    }

    pub(super) fn on_event(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Message(WatchdogMessage::Begin) => {
                lock::take_over()?;
                self.began = true;
                self.replies.tell(&WatchdogReply::Watches);
            }
            Event::Message(WatchdogMessage::Ping) => self.replies.tell(&WatchdogReply::IsWell),
            Event::Message(message) => {
                if let WatchdogMessage::Opens(_, pair) = message {
                    self.try_once(pair);
                }
                self.ends.note(message);
                self.memory.note(message, clock::now().boot);
            }
            Event::Orphaned => self.ends.orphan(),
            Event::Gone => self.memory.clear(),
            Event::Ended(ended) => self.ends.ended(clock::now().boot, ended),
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

    /// Tests once, early, whether the watchdog may duplicate the daemon's descriptors, and reports a refusal.
    fn try_once(&mut self, pair: GuardedPair) {
        let (Some((daemon, _)), false) = (&self.daemon, self.tried) else {
            return;
        };
        self.tried = true;
        if let Err(error) = daemon.descriptor(pair.descriptor) {
            tracing::warn!(%error, "watchdog: if the daemon hangs, the only way to end leases over RDMA is to kill it");
            let why = error.to_string();
            self.replies.tell(&WatchdogReply::MayNotCut(why));
        }
    }

    /// True if no lease is left and no message will come. A watchdog that got no `Begin` has nothing to do: an earlier
    /// watchdog watches.
    pub(super) fn is_done(&self) -> bool {
        let nothing_left = self.ends.is_empty() && self.memory.is_empty();
        self.ends.is_orphan() && (nothing_left || !self.began)
    }

    pub(super) fn next(&self) -> Option<BootTime> {
        let memory = match self.cutting {
            Some(since) => Some(since + STUCK),
            None => self.memory.next(),
        };
        self.ends.next().into_iter().chain(memory).min()
    }

    pub(super) fn cut_due(&mut self) {
        if self.began {
            let now = clock::now().boot;
            self.cut_memory(now);
            self.ends.end_due(now);
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
