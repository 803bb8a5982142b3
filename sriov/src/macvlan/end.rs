//! Ends macvlan leases without the daemon.

use std::sync::Arc;

use fabricbios_contract::EndByName;
use fabricbios_lease::StepError;
use fabricbios_wire::{LeaseId, NodeId};

use super::{
    devices::{Devices, leases_noted, note_of},
    kernel::Kernel,
    record::MacvlanRecord,
};
use crate::Claims;

/// Cuts a lease by the names of its devices; no other lease has these names while the lease's record exists. The
/// devices stay until the next start of the daemon: deleting one waits for the kernel, and other leases are due.
#[derive(Debug)]
pub struct MacvlanEnd {
    kernel: Arc<dyn Kernel>,
}

impl MacvlanEnd {
    /// Cuts leases in the network namespace of this kernel.
    #[must_use]
    pub fn new(kernel: Arc<dyn Kernel>) -> Self {
        Self { kernel }
    }
}

impl EndByName for MacvlanEnd {
    fn end(&self, lease: LeaseId) -> Result<(), StepError> {
        let (devices, kernel) = (Devices::of(lease), &*self.kernel);
        let cut = devices
            .indexes(kernel)
            .and_then(|it| devices.cut(kernel, it));
        cut.or_else(|_| devices.delete(kernel)).map(drop)
    }
}

/// Ends the leases that an earlier run has left on parents that are no longer on offer.
///
/// # Errors
/// The records cannot be read, or a lease cannot be ended.
pub fn end_unoffered(
    kernel: &dyn Kernel,
    node_id: NodeId,
    claims: &Claims,
    offered: &[&str],
) -> Result<(), StepError> {
    let mut left = leases_noted(kernel, &note_of(node_id))?;
    let recorded = claims.records::<MacvlanRecord>().readable()?.into_iter();
    left.extend(recorded.map(|(lease, record)| (lease, record.parent)));
    left.retain(|(_, parent)| !offered.contains(&&**parent));
    for (lease, parent) in left {
        tracing::warn!(lease_id = %lease, parent, "ending a lease of an interface that is not on offer any more");
        let devices = Devices::of(lease);
        devices.delete(kernel)?;
        devices.check_gone(kernel, None)?;
        claims.remove::<MacvlanRecord>(lease)?;
    }
    Ok(())
}

/// Whether an earlier run has left leases on this parent.
///
/// # Errors
/// The records cannot be read.
pub fn had_leases(claims: &Claims, parent: &str) -> Result<bool, StepError> {
    let recorded = claims.records::<MacvlanRecord>().readable()?;
    Ok(recorded.iter().any(|(_, record)| record.parent == parent))
}
