//! Builders of requests for leases.

use std::{marker::PhantomData, time::Duration};

use fabricbios_wire::{
    AFFINITIES_MAX, Affinity, LeaseAllocRequest, NodeId, ResourceId, TRIED_MAX, Transport, Tried,
};

use crate::{
    Error, Granted, Identity, Kind, Lease, Node, Storage, Transfers, lease::Renewer,
    patience::PATIENCE, pin::not_the_named, runtime::wait,
};

/// The default term of a lease.
const LEASE_SECS: u32 = 60;

/// Requests a lease. The builder of a kind has only the settings that leases of this kind have.
///
/// By default the lease lasts 60 seconds and renews itself, and the environment names the node and the
/// identity.
#[derive(Clone, Debug)]
#[must_use = "nothing is leased before acquire()"]
pub struct Builder<K: Kind> {
    pub(crate) request: LeaseAllocRequest,
    pub(crate) terms: K::Terms,
    node: NodeChoice,
    node_id: Option<NodeId>,
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
            terms: K::Terms::default(),
            node: NodeChoice::Default,
            node_id: None,
            identity: None,
            auto_renew: true,
            transfers: Transfers::default(),
            patience: PATIENCE,
            kind: PhantomData,
        }
    }

    /// Sets the term, also of each renewal.
    pub fn lease_secs(mut self, secs: u32) -> Self {
        self.request.lease_secs = secs;
        self
    }

    /// Sets the resource, such as an arena or a pool; any of the kind by default.
    pub fn resource(mut self, resource_id: ResourceId) -> Self {
        self.request.resource_id = Some(resource_id);
        self
    }

    /// Adds a target that the lease should be near to, or far from. A scheduler acts on it; a node keeps it with the
    /// lease.
    pub fn affinity(mut self, affinity: Affinity) -> Self {
        self.request.intent.affinities.push(affinity);
        self
    }

    /// Names a node that no scheduler is to name for this lease. Only for requests to a scheduler.
    pub fn avoid_node(mut self, node_id: NodeId) -> Self {
        self.request.tried.push(Tried::avoided(node_id));
        self
    }

    /// Sets whether the lease renews itself until it is freed or dropped; the default is yes.
    pub fn auto_renew(mut self, yes: bool) -> Self {
        self.auto_renew = yes;
        self
    }

    /// Sets for how long requests are repeated while the node is busy for a moment: this one, its connection, and the
    /// requests of the lease ([`Lease::set_patience`]). 10 seconds by default; with zero each is sent once.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets the node, as `HOST`, `HOST:PORT` or `[IPV6]:PORT`. It may be a scheduler: then the lease is of a node that it
    /// names, see [`Node::acquire_async`].
    pub fn node(mut self, address: impl Into<String>) -> Self {
        self.node = NodeChoice::Address(address.into());
        self
    }

    /// Sets the id of the node: another one that answers at its address is refused. Where no address is set,
    /// FABRICBIOS_NODE_ID names it too.
    pub fn node_id(mut self, node_id: NodeId) -> Self {
        self.node_id = Some(node_id);
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
    pub fn acquire(self) -> Result<Lease<K>, Error> {
        wait(self.acquire_async())
    }

    /// Requests the lease.
    pub async fn acquire_async(self) -> Result<Lease<K>, Error> {
        let Self {
            mut request,
            terms,
            node,
            node_id,
            identity,
            auto_renew,
            transfers,
            patience,
            kind: _,
        } = self;
        check::<K>(&request)?;
        K::check(&terms)?;
        request.terms = terms.into();
        let node = node_of(node, node_id, identity)?.patient(patience);
        let (lease_secs, has_peers) = (request.lease_secs, !request.terms.rdma_peers().is_empty());
        let Granted { node, info } = node.acquire_async(request).await?;
        let renewer = match auto_renew {
            true => Renewer::Sdk,
            false => Renewer::Caller,
        };
        let lease = Lease::new(node, info, lease_secs, renewer)?;
        if has_peers {
            lease.shared.set_callers_peers();
        }
        lease.shared.set_transfers(transfers);
        Ok(lease)
    }
}

impl<K: Storage> Builder<K> {
    /// Sets the size in bytes. Required.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.request.capacity = bytes;
        self
    }

    /// Sets the grace time: contents are kept for so long after the end of the term, without access.
    pub fn grace_secs(mut self, secs: u32) -> Self {
        self.request.grace_secs = secs;
        self
    }

    /// Sets the transport. `acquire` fails if the node does not have it.
    pub fn transport(mut self, transport: Transport) -> Self {
        self.request.transport = transport;
        self
    }

    /// Makes each renewal change the key. For callers that read [`crate::Lease::binding`] again after it.
    pub fn rotate_on_renew(mut self) -> Self {
        self.request.rotate_on_renew = true;
        self
    }

    /// Sets the options of the reads and writes of the SDK.
    pub fn transfers(mut self, transfers: Transfers) -> Self {
        self.transfers = transfers;
        self
    }
}

/// Refuses requests of any kind that no node would accept.
fn check<K: Kind>(request: &LeaseAllocRequest) -> Result<(), Error> {
    let usage = |message: String| Err(Error::Usage(message));
    if request.capacity == 0 {
        return usage(format!("no size given: call {}", K::SIZED_BY));
    }
    if request.lease_secs == 0 {
        return usage("a lease lasts at least 1 second".to_owned());
    }
    if request.intent.affinities.len() > AFFINITIES_MAX {
        return usage(format!("a lease has at most {AFFINITIES_MAX} affinities"));
    }
    if request.tried.len() > TRIED_MAX {
        return usage(format!("a request leaves out at most {TRIED_MAX} nodes"));
    }
    Ok(())
}

fn node_of(
    choice: NodeChoice,
    node_id: Option<NodeId>,
    identity: Option<Identity>,
) -> Result<Node, Error> {
    let (address, node_id) = match (choice, node_id) {
        (NodeChoice::Connected(node), named) => return is_named(node, named),
        (NodeChoice::Address(address), named) => (address, named),
        (NodeChoice::Default, None) => (Node::default_address(), Node::default_id()?),
        (NodeChoice::Default, named) => (Node::default_address(), named),
    };
    let identity = identity.map_or_else(Identity::from_env, Ok)?;
    Node::unconnected(&address, &identity, node_id)
}

/// The connected node, if it is the named one.
fn is_named(node: Node, named: Option<NodeId>) -> Result<Node, Error> {
    match (node.id(), named) {
        (Some(found), Some(named)) if found != named => Err(Error::UntrustedNode {
            node: node.address().to_owned(),
            why: not_the_named(found, node.address(), named),
        }),
        // Another scheduler may answer in its place, and before the first answer any node may.
        (id, Some(named)) if id.is_none() || node.is_scheduler() => node.anew(named),
        _ => Ok(node),
    }
}
