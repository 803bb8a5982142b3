//! A lease in the caller's hand.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use fabricbios_wire::{Binding, LeaseId, LeaseInfo, RdmaPeer, Request, ResourceType};
use tokio::task::AbortHandle;

use crate::{
    Blocks, Error, Kind, Memory, Node, renewal, runtime, runtime::wait, shared::Shared, transfer,
};

/// A lease of memory.
pub type MemLease = Lease<Memory>;

/// A lease of block storage.
pub type BlockLease = Lease<Blocks>;

/// Something leased. [`Lease::free`] gives it back; dropped without that, it runs out by itself at the
/// end of its term.
#[derive(Debug)]
pub struct Lease<K: Kind> {
    pub(crate) shared: Arc<Shared>,
    renewing: Option<AbortHandle>,
    /// Dropping it is nothing to warn of: it was freed, or somebody else looks after it.
    may_be_dropped: bool,
    kind: PhantomData<fn() -> K>,
}

/// How a lease's renewals go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Renewed so far, or not due.
    Good,
    /// The last attempt failed; there will be another one before the end.
    Retrying(Error),
    /// It is over, or will be at the end of its term.
    Lost(Error),
}

/// Who looks after a lease that is handed out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Care {
    /// The SDK renews it.
    Renewed,
    /// Its caller.
    Callers,
    /// Somebody else: it was only looked up.
    Others,
}

impl<K: Kind> Lease<K> {
    pub(crate) fn new(
        node: Node,
        info: LeaseInfo,
        lease_secs: u32,
        care: Care,
    ) -> Result<Self, Error> {
        let shared = Shared::new(node, info, lease_secs);
        let renewing = if matches!(care, Care::Renewed) {
            let renewing = runtime::background()?.spawn(renewal::keep(Arc::clone(&shared)));
            Some(renewing.abort_handle())
        } else {
            None
        };
        Ok(Self {
            shared,
            renewing,
            may_be_dropped: matches!(care, Care::Others),
            kind: PhantomData,
        })
    }

    /// A lease that was granted before, to this program or another one of the same tenant. It is not
    /// renewed by itself, and dropping it changes nothing. It is as [patient](Node::patient) as `node`.
    pub async fn open_async(node: &Node, lease_id: LeaseId) -> Result<Self, Error> {
        let info = node.lease(Request::LeaseQuery(lease_id)).await?;
        check_kind::<K>(&info)?;
        if let Some(error) = transfer::over(&info) {
            return Err(error);
        }
        // 0: at a renewal the node takes the last term again.
        Self::new(node.clone(), info, 0, Care::Others)
    }

    /// A lease that was granted before, blocking; see [`Lease::open_async`].
    pub fn open(node: &Node, lease_id: LeaseId) -> Result<Self, Error> {
        wait(Self::open_async(node, lease_id))
    }

    /// Which lease.
    pub fn lease_id(&self) -> LeaseId {
        self.shared.lease_id
    }

    /// All that the node said last.
    pub fn info(&self) -> LeaseInfo {
        self.shared.info()
    }

    /// The coordinates of the data plane, as of the last answer.
    pub fn binding(&self) -> Binding {
        self.shared.info().binding
    }

    /// The end of the term by the node's wall clock.
    pub fn expires_at_unix_secs(&self) -> u64 {
        self.shared.info().expires_at_unix_ms / 1_000
    }

    /// Access that is left, independent of wall clocks.
    pub fn remaining(&self) -> Duration {
        self.shared.remaining()
    }

    /// How renewals go.
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// For how long requests of this lease are asked again from now on, see [`Node::patient`]; renewals by itself have
    /// a schedule of their own.
    pub fn set_patience(&self, patience: Duration) {
        self.shared.set_patience(patience);
    }

    /// Another term from now; the node allows it in the last fifth of the current one.
    pub async fn renew_async(&self) -> Result<LeaseInfo, Error> {
        self.ask(self.shared.renewal()).await
    }

    /// Another term from now, blocking.
    pub fn renew(&self) -> Result<LeaseInfo, Error> {
        wait(self.renew_async())
    }

    /// A new key; the old one goes on working for `overlap_ms` beside it.
    pub async fn rotate_async(&self, overlap_ms: u32) -> Result<LeaseInfo, Error> {
        self.ask(Request::LeaseRotate {
            lease_id: self.lease_id(),
            overlap_ms,
        })
        .await
    }

    /// A new key at once, blocking: the old one is dead when this returns.
    pub fn rotate(&self) -> Result<LeaseInfo, Error> {
        wait(self.rotate_async(0))
    }

    /// How the lease is.
    pub async fn query_async(&self) -> Result<LeaseInfo, Error> {
        self.ask(Request::LeaseQuery(self.lease_id())).await
    }

    /// How the lease is, blocking.
    pub fn query(&self) -> Result<LeaseInfo, Error> {
        wait(self.query_async())
    }

    /// Gives the lease back. When this returns `Ok`, access has ended. On an error the lease runs
    /// out by itself: it is not renewed any more.
    pub async fn free_async(mut self) -> Result<LeaseInfo, Error> {
        self.stop_renewing();
        self.may_be_dropped = true;
        let node = self.shared.patient_node();
        node.lease(Request::LeaseFree(self.lease_id())).await
    }

    /// Gives the lease back, blocking.
    pub fn free(self) -> Result<LeaseInfo, Error> {
        wait(self.free_async())
    }

    async fn ask(&self, request: Request) -> Result<LeaseInfo, Error> {
        if !matches!(request, Request::LeaseQuery(_)) {
            self.shared.check_not_lost()?;
        }
        let info = self.shared.patient_node().lease(request).await?;
        self.shared.told(info.clone());
        Ok(info)
    }

    fn stop_renewing(&mut self) {
        if let Some(renewing) = self.renewing.take() {
            renewing.abort();
        }
    }
}

impl MemLease {
    /// Connects the lease to queue pairs of the caller's, or again after an access fault. From then on
    /// [`MemLease::read`] and [`MemLease::write`] leave RDMA to the caller.
    pub async fn bind_async(&self, peers: &[RdmaPeer]) -> Result<LeaseInfo, Error> {
        self.shared.has_callers_peers();
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
}

fn check_kind<K: Kind>(info: &LeaseInfo) -> Result<(), Error> {
    let (is, wanted): (ResourceType, ResourceType) = (info.resource_type, K::TYPE);
    let lease_id = info.lease_id;
    match is == wanted {
        true => Ok(()),
        false => Err(Error::Usage(format!(
            "lease {lease_id} is one of {is}, not of {wanted}"
        ))),
    }
}

impl<K: Kind> Drop for Lease<K> {
    fn drop(&mut self) {
        self.stop_renewing();
        if !self.may_be_dropped {
            let (lease_id, left) = (self.lease_id(), self.remaining());
            tracing::warn!(%lease_id, ?left, "lease dropped without free(): it runs out by itself");
        }
    }
}
