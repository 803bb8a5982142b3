//! The kernel's target and the watchdog that ends what it serves.

use std::sync::Arc;

use fabricbios_lease::{BindError, BootTime, StepError, Tag};
use fabricbios_premium::nvmet::{Export, Target};
use fabricbios_wire::{LeaseId, NvmeofBinding, Transport};

use super::parts::Exports;
use crate::watchdog::Watchdog;

/// A target whose leases end also without the daemon.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) target: Arc<Target>,
    pub(super) watchdog: Watchdog,
}

impl Exports for Watched {
    fn transports(&self) -> Vec<Transport> {
        self.target.transports()
    }
    fn publish(&self, export: &Export) -> Result<NvmeofBinding, BindError> {
        self.target.publish(export)
    }
    fn rekey(&self, tag: Tag) -> Result<NvmeofBinding, BindError> {
        self.target.rekey(tag)
    }
    fn sever(&self, tag: Tag) {
        self.target.sever(tag);
    }
    /// What could not be proved is the watchdog's at the deadline.
    fn cut(&self, tag: Tag) -> Result<String, StepError> {
        let proof = self.target.cut(tag)?;
        self.over(tag);
        Ok(proof)
    }
    fn remove(&self, lease: LeaseId, progress: &dyn Fn()) -> Result<(), StepError> {
        self.target.remove(lease, progress)
    }
    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.target.leases()
    }
    fn extend(&self, tag: Tag, deadline: BootTime) {
        self.watchdog.extend(tag, deadline);
    }
    fn over(&self, tag: Tag) {
        self.watchdog.over(tag);
    }
}
