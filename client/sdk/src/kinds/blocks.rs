//! Block storage.

use fabricbios_wire::{BlockTerms, HostId, LeaseInfo, Nqn, ResourceInventory};

use super::{Storage, sealed::Sealed};
use crate::{Builder, Lease, inventory::Entries, unmet::Missing};

/// Block storage: blocks over NVMe-oF or FBBU.
#[derive(Clone, Copy, Debug)]
pub enum Blocks {}

/// Requests a lease of block storage.
pub type BlockBuilder = Builder<Blocks>;

/// A lease of block storage.
pub type BlockLease = Lease<Blocks>;

impl Storage for Blocks {}

impl Sealed for Blocks {
    type Terms = BlockTerms;
    const SIZED_BY: &'static str = "bytes()";

    /// The node does not echo the host as a constraint.
    fn unmet(terms: &BlockTerms, _capacity: u64, info: &LeaseInfo, missing: &mut Missing) {
        let effective = &info.effective;
        missing.need(!terms.read_only || effective.read_only, "read-only");
        missing.need(
            !terms.mutual_auth || effective.mutual_auth,
            "mutual authentication",
        );
        if let (Some(wanted), Some(nvmeof)) = (&terms.host_nqn, info.binding.nvmeof()) {
            missing.need(nvmeof.host_nqn == *wanted, format!("host {wanted}"));
        }
    }

    fn entries(structured: &ResourceInventory, entries: &mut Entries) {
        for pool in &structured.block_devs {
            entries.add(pool.resource_id, pool.health, |it| it.blocks = Some(*pool));
        }
    }
}

impl BlockBuilder {
    /// Makes the lease read-only.
    pub fn read_only(mut self) -> Self {
        self.terms.read_only = true;
        self
    }

    /// Sets the NVMe-oF host, and its identifier if this is not the UUID in the name. By default the node makes
    /// both for this lease.
    pub fn host(mut self, name: Nqn, id: Option<HostId>) -> Self {
        self.terms = BlockTerms {
            host_nqn: Some(name),
            host_id: id,
            ..self.terms
        };
        self
    }

    /// Makes the controller authenticate itself to the host, too (NVMe-oF).
    pub fn mutual_auth(mut self) -> Self {
        self.terms.mutual_auth = true;
        self
    }
}
