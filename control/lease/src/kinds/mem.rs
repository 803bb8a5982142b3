//! Memory: the client's queue pairs.

use alloc::{format, string::String};
use core::net::Ipv6Addr;

use fabricbios_wire::{LeaseTerms, MemTerms, RdmaPeer, Refusal, ResourceType, Transport};

use super::{Grant, Rules};
use crate::{Profile, standing::invalid};

const NO_VRAM: &str = "memory of a GPU is not leased as MEM (RDMA into VRAM): this version of the node cannot give a \
     network card access to it; lease it as gpu";

const NO_PEERS: &str = "a queue pair was given, and it takes none";

impl Rules for MemTerms {
    fn foreign_to(&self, kind: ResourceType) -> String {
        format!(
            "a lease of {kind} takes no queue pair of the client, whatever the transport: leave it out"
        )
    }

    fn not_of(&self, kind: ResourceType) -> Option<&'static str> {
        (kind == ResourceType::Gpu).then_some(NO_VRAM)
    }

    fn check(&self, _capacity: u64, _profile: Profile) -> Result<(), Refusal> {
        check_peers(&self.rdma_peers)
    }

    fn needs_transport(&self) -> bool {
        true
    }

    fn misfit(&self, transport: Transport, _read_only: bool) -> Option<&'static str> {
        let fits = self.rdma_peers.is_empty() || self.takes_peers(transport);
        (!fits).then_some(NO_PEERS)
    }

    fn takes_peers(&self, transport: Transport) -> bool {
        matches!(transport, Transport::Rdma | Transport::Both)
    }

    fn enforced(&self, _grant: &Grant<'_>) -> LeaseTerms {
        MemTerms::default().into()
    }
}

/// Refuses peers that are no single port, before any change: a kernel would accept a multicast GID.
pub(crate) fn check_peers(peers: &[RdmaPeer]) -> Result<(), Refusal> {
    match peers.iter().find(|peer| !peer.names_one_port()) {
        Some(peer) => Err(invalid(format!(
            "GID {} names no single port: give the one that the client's port has",
            Ipv6Addr::from(peer.gid)
        ))),
        None => Ok(()),
    }
}
