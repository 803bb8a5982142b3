//! What a watchdog does with what it hears: it cuts what the daemon should have cut.

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
    daemon::Daemon,
    lock,
    memory::Memory,
    process::Heard,
    report::{REFUSED, Report, WATCHING, WELL},
    stand_in::{self, StandIn},
    watch::Watch,
    word::Word,
};
use crate::{block::CONFIGFS, clock};

/// How long a cut over RDMA may take altogether; then the device does not answer.
const STUCK: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Duty {
    began: bool,
    tried: bool,
    blocks: Watch,
    revoker: Arc<EmergencyRevoker>,
    unswept: mpsc::Sender<(LeaseId, Vec<u16>)>,
    memory: Memory,
    /// Of a daemon that is still there.
    daemon: Option<(Daemon, StandIn)>,
    /// Since when leases over RDMA are being cut.
    cutting: Option<BootTime>,
    report: Report,
}

impl Duty {
    /// With the thread that sweeps, which ends after it.
    pub(super) fn new(
        node_id: NodeId,
        daemon: Option<(Daemon, StandIn)>,
        report: Report,
    ) -> anyhow::Result<(Self, JoinHandle<()>)> {
        let revoker = Arc::new(EmergencyRevoker::new(Path::new(CONFIGFS), node_id));
        let (unswept, sweeps) = mpsc::channel();
        let sweeper = {
            let revoker = Arc::clone(&revoker);
            let sweep = move || sweep(&revoker, &sweeps);
            let thread = thread::Builder::new().name("sweep".into());
            thread.spawn(sweep).context("start a thread")?
        };
        let duty = Self {
            began: false,
            tried: false,
            blocks: Watch::default(),
            revoker,
            unswept,
            memory: Memory::default(),
            daemon,
            cutting: None,
            report,
        };
        Ok((duty, sweeper))
    }

    pub(super) fn hear(&mut self, heard: Heard) -> anyhow::Result<()> {
        match heard {
            Heard::Word(Word::Begin) => {
                lock::take_over()?;
                self.began = true;
                self.report.tell(WATCHING);
            }
            Heard::Word(Word::Ping) => self.report.tell(WELL),
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
            self.report.tell(format_args!("{REFUSED} {error}"));
        }
    }

    /// Nothing is left to do, and nothing will come. Before it is told to begin, another one does it.
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

    /// One at a time: what the daemon says meanwhile is heard before the next.
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
fn sweep(revoker: &EmergencyRevoker, unswept: &mpsc::Receiver<(LeaseId, Vec<u16>)>) {
    while let Ok(first) = unswept.recv() {
        let shut: Vec<_> = iter::once(first).chain(unswept.try_iter()).collect();
        if let Err(error) = revoker.sweep(&shut) {
            tracing::error!(%error, "watchdog: not swept; the next start of the daemon does it");
        }
    }
}
