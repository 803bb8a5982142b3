//! A node, as callers see it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use fabricbios_wire::{
    Effective, GpuExclusivityClass, LeaseAllocRequest, LeaseId, LeaseInfo, Reply, Request,
    Transport,
};

use crate::{
    DEFAULT_NODE, ENV_NODE, Error, Identity,
    link::Link,
    runtime::{run, wait},
};

/// A connection to a node's control plane. Cheap to clone; clones share the connection, which is
/// made again by itself when the node has been restarted.
#[derive(Clone, Debug)]
pub struct Node {
    link: Arc<Link>,
    pub(crate) patience: Duration,
}

impl Node {
    /// Connects.
    pub async fn connect(node: &str, identity: &Identity) -> Result<Self, Error> {
        Self::connect_patiently(node, identity, Duration::ZERO).await
    }

    /// Connects, and again for up to `patience` if the node has too many connections for a moment. What is asked
    /// of it is asked as [`Node::patient`] says.
    pub async fn connect_patiently(
        node: &str,
        identity: &Identity,
        patience: Duration,
    ) -> Result<Self, Error> {
        let node = Self::undialled(node, identity)?.patient(patience);
        let link = Arc::clone(&node.link);
        run(async move { link.connect(patience).await }).await?;
        Ok(node)
    }

    /// Connects when it is asked something.
    pub(crate) fn undialled(node: &str, identity: &Identity) -> Result<Self, Error> {
        Ok(Self {
            link: Arc::new(Link::new(node, identity)?),
            patience: Duration::ZERO,
        })
    }

    /// Connects, blocking.
    pub fn connect_blocking(node: &str, identity: &Identity) -> Result<Self, Error> {
        wait(Self::connect(node, identity))
    }

    /// Connects, blocking; see [`Node::connect_patiently`].
    pub fn connect_patiently_blocking(
        node: &str,
        identity: &Identity,
        patience: Duration,
    ) -> Result<Self, Error> {
        wait(Self::connect_patiently(node, identity, patience))
    }

    /// The same connection, over which is asked again for up to `patience`, with pauses from 10 ms to 1 s, what the node
    /// refuses as transient with ResourceBusy or Unavailable, and what was lost with the connection, unless the node may
    /// have carried it out and doing it twice is not the same as once: LEASE_ALLOC, LEASE_RENEW and LEASE_ROTATE.
    /// [`Node::connect`] makes one that asks once.
    pub fn patient(&self, patience: Duration) -> Self {
        Self {
            patience,
            ..self.clone()
        }
    }

    /// FABRICBIOS_NODE, or the node on this machine.
    pub fn default_address() -> String {
        std::env::var(ENV_NODE)
            .ok()
            .filter(|node| !node.is_empty())
            .unwrap_or_else(|| DEFAULT_NODE.to_owned())
    }

    /// As it was given.
    pub fn address(&self) -> &str {
        self.link.node()
    }

    /// What that resolved to.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.link.remote()
    }

    /// Asks. A request that was lost on a connection that had died before is repeated once when
    /// that is harmless.
    pub async fn call(&self, request: Request) -> Result<Reply, Error> {
        let (link, patience) = (Arc::clone(&self.link), self.patience);
        run(async move { link.call(&request, patience).await }).await
    }

    /// Asks, blocking.
    pub fn call_blocking(&self, request: Request) -> Result<Reply, Error> {
        wait(self.call(request))
    }

    /// Asks what is answered with a lease.
    pub async fn lease(&self, request: Request) -> Result<LeaseInfo, Error> {
        match self.call(request).await? {
            Reply::Lease(info) => Ok(info),
            other => Err(self.unexpected("a lease", &other)),
        }
    }

    /// Asks for a lease's state or a change of it, blocking; see [`Node::lease`].
    pub fn lease_blocking(&self, request: Request) -> Result<LeaseInfo, Error> {
        wait(self.lease(request))
    }

    /// Asks for a lease and fails closed: one that enforces less than was asked for is given back.
    pub async fn alloc(&self, request: LeaseAllocRequest) -> Result<LeaseInfo, Error> {
        let info = self.lease(Request::LeaseAlloc(request.clone())).await?;
        let mut missing = unmet(&request, &info.effective);
        missing.extend(other_host(&request, &info));
        if info.capacity < request.capacity {
            missing.push(format!("capacity {}", request.capacity));
        }
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

    /// Asks for a lease, blocking; fails closed as [`Node::alloc`] does.
    pub fn alloc_blocking(&self, request: LeaseAllocRequest) -> Result<LeaseInfo, Error> {
        wait(self.alloc(request))
    }

    /// Says goodbye, so that the node need not wait for silence. The next call connects again.
    pub async fn close(&self) {
        let link = Arc::clone(&self.link);
        let closing = run(async move {
            link.close().await;
            Ok(())
        });
        if let Err(error) = closing.await {
            tracing::debug!("goodbye to {}: {error}", self.address());
        }
    }

    /// Says goodbye, blocking.
    pub fn close_blocking(&self) {
        wait(self.close());
    }

    /// An answer of the wrong kind.
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
        let freed = self.call(Request::LeaseFree(lease_id)).await;
        if let Err(error) = &freed {
            tracing::warn!(%lease_id, "lease that failed closed was not given back: {error}");
        }
        freed.is_ok()
    }
}

/// What a request asked for that its lease does not enforce. A node that is older than a constraint
/// skips it; the missing echo is how that shows.
pub fn unmet(request: &LeaseAllocRequest, effective: &Effective) -> Vec<String> {
    let mut missing = Vec::new();
    let mut need = |met: bool, what: String| {
        if !met {
            missing.push(what);
        }
    };
    let terms = &request.terms;
    if let Some(class) = terms.cpu().and_then(|cpu| cpu.isolation) {
        need(
            effective.cpu_isolation >= Some(class),
            format!("CPU isolation {class}"),
        );
    }
    if let Some(class) = terms.gpu().and_then(|gpu| gpu.exclusivity) {
        let met = effective
            .gpu_exclusivity
            .is_some_and(|got| is_as_tight(got, class));
        need(met, format!("GPU exclusivity {class}"));
    }
    if request.transport != Transport::Auto {
        let met = effective.transport == Some(request.transport);
        need(met, format!("transport {}", request.transport));
    }
    if request.rotate_on_renew {
        need(effective.rotate_on_renew, "rotate-on-renew".to_owned());
    }
    let block = terms.block();
    if block.is_some_and(|block| block.read_only) {
        need(effective.read_only, "read-only".to_owned());
    }
    if block.is_some_and(|block| block.mutual_auth) {
        need(effective.mutual_auth, "mutual authentication".to_owned());
    }
    missing
}

/// The host that was named, where the lease is for another one: whom a node lets in has no echo of its own.
fn other_host(request: &LeaseAllocRequest, info: &LeaseInfo) -> Option<String> {
    let wanted = request.terms.block()?.host_nqn.as_ref()?;
    let granted = &info.binding.nvmeof()?.host_nqn;
    (granted != wanted).then(|| format!("host {wanted}"))
}

/// A partition is another thing than a whole device, not more of it.
fn is_as_tight(got: GpuExclusivityClass, wanted: GpuExclusivityClass) -> bool {
    got == wanted || (got > wanted && got != GpuExclusivityClass::PartitionExclusive)
}
