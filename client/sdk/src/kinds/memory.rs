//! Memory.

use std::net::Ipv6Addr;

use base16ct::lower::encode_string;
use fabricbios_wire::{
    Binding, KvCacheIntent, LeaseInfo, MemTerms, PeerChange, RdmaAttach, RdmaBinding, RdmaPeer,
    Reply, Request, ResourceInventory,
};

use zeroize::Zeroizing;

use super::{Kind as _, Storage, sealed::Sealed};
use crate::{
    Builder, Error, Lease,
    inventory::Entries,
    json::{Field, Object, field},
    runtime::wait,
    unmet::Missing,
};

/// Memory: bytes over RDMA or FBMU.
#[derive(Clone, Copy, Debug)]
pub enum Memory {}

/// Requests a lease of memory.
pub type MemBuilder = Builder<Memory>;

/// A lease of memory.
pub type MemLease = Lease<Memory>;

impl Storage for Memory {}

impl Sealed for Memory {
    type Terms = MemTerms;
    const SIZED_BY: &'static str = "bytes()";

    fn unmet(_terms: &MemTerms, _capacity: u64, _info: &LeaseInfo, _missing: &mut Missing) {}

    fn entries(structured: &ResourceInventory, entries: &mut Entries) {
        for arena in &structured.mem_arenas {
            let entry = (arena.resource_id, arena.len, arena.health);
            entries.add(Self::TYPE, entry, |it| it.mem = Some(*arena));
        }
    }

    fn binding_json(binding: &Binding) -> Vec<Field<'_>> {
        vec![field("rdma", binding.rdma().map(json))]
    }
}

impl MemBuilder {
    /// Adds a queue pair of the caller; [`crate::MemLease::bind`] can do this later.
    pub fn rdma_peer(mut self, peer: RdmaPeer) -> Self {
        self.terms.rdma_peers.push(peer);
        self
    }

    /// Sets the intent of a KV cache.
    pub fn kv_cache(mut self, intent: KvCacheIntent) -> Self {
        self.request.intent.kv_cache = Some(intent);
        self
    }
}

impl MemLease {
    /// Connects the lease to queue pairs of the caller, or connects it again after an access fault. From then on
    /// [`MemLease::read`] and [`MemLease::write`] do not use RDMA.
    pub async fn bind_async(&self, peers: &[RdmaPeer]) -> Result<LeaseInfo, Error> {
        self.shared.set_callers_peers();
        self.ask(Request::LeaseBind {
            lease_id: self.lease_id(),
            peers: peers.to_vec(),
        })
        .await
    }

    /// Connects the lease to queue pairs, blocking.
    pub fn bind(&self, peers: &[RdmaPeer]) -> Result<LeaseInfo, Error> {
        wait(self.bind_async(peers))
    }

    /// Changes the queue pairs of a live binding: some join it, or some leave it, with proof. The others go on without
    /// an error. The answer has every queue pair of the lease; those that joined are the last ones, in their order.
    pub async fn change_peers_async(&self, change: PeerChange) -> Result<LeaseInfo, Error> {
        self.shared.set_callers_peers();
        self.ask(Request::LeasePeers {
            lease_id: self.lease_id(),
            change,
        })
        .await
    }

    /// Asks for an attach code: one program that connects with rdma_cm to the endpoint of the answer, with the 16 bytes
    /// of the code as its private data, joins the lease. Each code works once.
    ///
    /// # Errors
    /// The node has no rdma_cm listener, the lease is not over RDMA, or it has 8 codes that nobody has used.
    pub async fn attach_code_async(&self) -> Result<RdmaAttach, Error> {
        self.shared.check_not_lost()?;
        self.shared.set_callers_peers();
        let node = self.shared.patient_node();
        // The code is not kept with the lease.
        let told = node
            .lease_async(Request::LeaseAttach(self.lease_id()))
            .await?;
        let attach = told.binding.rdma().and_then(|rdma| rdma.attach.clone());
        attach.ok_or_else(|| node.unexpected("an attach code", &Reply::Lease(told)))
    }

    /// Asks for an attach code, blocking.
    ///
    /// # Errors
    /// As [`MemLease::attach_code_async`].
    pub fn attach_code(&self) -> Result<RdmaAttach, Error> {
        wait(self.attach_code_async())
    }

    /// Changes the queue pairs of a live binding, blocking.
    pub fn change_peers(&self, change: PeerChange) -> Result<LeaseInfo, Error> {
        wait(self.change_peers_async(change))
    }
}

/// With several queue pairs `qps` has all, and the fields before it are those of the first.
fn json(rdma: &RdmaBinding) -> Object<'_> {
    let pair = |qp_num, psn, rkey| {
        Object::from([
            field("qp_num", qp_num),
            field("psn", psn),
            field("rkey", rkey),
        ])
    };
    let first = pair(rdma.qp_num, rdma.psn, rdma.rkey);
    let further = rdma.further.iter();
    let further = further.map(|it| pair(it.qp_num, it.psn, Some(it.rkey)));
    let pairs: Vec<Object<'_>> = std::iter::once(first).chain(further).collect();
    let previous = rdma.previous.map(|old| {
        Object::from([
            field("rkey", old.rkey),
            field("remaining_ms", old.remaining_ms),
        ])
    });
    let attach = rdma.attach.as_ref().map(|attach| {
        Object::from([
            field("code", code_text(attach)),
            field("address", attach.endpoint.to_string()),
        ])
    });
    Object::from([
        field("rkey", rdma.rkey),
        field("remote_addr", rdma.remote_addr),
        field("qp_num", rdma.qp_num),
        field("gid", gid_text(rdma.gid)),
        field("port", rdma.port),
        field("psn", rdma.psn),
        field("path_mtu", rdma.path_mtu),
        field("strategy", rdma.strategy.name()),
        field("max_rd_atomic", rdma.max_rd_atomic),
        field("atomics", rdma.atomics),
        field("previous", previous),
        field("prepared_rkey", rdma.prepared_rkey),
        field("attach", attach),
        field("qps", Some(pairs).filter(|pairs| pairs.len() > 1)),
    ])
}

/// A GID as text: eight groups of four digits, the only form that all tools accept, pyverbs among them.
#[must_use]
pub fn gid_text(gid: [u8; 16]) -> String {
    let groups = Ipv6Addr::from(gid).segments();
    groups.map(|group| format!("{group:04x}")).join(":")
}

/// The code in hexadecimal digits.
#[must_use]
pub fn code_text(attach: &RdmaAttach) -> Zeroizing<String> {
    Zeroizing::new(encode_string(&attach.code.0))
}
