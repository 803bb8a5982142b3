//! What to ask a lease for.

use std::{marker::PhantomData, time::Duration};

use fabricbios_wire::{
    BlockTerms, HostId, KvCacheIntent, LeaseAllocRequest, LeaseTerms, Nqn, RdmaPeer, ResourceId,
    Transport,
};

use crate::{
    Blocks, Error, Identity, Kind, Lease, Memory, Node, Transfers, lease::Care, patience::PATIENCE,
    runtime::wait,
};

/// Term of a lease unless told otherwise.
const LEASE_SECS: u32 = 60;

/// A lease of memory, about to be asked for.
pub type MemBuilder = Builder<Memory>;

/// A lease of block storage, about to be asked for.
pub type BlockBuilder = Builder<Blocks>;

/// A lease, about to be asked for.
///
/// Unless told otherwise it lasts 60 seconds, renews itself, and goes to the node and with the
/// identity that the environment names.
#[derive(Clone, Debug)]
#[must_use = "nothing is leased before acquire()"]
pub struct Builder<K: Kind> {
    request: LeaseAllocRequest,
    node: NodeChoice,
    identity: Option<Identity>,
    auto_renew: bool,
    transfers: Transfers,
    patience: Duration,
    kind: PhantomData<fn() -> K>,
}

#[derive(Clone, Debug)]
enum NodeChoice {
    Default,
    Address(String),
    Connected(Node),
}

impl<K: Kind> Default for Builder<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Kind> Builder<K> {
    /// Nothing asked for yet.
    pub fn new() -> Self {
        Self {
            request: LeaseAllocRequest::new(K::TYPE, 0, LEASE_SECS),
            node: NodeChoice::Default,
            identity: None,
            auto_renew: true,
            transfers: Transfers::default(),
            patience: PATIENCE,
            kind: PhantomData,
        }
    }

    /// How much. Has to be given.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.request.capacity = bytes;
        self
    }

    /// For how long, and for how long again at every renewal.
    pub fn lease_secs(mut self, secs: u32) -> Self {
        self.request.lease_secs = secs;
        self
    }

    /// For how long contents are kept after the end, without access.
    pub fn grace_secs(mut self, secs: u32) -> Self {
        self.request.grace_secs = secs;
        self
    }

    /// Of which arena or pool; any if not given.
    pub fn resource(mut self, resource_id: ResourceId) -> Self {
        self.request.resource_id = Some(resource_id);
        self
    }

    /// Sets the transport. `acquire` fails if the node does not have it.
    pub fn transport(mut self, transport: Transport) -> Self {
        self.request.transport = transport;
        self
    }

    /// Renewal changes the key. For callers that look at [`Lease::binding`] again afterwards.
    pub fn rotate_on_renew(mut self) -> Self {
        self.request.rotate_on_renew = true;
        self
    }

    /// Whether the lease renews itself until it is freed or dropped. It does unless told otherwise.
    pub fn auto_renew(mut self, yes: bool) -> Self {
        self.auto_renew = yes;
        self
    }

    /// How the SDK's own reads and writes go.
    pub fn transfers(mut self, transfers: Transfers) -> Self {
        self.transfers = transfers;
        self
    }

    /// For how long a request is asked again while the node is busy for a moment: this one, a connection for it, and
    /// those of the lease ([`Lease::set_patience`]). 10 seconds unless told otherwise; zero for once.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Which node, as `HOST`, `HOST:PORT` or `[IPV6]:PORT`.
    pub fn node(mut self, address: impl Into<String>) -> Self {
        self.node = NodeChoice::Address(address.into());
        self
    }

    /// A node that is connected already; leases then share the connection.
    pub fn on(mut self, node: &Node) -> Self {
        self.node = NodeChoice::Connected(node.clone());
        self
    }

    /// As whom.
    pub fn identity(mut self, identity: &Identity) -> Self {
        self.identity = Some(identity.clone());
        self
    }

    /// Asks, blocking.
    pub fn acquire(self) -> Result<Lease<K>, Error> {
        wait(self.acquire_async())
    }

    /// Asks.
    pub async fn acquire_async(self) -> Result<Lease<K>, Error> {
        self.check()?;
        let Self {
            request,
            node,
            identity,
            auto_renew,
            transfers,
            patience,
            kind: _,
        } = self;
        let node = chosen(node, identity)?.patient(patience);
        let (lease_secs, has_peers) = (request.lease_secs, !request.terms.rdma_peers().is_empty());
        let info = node.alloc(request).await?;
        let care = match auto_renew {
            true => Care::Renewed,
            false => Care::Callers,
        };
        let lease = Lease::new(node, info, lease_secs, care)?;
        if has_peers {
            lease.shared.has_callers_peers();
        }
        lease.set_transfers(transfers);
        Ok(lease)
    }

    fn check(&self) -> Result<(), Error> {
        let usage = |message: &str| Err(Error::Usage(message.to_owned()));
        match self.request {
            LeaseAllocRequest { capacity: 0, .. } => usage("no size given: call bytes()"),
            LeaseAllocRequest { lease_secs: 0, .. } => usage("a lease lasts at least 1 second"),
            _ => Ok(()),
        }
    }
}

impl MemBuilder {
    /// The caller's queue pair, or one of several; they can come later with [`crate::MemLease::bind`].
    pub fn rdma_peer(mut self, peer: RdmaPeer) -> Self {
        if let LeaseTerms::Mem(terms) = &mut self.request.terms {
            terms.rdma_peers.push(peer);
        }
        self
    }

    /// What a KV cache wants of the memory.
    pub fn kv_cache(mut self, intent: KvCacheIntent) -> Self {
        self.request.kv_cache_intent = Some(intent);
        self
    }
}

impl BlockBuilder {
    /// Nothing can be written.
    pub fn read_only(self) -> Self {
        self.with(|terms| terms.read_only = true)
    }

    /// The host that will connect over NVMe-oF, and its identifier if it is not the UUID in the name.
    /// Without this the node mints both for this lease.
    pub fn host(self, name: Nqn, id: Option<HostId>) -> Self {
        self.with(|terms| (terms.host_nqn, terms.host_id) = (Some(name), id))
    }

    /// The host wants proof of whom it talks to, too (NVMe-oF).
    pub fn mutual_auth(self) -> Self {
        self.with(|terms| terms.mutual_auth = true)
    }

    fn with(mut self, change: impl FnOnce(&mut BlockTerms)) -> Self {
        if let LeaseTerms::Block(terms) = &mut self.request.terms {
            change(terms);
        }
        self
    }
}

fn chosen(choice: NodeChoice, identity: Option<Identity>) -> Result<Node, Error> {
    let address = match choice {
        NodeChoice::Connected(node) => return Ok(node),
        NodeChoice::Address(address) => address,
        NodeChoice::Default => Node::default_address(),
    };
    let identity = identity.map_or_else(Identity::from_env, Ok)?;
    Node::undialled(&address, &identity)
}
