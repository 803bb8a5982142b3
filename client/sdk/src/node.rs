//! The handle of a node.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use fabricbios_wire::{LeaseInfo, NodeId, Reply, Request};

use crate::{
    DEFAULT_NODE, ENV_NODE, ENV_NODE_ID, Error, Identity,
    link::{ANSWER_TIMEOUT, END_TIMEOUT, Link, Stream},
    links::Links,
    routes::Routes,
    runtime::{run, wait},
    tried::Unanswering,
};

/// A connection to the control plane of a node. Cheap to clone; clones share the connection, which is
/// opened again after the node has restarted. Another node at the same address is refused
/// ([`Error::UntrustedNode`]) before a request is sent.
#[derive(Clone, Debug)]
pub struct Node {
    /// The inner one is shared with other handles of the node, if a scheduler has named it; clones of this one share both.
    #[expect(
        clippy::redundant_allocation,
        reason = "the count of the inner one is that of the handles"
    )]
    link: Arc<Arc<Link>>,
    /// To the nodes that this scheduler names.
    pub(crate) links: Arc<Links>,
    pub(crate) routes: Arc<Routes>,
    pub(crate) unanswering: Arc<Unanswering>,
    pub(crate) patience: Duration,
    pub(crate) answer_within: Option<Duration>,
}

impl Node {
    /// Connects to a node, named as [`ENV_NODE`] says. With `discover:IFACE` each new connection looks for schedulers that
    /// announce themselves, for up to 6 s, and dials those found one after the other until one answers, each by its id.
    pub async fn connect_async(node: &str, identity: &Identity) -> Result<Self, Error> {
        Self::connect_patiently_async(node, identity, Duration::ZERO).await
    }

    /// Connects to a node; tries again for up to `patience` while it has too many connections. Requests are repeated as
    /// [`Node::patient`] says.
    pub async fn connect_patiently_async(
        node: &str,
        identity: &Identity,
        patience: Duration,
    ) -> Result<Self, Error> {
        Self::connect_to_async(node, identity, None, patience).await
    }

    /// Connects to the node with this id and refuses any other; `None`: any node of the fabric. See
    /// [`Node::connect_patiently_async`] for the patience.
    pub async fn connect_to_async(
        node: &str,
        identity: &Identity,
        node_id: Option<NodeId>,
        patience: Duration,
    ) -> Result<Self, Error> {
        let node = Self::unconnected(node, identity, node_id)?.patient(patience);
        node.connected().await?;
        Ok(node)
    }

    /// A handle of the same address, at which only this node may answer.
    pub(crate) fn anew(&self, node_id: NodeId) -> Result<Self, Error> {
        Self::unconnected(self.address(), self.link.identity(), Some(node_id))
    }

    /// A node that is connected with the first request.
    pub(crate) fn unconnected(
        node: &str,
        identity: &Identity,
        node_id: Option<NodeId>,
    ) -> Result<Self, Error> {
        Ok(Self {
            link: Arc::new(Arc::new(Link::new(node, identity, node_id)?)),
            links: Arc::default(),
            routes: Arc::default(),
            unanswering: Arc::default(),
            patience: Duration::ZERO,
            answer_within: None,
        })
    }

    /// Another node, with the identity, the patience and the limit of answers of this one, which is [`END_TIMEOUT`] if none is
    /// set: a scheduler may name a node that never answers. It is connected with the first request, or is already: handles of
    /// one node share a connection.
    pub(crate) fn other(&self, address: SocketAddr, node_id: NodeId) -> Result<Self, Error> {
        let identity = self.link.identity();
        let make = || Link::new(&address.to_string(), identity, Some(node_id)).map(Link::shared);
        Ok(Self {
            link: Arc::new(self.links.of((node_id, address), make)?),
            links: Arc::default(),
            routes: Arc::default(),
            answer_within: self.answer_within.or(Some(END_TIMEOUT)),
            ..self.clone()
        })
    }

    /// The connection stays for other requests, if this scheduler names the node again.
    pub(crate) fn keep(&self, node: &Self) {
        self.links.keep(&node.link);
    }

    /// Connects within this time, unless it is connected.
    pub(crate) async fn connected_within(&self, within: Duration) -> Result<(), Error> {
        let link = Arc::clone(&self.link);
        run(async move { link.connect_within(within).await }).await
    }

    /// Connects, or finds out whether the node at the other end of the connection is still there: a request that it may have
    /// taken could not go to another node.
    pub(crate) async fn reached(&self, within: Duration) -> Result<(), Error> {
        let link = Arc::clone(&self.link);
        run(async move { link.reach(within).await }).await
    }

    /// Connects to a node, blocking.
    pub fn connect(node: &str, identity: &Identity) -> Result<Self, Error> {
        wait(Self::connect_async(node, identity))
    }

    /// Connects to a node, blocking; see [`Node::connect_patiently_async`].
    pub fn connect_patiently(
        node: &str,
        identity: &Identity,
        patience: Duration,
    ) -> Result<Self, Error> {
        wait(Self::connect_patiently_async(node, identity, patience))
    }

    /// Connects to the node with this id, blocking; see [`Node::connect_to_async`].
    pub fn connect_to(
        node: &str,
        identity: &Identity,
        node_id: Option<NodeId>,
        patience: Duration,
    ) -> Result<Self, Error> {
        wait(Self::connect_to_async(node, identity, node_id, patience))
    }

    /// A handle of the same connection that repeats requests for up to `patience`, with pauses from 10 ms to 1 s: if the
    /// node refuses them as transient with ResourceBusy or Unavailable, or if the connection was lost. LEASE_RENEW and
    /// LEASE_ROTATE are not repeated if the node may have done them; LEASE_ALLOC is by [`Node::acquire`] and [`Node::alloc`]. A handle of
    /// [`Node::connect`] has no patience.
    pub fn patient(&self, patience: Duration) -> Self {
        Self {
            patience,
            ..self.clone()
        }
    }

    /// For how long this handle repeats requests; see [`Node::patient`].
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// A handle of the same connection that waits at most this long for each answer. After that the call fails with
    /// [`Error::Unreachable`], and the node may have done the request. Without this call a node
    /// has a day for a lease of blocks, which it may have to zero first, 11 minutes
    /// for LEASE_FREE and LEASE_REVOKE, which are answered after the cut, and 2 minutes for each other request; longer times
    /// change nothing. For a lease of a node that a scheduler has named, see [`Node::acquire_async`].
    pub fn answers_within(&self, limit: Duration) -> Self {
        Self {
            answer_within: Some(limit),
            ..self.clone()
        }
    }

    /// A handle of this connection that is as patient as `other`, and waits as long for answers.
    pub(crate) fn as_patient_as(&self, other: &Self) -> Self {
        Self {
            patience: other.patience,
            answer_within: other.answer_within,
            ..self.clone()
        }
    }

    /// How long this handle waits for an answer, but for those that wait for a cut.
    pub(crate) fn answer_limit(&self) -> Duration {
        let limit = self.answer_within.unwrap_or(ANSWER_TIMEOUT);
        limit.min(ANSWER_TIMEOUT)
    }

    /// The address in FABRICBIOS_NODE, or the node on this machine.
    pub fn default_address() -> String {
        std::env::var(ENV_NODE)
            .ok()
            .filter(|node| !node.is_empty())
            .unwrap_or_else(|| DEFAULT_NODE.to_owned())
    }

    /// The id in FABRICBIOS_NODE_ID, of the node at [`Node::default_address`]; `None`: the variable is not set.
    ///
    /// # Errors
    /// If the variable is no id. An empty one is none either: a command that should print the id may have failed.
    pub fn default_id() -> Result<Option<NodeId>, Error> {
        let Some(text) = std::env::var_os(ENV_NODE_ID) else {
            return Ok(None);
        };
        let text = text.to_string_lossy();
        text.parse().map(Some).map_err(|error| {
            Error::Usage(format!(
                "{ENV_NODE_ID}={text}: {error}; write a node's id, or unset the variable"
            ))
        })
    }

    /// The address as the caller gave it.
    pub fn address(&self) -> &str {
        self.link.node()
    }

    /// The id of the node that answered: the SHA-256 of its public key. `None`: no connection was made yet.
    pub fn id(&self) -> Option<NodeId> {
        self.link.node_id()
    }

    /// Whether a scheduler of the fabric has answered, by its certificate, and no node.
    pub fn is_scheduler(&self) -> bool {
        self.link.is_scheduler()
    }

    /// The resolved address.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.link.remote()
    }

    /// Sends a request and returns the reply. If the connection was lost before, the request is sent once more, unless it
    /// is not idempotent and may have been done.
    ///
    /// A scheduler names the node that has the lease of a request, and that node is asked, by its id; it is remembered, for
    /// 64 leases of a handle and its clones, so that further requests go on without the scheduler.
    pub async fn call_async(&self, request: Request) -> Result<Reply, Error> {
        match request.lease_id() {
            Some(id) => self.call_about(id, request).await,
            None => self.call_here(request).await,
        }
    }

    /// Sends a request to this node itself, or this scheduler.
    pub(crate) async fn call_here(&self, request: Request) -> Result<Reply, Error> {
        let (link, patience, limit) = (Arc::clone(&self.link), self.patience, self.answer_within);
        run(async move { link.call(&request, patience, limit).await }).await
    }

    /// Sends a request, blocking; see [`Node::call_async`].
    pub fn call(&self, request: Request) -> Result<Reply, Error> {
        wait(self.call_async(request))
    }

    /// Sends a request whose reply is a lease.
    pub async fn lease_async(&self, request: Request) -> Result<LeaseInfo, Error> {
        match self.call_async(request).await? {
            Reply::Lease(info) => Ok(info),
            other => Err(self.unexpected("a lease", &other)),
        }
    }

    /// Sends a request whose reply is a lease, blocking.
    pub fn lease(&self, request: Request) -> Result<LeaseInfo, Error> {
        wait(self.lease_async(request))
    }

    /// Closes the connection, so that the node does not wait for its idle timeout. The next call connects again. A
    /// connection that other handles of the node use stays: a scheduler's handle has the leases of one node share one.
    pub async fn close_async(&self) {
        for node in self.routes.take() {
            Box::pin(node.close_async()).await;
        }
        let mut links = self.links.unused();
        if self.link.is_of_one() || !self.link.is_shared() {
            links.push(Arc::clone(&*self.link));
        }
        let closing = run(async move {
            for link in links {
                link.close().await;
            }
            Ok(())
        });
        if let Err(error) = closing.await {
            tracing::debug!("goodbye to {}: {error}", self.address());
        }
    }

    /// Closes the connection to a node that has refused, unless another handle has it, or it is kept.
    pub(crate) async fn close_unless_used(&self) {
        if Arc::strong_count(&*self.link) == 1 {
            self.close_async().await;
        }
    }

    /// Closes the connection, blocking.
    pub fn close(&self) {
        wait(self.close_async());
    }

    /// Connects if there is no connection.
    pub(crate) async fn connected(&self) -> Result<(), Error> {
        let (link, patience) = (Arc::clone(&self.link), self.patience);
        run(async move { link.connect(patience).await }).await
    }

    /// Opens a stream for a session. On the background runtime only.
    pub(crate) async fn open_stream(&self) -> Result<Stream, Error> {
        self.link.open_stream().await
    }

    /// The error for a reply of another type than `wanted`.
    pub fn unexpected(&self, wanted: &str, got: &Reply) -> Error {
        let kind = format!("{got:?}");
        let kind = kind.split(['(', ' ', '{']).next().unwrap_or_default();
        self.protocol(format!("expected {wanted}, got {kind}"))
    }

    pub(crate) fn protocol(&self, why: String) -> Error {
        Error::Protocol {
            node: self.address().to_owned(),
            why,
        }
    }
}
