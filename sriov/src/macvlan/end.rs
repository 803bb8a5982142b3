//! Ends macvlan leases without the daemon.

use std::sync::Arc;

use fabricbios_contract::EndByName;
use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;

use super::{devices::Devices, kernel::Kernel};

/// Deletes the devices of a lease by their names, which no other lease has while the record of this one exists.
#[derive(Debug)]
pub struct MacvlanEnd {
    kernel: Arc<dyn Kernel>,
}

impl MacvlanEnd {
    /// In the network namespace of this kernel.
    #[must_use]
    pub fn new(kernel: Arc<dyn Kernel>) -> Self {
        Self { kernel }
    }
}

impl EndByName for MacvlanEnd {
    fn end(&self, lease: LeaseId) -> Result<(), StepError> {
        Devices::of(lease).delete(&*self.kernel).map(drop)
    }
}
