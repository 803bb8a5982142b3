//! The guard ends access to memory when this process does not. The guard is another process (the watchdog); it learns
//! of every queue pair before access opens.
//!
//! The guard puts a lease's queue pairs in ERR. It uses their handles and a duplicate of this process's descriptor of
//! the device. A queue pair in ERR serves nothing, and only a reset ends that state; no code here orders one. A window
//! works for its queue pair alone, and a region of a lease within its domain, so no access is left. Nothing is
//! destroyed, so no handle becomes free for another object. If this process goes on, it finds its objects unchanged and
//! destroys them as usual, with proof.

use std::{
    fmt,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use fabricbios_lease::{BindError, BindingId, BootTime, StepError};
use fabricbios_verbs::fail_queue_pair;
use fabricbios_wire::LeaseId;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::{RdmaPath, binding_state::Phase, hardware::Hardware, parts::BindingParts, restrack};

/// Upper bound of `enum rdma_driver_id`.
const DRIVERS: u32 = 64;

/// The connection to the watchdog. Each method is called before the event that it reports, and does not wait.
pub trait Guard: fmt::Debug + Send + Sync {
    /// Whether the watchdog is ready to end access.
    fn watches(&self) -> bool;
    /// Access opens through this queue pair.
    fn opens(&self, lease: LeaseId, pair: GuardedPair);
    /// Sets the deadline of the lease; the newest one counts.
    fn extend(&self, lease: LeaseId, deadline: BootTime);
    /// A cut begins, which shows that this process does not hang.
    fn moves(&self);
    /// The cut of this queue pair is over, proved or failed, and this process reports it.
    fn ends(&self, lease: LeaseId, number: u32);
    /// The guard's report about the lease; each report is returned once.
    fn has_done(&self, lease: LeaseId) -> Option<String>;
}

/// Identifies a queue pair for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardedPair {
    /// Its number, 24 bits.
    pub number: u32,
    /// Number of the peer's queue pair.
    pub peer: u32,
    /// Its handle in the process that made it.
    pub handle: u32,
    /// Number of that process's descriptor of the device.
    pub descriptor: i32,
    /// `enum rdma_driver_id` of the device.
    pub driver: u32,
    /// The kernel's index of the device, for netlink.
    pub device_index: u32,
    /// Its port.
    pub port: u8,
}

impl GuardedPair {
    /// Puts the queue pair in ERR, if process `owner` has the queue pair and it is not in ERR yet. `true`: this call
    /// did it, and the kernel's resource tracker confirms it. `descriptor` returns a duplicate of the process's
    /// descriptor. The duplicate is closed before this returns: while it is open, the death of the process does not
    /// destroy the queue pair. The process must be stopped meanwhile.
    ///
    /// # Errors
    /// The resource tracker does not answer, the descriptor cannot be duplicated, or the queue pair is still not in
    /// ERR.
    pub fn shut(
        &self,
        owner: u32,
        descriptor: impl FnOnce() -> Result<OwnedFd, StepError>,
    ) -> Result<bool, StepError> {
        if !self.may_serve(owner)? {
            return Ok(false);
        }
        let said = fail_queue_pair(descriptor()?.as_fd(), self.driver, self.handle);
        match self.may_serve(owner)? {
            false => Ok(true),
            true => Err(StepError::new(
                "modify_qp ERR",
                format_args!(
                    "queue pair {} of process {owner}: {}",
                    self.number,
                    said.err()
                        .map_or("the queue pair is not in ERR", Errno::desc)
                ),
            )),
        }
    }

    /// Whether the queue pair may still serve. A queue pair with the same number but another peer or process is a later
    /// one.
    fn may_serve(&self, owner: u32) -> Result<bool, StepError> {
        let tracked = restrack::queue_pair(self.device_index, self.port, self.number)?;
        Ok(tracked.is_some_and(|it| {
            it.may_be_of(owner) && it.peer.is_none_or(|its| its == self.peer) && !it.is_in_error
        }))
    }
}

impl RdmaPath {
    /// Sets the guard. For a path that has no leases yet.
    #[must_use]
    pub fn guarded_by(mut self, guard: Arc<dyn Guard>) -> Self {
        self.hardware.guard = Some(guard);
        self
    }

    /// Refuses a binding while the watchdog is absent. A live lease keeps its access.
    pub(super) fn check_guard(&self, binding_id: BindingId) -> Result<(), BindError> {
        match self.is_live(binding_id.lease_id) {
            true => Ok(()),
            false => self.check_watched(binding_id),
        }
    }

    /// Refuses new access while the watchdog is absent.
    pub(super) fn check_watched(&self, binding_id: BindingId) -> Result<(), BindError> {
        if self.hardware.guard.as_ref().is_none_or(|it| it.watches()) {
            return Ok(());
        }
        Err(BindError::Failed(self.hardware.error(
            "reach the watchdog",
            binding_id,
            "no watchdog runs; the daemon is starting it again",
        )))
    }

    fn is_live(&self, lease: LeaseId) -> bool {
        let cell = self.custody().find(lease).here();
        cell.is_some_and(|cell| matches!(cell.lock().phase, Phase::Live(_)))
    }
}

impl Hardware {
    /// Tells the guard of queue pairs before access opens through them, with the deadline: the guard forgets the deadline
    /// of a lease that has no queue pair.
    pub(super) fn announce(
        &self,
        parts: &BindingParts,
        binding_id: BindingId,
        deadline: impl Fn() -> Option<BootTime>,
    ) {
        let Some(guard) = &self.guard else { return };
        for pair in &parts.pairs {
            let Some(queue_pair) = &pair.queue_pair else {
                continue;
            };
            let told = GuardedPair {
                number: pair.number,
                peer: pair.peer,
                handle: queue_pair.handle(),
                descriptor: self.device.context.descriptor(),
                driver: self.driver,
                device_index: self.device.index,
                port: self.device.port,
            };
            guard.opens(binding_id.lease_id, told);
        }
        // The last one that the guard hears is the newest, also if the lease is extended meanwhile.
        let mut told = None;
        while let Some(now) = deadline().filter(|now| told != Some(*now)) {
            guard.extend(binding_id.lease_id, now);
            told = Some(now);
        }
    }

    /// Finds the number of the device's driver by putting a queue pair in ERR as the guard would. So this also tests
    /// that the guard can end access.
    pub(super) fn try_from_outside(&mut self, binding_id: BindingId) -> Result<(), StepError> {
        let device = &self.device.context;
        let driver = self.test_pair(binding_id, |parts| {
            let handle = parts.pairs.first().and_then(|it| it.queue_pair.as_ref());
            let handle = handle.map_or(0, fabricbios_verbs::QueuePair::handle);
            let works = |driver: &u32| fail_queue_pair(device.as_fd(), *driver, handle).is_ok();
            (0..DRIVERS).find(works)
        })?;
        match driver {
            Some(driver) => self.driver = driver,
            None => tracing::warn!(
                device = self.device.name(),
                "queue pairs of this device can be ended by their process alone: should it hang, the watchdog kills it"
            ),
        }
        Ok(())
    }
}
