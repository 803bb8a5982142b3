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
    /// A port could not be swept. All other ports and leases were tried too.
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

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    /// Each port has a link that a sweep must remove; the one of the first port is a directory, which cannot be
    /// unlinked.
    #[test]
    fn a_port_that_cannot_be_swept_leaves_no_other_port_unswept() {
        let configfs = tempfile::tempdir().unwrap();
        let (node, lease) = (NodeId([7; 32]), LeaseId(1));
        let names = Names::new(node);
        let subsystem = names.subsystem(lease);
        let link = |port: u16| {
            let links = configfs.path().join(format!("ports/{port}/subsystems"));
            fs::create_dir_all(links.join(names.anchor())).unwrap();
            for name in ["addr_trtype", "addr_adrfam", "addr_traddr", "addr_trsvcid"] {
                fs::write(links.with_file_name(name), "loop").unwrap();
            }
            links.join(&subsystem)
        };
        let links = [link(1), link(2)];
        fs::create_dir(&links[0]).unwrap();
        symlink("/", &links[1]).unwrap();
        let revoker = EmergencyRevoker::new(configfs.path(), node);
        let swept = revoker.sweep(&[(lease, vec![1, 2])]);
        let error = swept.unwrap_err().to_string();
        assert!(error.contains("ports/1/"), "{error}");
        assert!(links[1].symlink_metadata().is_err(), "port 2 is swept");
    }
}
