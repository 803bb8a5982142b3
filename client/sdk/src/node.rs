//! The handle of a node.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use fabricbios_wire::{
    LeaseAllocRequest, LeaseId, LeaseInfo, NodeId, RefusalClass, Reply, Request, RequestToken,
};

use crate::{
    DEFAULT_NODE, ENV_NODE, ENV_NODE_ID, Error, Identity,
    link::{Link, Stream},
    patience::patiently,
    runtime::{run, wait},
    unmet::unmet,
};

/// A connection to the control plane of a node. Cheap to clone; clones share the connection, which is
/// opened again after the node has restarted. Another node at the same address is refused
/// ([`Error::UntrustedNode`]) before a request is sent.
#[derive(Clone, Debug)]
pub struct Node {
    link: Arc<Link>,
    pub(crate) patience: Duration,
}

impl Node {
    /// Connects to a node.
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
        let link = Arc::clone(&node.link);
        run(async move { link.connect(patience).await }).await?;
        Ok(node)
    }

    /// A node that is connected with the first request.
    pub(crate) fn unconnected(
        node: &str,
        identity: &Identity,
        node_id: Option<NodeId>,
    ) -> Result<Self, Error> {
        Ok(Self {
            link: Arc::new(Link::new(node, identity, node_id)?),
            patience: Duration::ZERO,
        })
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
    /// LEASE_ROTATE are not repeated if the node may have done them; LEASE_ALLOC is by [`Node::alloc`]. A handle of
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

    /// The resolved address.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.link.remote()
    }

    /// Sends a request and returns the reply. If the connection was lost before, the request is sent once more, unless it
    /// is not idempotent and may have been done.
    pub async fn call_async(&self, request: Request) -> Result<Reply, Error> {
        let (link, patience) = (Arc::clone(&self.link), self.patience);
        run(async move { link.call(&request, patience).await }).await
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

    /// Requests a lease and fails closed: a lease that enforces less than requested is freed. A request without a token
    /// gets a random one. If the reply was lost, the request is repeated and gets the same lease: once, and for up to the
    /// [patience](Node::patient) of this handle. It is not repeated at a node that is not seen to know tokens.
    pub async fn alloc_async(&self, mut request: LeaseAllocRequest) -> Result<LeaseInfo, Error> {
        if request.request_token.is_none() {
            request.request_token = Some(random_token()?);
        }
        let info = self.granted_async(&request).await?;
        let missing = unmet(&request, &info);
        if missing.is_empty() {
            return Ok(info);
        }
        let freed = self.give_back(info.lease_id).await;
        Err(Error::FailedClosed {
            lease_id: info.lease_id,
            missing,
            freed,
        })
    }

    async fn granted_async(&self, request: &LeaseAllocRequest) -> Result<LeaseInfo, Error> {
        let began = Instant::now();
        let rest = || self.patient(self.patience.saturating_sub(began.elapsed()));
        let ask = async || {
            let request = Request::LeaseAlloc(request.clone());
            rest().lease_async(request).await
        };
        let lost = match ask().await {
            Err(error) if error.may_have_happened() => error,
            outcome => return outcome,
        };
        if !rest().knows_request_tokens().await {
            return Err(lost);
        }
        match patiently(rest().patience, Error::may_have_happened, ask).await {
            Ok(info) => Ok(info),
            Err(Error::Refused(refusal)) if refusal.class != RefusalClass::Transient => {
                Err(Error::Refused(refusal))
            }
            // Nothing is known of the first request: it may have been granted.
            Err(_without_a_decision) => Err(lost),
        }
    }

    /// Whether the node knows request tokens: then the caller's leases show them, and LEASE_LIST is asked for one that
    /// does. A node of an earlier version skips the token of a request, so a repeat could get a second lease there. The
    /// reply that was lost would have told, and the version in GET_IDENTITY is for display. If no lease shows a token,
    /// the caller decides.
    async fn knows_request_tokens(&self) -> bool {
        let mut after = Some(LeaseId(0));
        while let Some(last) = after {
            let list = Request::LeaseList {
                after: last,
                ended: true,
            };
            let Ok(Reply::Leases(page)) = self.call_async(list).await else {
                return false;
            };
            if page.leases.iter().any(|it| it.request_token.is_some()) {
                return true;
            }
            after = page.next.filter(|next| *next > last);
        }
        false
    }

    /// Requests a lease, blocking; see [`Node::alloc_async`].
    pub fn alloc(&self, request: LeaseAllocRequest) -> Result<LeaseInfo, Error> {
        wait(self.alloc_async(request))
    }

    /// Closes the connection, so that the node does not wait for its idle timeout. The next call connects again.
    pub async fn close_async(&self) {
        let link = Arc::clone(&self.link);
        let closing = run(async move {
            link.close().await;
            Ok(())
        });
        if let Err(error) = closing.await {
            tracing::debug!("goodbye to {}: {error}", self.address());
        }
    }

    /// Closes the connection, blocking.
    pub fn close(&self) {
        wait(self.close_async());
    }

    /// Opens a stream for a session. On the background runtime only.
    pub(crate) async fn open_stream(&self) -> Result<Stream, Error> {
        self.link.open_stream().await
    }

    /// The error for a reply of another type than `wanted`.
    pub fn unexpected(&self, wanted: &str, got: &Reply) -> Error {
        let kind = format!("{got:?}");
        let kind = kind.split(['(', ' ', '{']).next().unwrap_or_default();
        let why = format!("expected {wanted}, got {kind}");
        Error::Protocol {
            node: self.address().to_owned(),
            why,
        }
    }

    async fn give_back(&self, lease_id: LeaseId) -> bool {
        let freed = self.call_async(Request::LeaseFree(lease_id)).await;
        if let Err(error) = &freed {
            tracing::warn!(%lease_id, "lease that failed closed was not given back: {error}");
        }
        freed.is_ok()
    }
}

fn random_token() -> Result<RequestToken, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::Local {
        what: "make a random request token",
        why: error.to_string(),
    })?;
    // Zero is no token.
    Ok(RequestToken(u128::from_ne_bytes(bytes).max(1)))
}
