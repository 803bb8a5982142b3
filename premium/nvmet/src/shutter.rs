//! Cuts without a target of one's own and without the proof, for whoever has to do it in the daemon's stead.

use std::path::Path;

use fabricbios_kernfs::Tree;
use fabricbios_lease::StepError;
use fabricbios_wire::{LeaseId, NodeId};

use super::{cut::Cut, names::Names, probe::Asker, proof::Proofs};

/// Knows nothing of leases but their names.
#[derive(Debug)]
pub struct Shutter {
    names: Names,
    proofs: Proofs,
}

impl Shutter {
    /// For the leases of that node, in the target below `configfs`.
    #[must_use]
    pub fn new(configfs: &Path, node_id: NodeId) -> Self {
        let names = Names::new(node_id);
        let proofs = Proofs::new(Tree::new(configfs), names.anchor(), Asker::new(None));
        Self { names, proofs }
    }

    /// What [`super::Target::revoke`] does; the numbers of the ports from which it was unlinked.
    pub fn shut(&self, lease: LeaseId) -> Result<Vec<u16>, StepError> {
        let unlinked = self.cut(lease).shut()?;
        Ok(unlinked.map(|it| it.ports).unwrap_or_default())
    }

    /// After a moment, the last connections of leases that were shut on these ports fall. For when the daemon
    /// is gone: its proof would meet the links that this makes for an instant.
    pub fn sweep(&self, shut: &[(LeaseId, Vec<u16>)]) -> Result<(), StepError> {
        let anchored = self.proofs.settle()?;
        let swept = shut
            .iter()
            .map(|(lease, ports)| self.cut(*lease).sweep_all(ports, &anchored));
        // Every one is tried, whatever came of the others.
        swept.fold(Ok(()), Result::and)
    }

    fn cut(&self, lease: LeaseId) -> Cut<'_> {
        Cut::of(lease, &self.names, &self.proofs)
    }
}
