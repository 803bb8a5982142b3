//! Block storage.

use std::net::SocketAddr;

use fabricbios_wire::{
    Binding, BlockTerms, DhchapSecret, Effective, HostId, LeaseInfo, Nqn, NvmeofAddress,
    NvmeofBinding, ResourceInventory,
};

use super::{Kind as _, Storage, sealed::Sealed};
use crate::{
    Builder, Lease, connect_line,
    inventory::Entries,
    json::{Field, Object, field, flag},
    unmet::Missing,
};

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
            let entry = (pool.resource_id, pool.capacity, pool.health);
            entries.add(Self::TYPE, entry, |it| it.blocks = Some(*pool));
        }
    }

    fn terms_json(effective: &Effective) -> Vec<Field<'static>> {
        vec![
            flag("read_only", effective.read_only),
            flag("mutual_auth", effective.mutual_auth),
        ]
    }

    fn binding_json(binding: &Binding) -> Vec<Field<'_>> {
        vec![field("nvmeof", binding.nvmeof().map(json))]
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

/// The names of nvme-cli. The first path is also in the object itself; `connect` is a whole command, for a root shell.
fn json(binding: &NvmeofBinding) -> Object<'_> {
    let path = |address: &NvmeofAddress| {
        let at = SocketAddr::from(address.endpoint);
        [
            field("trtype", address.transport.name()),
            field("traddr", at.ip().to_string()),
            field("trsvcid", at.port().to_string()),
        ]
    };
    let addresses = &binding.addresses;
    let paths: Vec<Object<'_>> = { addresses.iter() }.map(|it| path(it).into()).collect();
    let ctrl_secret = binding.dhchap_ctrl_secret.as_ref();
    let first = addresses.first().into_iter().flat_map(path);
    first.collect::<Object<'_>>().with([
        field("subnqn", binding.subsystem.as_str()),
        field("nsid", binding.nsid),
        field("hostnqn", binding.host_nqn.as_str()),
        field("hostid", binding.host_id.to_string()),
        field("dhchap_secret", binding.dhchap_secret.reveal()),
        field("dhchap_ctrl_secret", ctrl_secret.map(DhchapSecret::reveal)),
        field("ctrl_loss_tmo", binding.ctrl_loss_secs),
        field("block_size", binding.block_bytes),
        field("paths", paths),
        field("connect", connect_line(binding)),
    ])
}
