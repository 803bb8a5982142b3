//! The end of leases over NVMe-oF by name, and of exports of an earlier run whose pools are not on offer any more: the
//! lease table does not contain those, and their clients would keep access.

use std::{
    ffi::OsStr,
    iter,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
};

use anyhow::Context;
use fabricbios_contract::{EndByName, stray_binding_id};
use fabricbios_lease::StepError;
use fabricbios_nvmet::{EmergencyRevoker, Target};
use fabricbios_wire::{LeaseId, NodeId, ResourceId};

use super::CONFIGFS;
use crate::kinds::Ending;

/// See [`crate::kinds::Kind::end`]. `node_id`: the leases of this node.
pub(super) fn end(node_id: &OsStr, ending: &Ending<'_>) -> anyhow::Result<Box<dyn EndByName>> {
    let node_id = node_id.to_string_lossy().parse()?;
    let end = NvmeofEnd::start(node_id, Arc::clone(ending.is_orphan))?;
    Ok(Box::new(end))
}

/// Revokes at once, and sweeps on a thread of its own, so that no cut waits for a sweep. If another watchdog takes over
/// before a sweep is done, the daemon's proof sweeps. A drop waits for the sweeps.
struct NvmeofEnd {
    revoker: Arc<EmergencyRevoker>,
    is_orphan: Arc<AtomicBool>,
    unswept: Option<mpsc::Sender<(LeaseId, Vec<u16>)>>,
    sweeper: Option<JoinHandle<()>>,
}

impl NvmeofEnd {
    fn start(node_id: NodeId, is_orphan: Arc<AtomicBool>) -> anyhow::Result<Self> {
        let revoker = Arc::new(EmergencyRevoker::new(Path::new(CONFIGFS), node_id));
        let (unswept, sweeps) = mpsc::channel();
        let its = Arc::clone(&revoker);
        let thread = thread::Builder::new().name("sweep".into());
        let sweeper = thread.spawn(move || sweep(&its, &sweeps));
        Ok(Self {
            revoker,
            is_orphan,
            unswept: Some(unswept),
            sweeper: Some(sweeper.context("start a thread")?),
        })
    }
}

impl EndByName for NvmeofEnd {
    fn end(&self, lease: LeaseId) -> Result<(), StepError> {
        let ports = self.revoker.revoke(lease)?;
        if ports.is_empty() {
            return Ok(());
        }
        tracing::warn!(%lease, ports = ports.len(), "watchdog: cut in place of the daemon");
        if self.is_orphan.load(Ordering::SeqCst)
            && let Some(unswept) = &self.unswept
        {
            // The sweeping thread ends only after this sender is dropped.
            unswept.send((lease, ports)).ok();
        }
        Ok(())
    }
}

impl Drop for NvmeofEnd {
    fn drop(&mut self) {
        self.unswept = None;
        self.sweeper.take().map(JoinHandle::join);
    }
}

fn sweep(revoker: &EmergencyRevoker, unswept: &mpsc::Receiver<(LeaseId, Vec<u16>)>) {
    while let Ok(first) = unswept.recv() {
        let shut: Vec<_> = iter::once(first).chain(unswept.try_iter()).collect();
        if let Err(error) = revoker.sweep(&shut) {
            tracing::error!(%error, "watchdog: not swept; the next start of the daemon sweeps");
        }
    }
}

/// Cuts and removes all stale exports. `Err`: a cut failed; the node must not start then.
pub(super) fn end_all(target: Option<Arc<Target>>) -> anyhow::Result<()> {
    let Some(target) = target else { return Ok(()) };
    let leases = target.leases()?;
    for &lease_id in &leases {
        let proof = target.cut(stray_binding_id(ResourceId(0), lease_id));
        let proof = proof.with_context(|| format!("end lease {lease_id}, whose pool is gone"))?;
        tracing::warn!(%lease_id, %proof, "cut a lease whose pool is no longer offered");
    }
    // Removing may wait for the storage; deadlines of other leases must not.
    thread::spawn(move || {
        for lease_id in leases {
            if let Err(why) = target.remove(lease_id, &|| ()) {
                tracing::error!(%lease_id, %why, "its export stays");
            }
        }
    });
    Ok(())
}
