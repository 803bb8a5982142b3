//! Who ends access to memory when this process does not: a guard in a process of its own, which is told of every
//! queue pair before access opens.
//!
//! The guard puts a lease's queue pairs in ERR, by their handles on this process's own descriptor of the device. In ERR a queue
//! pair serves nothing, and only a reset, which nobody here orders, takes it out of that. A window works for its
//! queue pair alone and a lease's region within the lease's domain, so nothing is left through which the bytes are reached. And
//! nothing is destroyed: no handle comes free for another object, and this process, when it goes on, finds
//! its objects as it left them and takes them down as usual, with proof.

use std::{
    fmt,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use fabricbios_arena::ALIGN;
use fabricbios_lease::{BindError, BootTime, Extent, Farewell, StepError, Tag};
use fabricbios_verbs::fail_queue_pair;
use fabricbios_wire::LeaseId;
use nix::errno::Errno;

use super::{RdmaBackend, hardware::Hardware, life::State, parts::BindingParts, restrack};

/// One more than the largest `enum rdma_driver_id` that there may ever be.
const DRIVERS: u32 = 64;

/// What is told of it is told before what it is about happens, and without waiting.
pub trait Guard: fmt::Debug + Send + Sync {
    /// Whether somebody is there who would end access.
    fn watches(&self) -> bool;
    /// Access opens through this queue pair.
    fn opens(&self, lease: LeaseId, pair: GuardedPair);
    /// The lease may be used until then; the newest counts.
    fn extend(&self, lease: LeaseId, deadline: BootTime);
    /// A cut begins: this process does its work.
    fn moves(&self);
    /// The cut of the queue pair of that number was proved, or failed and is this process's to tell.
    fn ends(&self, lease: LeaseId, number: u32);
    /// What the guard has done about the lease, once.
    fn has_done(&self, lease: LeaseId) -> Option<String>;
}

/// A queue pair as somebody outside its process finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardedPair {
    /// Its number, 24 bits.
    pub number: u32,
    /// Number of the peer's.
    pub peer: u32,
    /// The process's handle of it.
    pub handle: u32,
    /// Number of the process's descriptor of the device.
    pub descriptor: i32,
    /// `enum rdma_driver_id` of the device.
    pub driver: u32,
    /// The kernel's number of the device, for netlink.
    pub device_index: u32,
    /// Its port.
    pub port: u8,
}

impl GuardedPair {
    /// Puts it in ERR, if process `owner` has it and it is not there. `true`: it was not; the kernel's resource tracker says
    /// that it is now. `descriptor` gives a duplicate of the process's descriptor, which is closed before this returns:
    /// while there is one, the death of the process ends nothing. The process must not run.
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
                    said.err().map_or("it is not in ERR", Errno::desc)
                ),
            )),
        }
    }

    /// A queue pair of the same number with another peer, or of another process, came later.
    fn may_serve(&self, owner: u32) -> Result<bool, StepError> {
        let tracked = restrack::queue_pair(self.device_index, self.port, self.number)?;
        Ok(tracked.is_some_and(|it| {
            it.may_be_of(owner) && it.peer.is_none_or(|its| its == self.peer) && !it.is_in_error
        }))
    }
}

impl RdmaBackend {
    /// Has every queue pair told to `guard`. For a backend that has no leases yet.
    #[must_use]
    pub fn guarded_by(mut self, guard: Arc<dyn Guard>) -> Self {
        self.hardware.guard = Some(guard);
        self
    }

    /// Nobody gets access whom nobody would end; who has some already keeps it.
    pub(super) fn check_guard(&self, tag: Tag) -> Result<(), BindError> {
        let watched = self.hardware.guard.as_ref().is_none_or(|it| it.watches());
        if watched || self.is_live(tag.lease_id) {
            return Ok(());
        }
        Err(BindError::Failed(self.hardware.error(
            "reach the watchdog",
            tag,
            "there is none; it is being started again",
        )))
    }

    fn is_live(&self, lease: LeaseId) -> bool {
        let slot = self.custody().find(lease).here();
        slot.is_some_and(|slot| matches!(slot.lock().state, State::Live(_)))
    }
}

impl Hardware {
    pub(super) fn announce(&self, parts: &BindingParts, tag: Tag) {
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
            guard.opens(tag.lease_id, told);
        }
    }

    /// Learns the driver's number by failing a queue pair as a guard would, and so shows that it can be done.
    pub(super) fn try_from_outside(&mut self, tag: Tag) -> Result<(), StepError> {
        let page = Extent {
            offset: 0,
            length: ALIGN,
        };
        let parts = self.prepare(tag, page, 1).map_err(|(_, error)| error)?;
        let handle = parts.pairs.first().and_then(|it| it.queue_pair.as_ref());
        let handle = handle.map_or(0, fabricbios_verbs::QueuePair::handle);
        let device = &self.device.context;
        let works = |driver: &u32| fail_queue_pair(device.as_fd(), *driver, handle).is_ok();
        let driver = (0..DRIVERS).find(works);
        self.dismantle(parts, tag, Farewell::None)
            .map_err(|(_, error)| error)?;
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
