//! The SDK against a node that answers by script.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail as loudly as tests"
)]

mod blocks;
#[path = "../common/mod.rs"]
mod common;
mod connections;
mod delayed;
mod distrusted;
mod ends;
mod fleet;
mod gpu_ahead;
mod gpu_copies;
mod gpu_leases;
mod gpu_sessions;
mod inventory;
mod leases;
mod nodes;
mod on_the_node;
mod patience;
mod pins;
mod renewals;
mod routes;
mod transfers;
mod tried;

use common::{FakeNode, granted, lease};
use fabricbios_client::{Identity, MemBuilder};
use fabricbios_wire::{Answer, Generation, LeaseInfo, RdmaPeer, Reply, Request};

pub(crate) const PEER: RdmaPeer = RdmaPeer {
    qpn: 5,
    psn: 6,
    gid: [7; 16],
    path_mtu: 1_024,
};

/// Grants each request, and repeats the grant in later answers; each answer has a new generation.
pub(crate) fn obliging() -> impl FnMut(&Request) -> Answer + Send + 'static {
    let (mut generation, mut info) = (0, lease(60_000));
    move |request| {
        generation += 1;
        if let Request::LeaseAlloc(alloc) = request {
            info = granted(alloc);
        }
        Ok(Reply::Lease(LeaseInfo {
            generation: Generation(generation),
            ..info.clone()
        }))
    }
}

pub(crate) fn admin(node: &FakeNode) -> Identity {
    Identity::load(node.admin()).unwrap()
}

pub(crate) fn builder(node: &FakeNode) -> MemBuilder {
    MemBuilder::new()
        .bytes(1 << 20)
        .node(node.addr())
        .identity(&admin(node))
        .auto_renew(false)
}
