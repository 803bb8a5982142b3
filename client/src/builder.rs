//! Builders of requests for leases.

use std::{marker::PhantomData, time::Duration};

use fabricbios_wire::{
    BlockTerms, HostId, KvCacheIntent, LeaseAllocRequest, LeaseTerms, Nqn, RdmaPeer, ResourceId,
    Transport,
};

use crate::{
    Blocks, Error, Identity, Kind, Lease, Memory, Node, Transfers, lease::Renewer,
    patience::PATIENCE, runtime::wait,
};

/// The default term of a lease.
const LEASE_SECS: u32 = 60;

/// Requests a lease of memory.
pub type MemBuilder = Builder<Memory>;

/// Requests a lease of block storage.
pub type BlockBuilder = Builder<Blocks>;

/// Requests a lease.
///
/// By default the lease lasts 60 seconds and renews itself, and the environment names the node and the
/// identity.
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
    /// A request with the defaults and without a size.
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

    /// Sets the size in bytes. Required.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.request.capacity = bytes;
        self
    }

    /// Sets the term, also of each renewal.
    pub fn lease_secs(mut self, secs: u32) -> Self {
        self.request.lease_secs = secs;
        self
    }

    /// Sets the grace time: contents are kept for so long after the end of the term, without access.
    pub fn grace_secs(mut self, secs: u32) -> Self {
        self.request.grace_secs = secs;
        self
    }

    /// Sets the arena or pool; any by default.
    pub fn resource(mut self, resource_id: ResourceId) -> Self {
        self.request.resource_id = Some(resource_id);
        self
    }

    /// Sets the transport. `acquire` fails if the node does not have it.
    pub fn transport(mut self, transport: Transport) -> Self {
        self.request.transport = transport;
        self
    }

    /// Makes each renewal change the key. For callers that read [`Lease::binding`] again after it.
    pub fn rotate_on_renew(mut self) -> Self {
        self.request.rotate_on_renew = true;
        self
    }

    /// Sets whether the lease renews itself until it is freed or dropped; the default is yes.
    pub fn auto_renew(mut self, yes: bool) -> Self {
        self.auto_renew = yes;
        self
    }

    /// Sets the options of the reads and writes of the SDK.
    pub fn transfers(mut self, transfers: Transfers) -> Self {
        self.transfers = transfers;
        self
    }

    /// Sets for how long requests are repeated while the node is busy for a moment: this one, its connection, and the
    /// requests of the lease ([`Lease::set_patience`]). 10 seconds by default; with zero each is sent once.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets the node, as `HOST`, `HOST:PORT` or `[IPV6]:PORT`.
    pub fn node(mut self, address: impl Into<String>) -> Self {
        self.node = NodeChoice::Address(address.into());
        self
    }

    /// Uses a connected node; leases then share the connection.
    pub fn on(mut self, node: &Node) -> Self {
        self.node = NodeChoice::Connected(node.clone());
        self
    }

    /// Sets the identity of the caller.
    pub fn identity(mut self, identity: &Identity) -> Self {
        self.identity = Some(identity.clone());
        self
    }

    /// Requests the lease, blocking.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn acquire(self) -> Result<Lease<K>, Error> {
        wait(self.acquire_async())
    }

    /// Requests the lease.
    ///
    /// # Errors
    /// See [`Error`].
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
        let node = node_of(node, identity)?.patient(patience);
        let (lease_secs, has_peers) = (request.lease_secs, !request.terms.rdma_peers().is_empty());
        let info = node.alloc(request).await?;
        let renewer = match auto_renew {
            true => Renewer::Sdk,
            false => Renewer::Caller,
        };
        let lease = Lease::new(node, info, lease_secs, renewer)?;
        if has_peers {
            lease.shared.set_callers_peers();
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
    /// Adds a queue pair of the caller; [`crate::MemLease::bind`] can do this later.
    pub fn rdma_peer(mut self, peer: RdmaPeer) -> Self {
        if let LeaseTerms::Mem(terms) = &mut self.request.terms {
            terms.rdma_peers.push(peer);
        }
        self
    }

    /// Sets the intent of a KV cache.
    pub fn kv_cache(mut self, intent: KvCacheIntent) -> Self {
        self.request.intent.kv_cache = Some(intent);
        self
    }
}

impl BlockBuilder {
    /// Makes the lease read-only.
    pub fn read_only(self) -> Self {
        self.with(|terms| terms.read_only = true)
    }

    /// Sets the NVMe-oF host, and its identifier if this is not the UUID in the name. By default the node makes
    /// both for this lease.
    pub fn host(self, name: Nqn, id: Option<HostId>) -> Self {
        self.with(|terms| (terms.host_nqn, terms.host_id) = (Some(name), id))
    }

    /// Makes the controller authenticate itself to the host, too (NVMe-oF).
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

fn node_of(choice: NodeChoice, identity: Option<Identity>) -> Result<Node, Error> {
    let address = match choice {
        NodeChoice::Connected(node) => return Ok(node),
        NodeChoice::Address(address) => address,
        NodeChoice::Default => Node::default_address(),
    };
    let identity = identity.map_or_else(Identity::from_env, Ok)?;
    Node::unconnected(&address, &identity)
}
