//! Ends access if the daemon cannot: without a [`Target`](super::Target) and without a proof.

use std::path::Path;

use fabricbios_kernfs::Tree;
use fabricbios_lease::StepError;
use fabricbios_wire::{LeaseId, NodeId};

use super::{cut::Cut, names::Names, probe::Prober, proof::Proofs};

/// Ends access to leases that it knows by name only.
#[derive(Debug)]
pub struct EmergencyRevoker {
    names: Names,
    proofs: Proofs,
}

impl EmergencyRevoker {
    /// For the leases of a node, in the target below `configfs`.
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

    /// Waits a moment and ends the last connections of revoked leases on these ports. For when the daemon is gone: it
    /// links again for an instant, and a proof of the daemon would find these links.
    ///
    /// # Errors
    /// A port could not be swept; all others were.
    pub fn sweep(&self, revoked: &[(LeaseId, Vec<u16>)]) -> Result<(), StepError> {
        let anchored = self.proofs.settle()?;
        let swept = revoked
            .iter()
            .map(|(lease, ports)| self.cut(*lease).sweep_all(ports, &anchored));
        // All are tried, also after an error.
        swept.fold(Ok(()), Result::and)
    }

    fn cut(&self, lease: LeaseId) -> Cut<'_> {
        Cut::of(lease, &self.names, &self.proofs)
    }
}
