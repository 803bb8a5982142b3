//! Ends access if the daemon cannot. Needs no [`Target`](super::Target) and proves nothing.

use std::path::Path;

use fabricbios_kernfs::Tree;
use fabricbios_lease::StepError;
use fabricbios_wire::{LeaseId, NodeId};

use super::{cut::Cut, names::Names, probe::Prober, proof::Proofs};

/// Ends access to leases by their names alone.
#[derive(Debug)]
pub struct EmergencyRevoker {
    names: Names,
    proofs: Proofs,
}

impl EmergencyRevoker {
    /// Ends leases of a node, in the target below `configfs`.
    #[must_use]
    pub fn new(configfs: &Path, node_id: NodeId) -> Self {
        let names = Names::new(node_id);
        let proofs = Proofs::new(Tree::new(configfs), names.anchor(), Prober::new(None));
        Self { names, proofs }
    }

    /// Ends access as [`Target::revoke`](super::Target::revoke) does. Returns the numbers of the ports from which the
    /// subsystem was unlinked.
    ///
    /// # Errors
    /// The subsystem may still be linked, and a host allowed.
    pub fn revoke(&self, lease: LeaseId) -> Result<Vec<u16>, StepError> {
        let unlinked = self.cut(lease).end_access()?;
        Ok(unlinked.map(|it| it.ports).unwrap_or_default())
    }

    /// Waits a moment, then ends the last connections of revoked leases on these ports. Only for when the daemon has
    /// ended: this links again for an instant, and a proof of the daemon would find these links.
    ///
    /// # Errors
    /// A port could not be swept. All other leases were tried too.
    pub fn sweep(&self, revoked: &[(LeaseId, Vec<u16>)]) -> Result<(), StepError> {
        let anchored = self.proofs.settle()?;
        let swept = revoked
            .iter()
            .map(|(lease, ports)| self.cut(*lease).sweep_all(ports, &anchored));
        // All leases are tried, also after an error.
        swept.fold(Ok(()), Result::and)
    }

    fn cut(&self, lease: LeaseId) -> Cut<'_> {
        Cut::of(lease, &self.names, &self.proofs)
    }
}
