//! The handle of a lease.

use std::{
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fabricbios_wire::{Binding, LeaseId, LeaseInfo, NodeId, Request, ResourceType};
use tokio::task::AbortHandle;

use crate::{
    EndWatch, Error, Kind, Node, Storage, renewal, runtime, runtime::wait, shared::SharedLease,
    transfer,
};

/// The handle of a lease. [`Lease::free`] ends the lease; a lease whose handle is dropped expires at the end of its term.
#[derive(Debug)]
pub struct Lease<K: Kind> {
    pub(crate) shared: Arc<SharedLease>,
    renewing: Option<AbortHandle>,
    /// Whether dropping the handle needs no warning: the lease was freed, or another program renews it.
    may_be_dropped: AtomicBool,
    kind: PhantomData<fn() -> K>,
}

/// The state of the renewals of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// All renewals so far worked, and the term goes on.
    Good,
    /// The last attempt failed; another one follows before the end of the term.
    Retrying(Error),
    /// The lease has ended, or will end with its term. [`Error::end_cause`] has the reason, if the node has reported
    /// it.
    Lost(Error),
}

/// Who renews a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Renewer {
    /// The SDK renews it.
    Sdk,
    /// The caller renews it.
    Caller,
    /// Another program renews it; this one only looked the lease up.
    OtherProgram,
}

impl<K: Kind> Lease<K> {
    pub(crate) fn new(
        node: Node,
        info: LeaseInfo,
        lease_secs: u32,
        renewer: Renewer,
    ) -> Result<Self, Error> {
        let shared = SharedLease::new(node, info, lease_secs);
        let renewing = if matches!(renewer, Renewer::Sdk) {
            let renewing = runtime::background()?.spawn(renewal::keep(Arc::clone(&shared)));
            Some(renewing.abort_handle())
        } else {
            None
        };
        Ok(Self {
            shared,
            renewing,
            may_be_dropped: matches!(renewer, Renewer::OtherProgram).into(),
            kind: PhantomData,
        })
    }

    /// Opens a lease that was granted before, to this program or another one of the same tenant. It is not renewed
    /// automatically, and dropping the handle changes nothing. It is as [patient](Node::patient) as `node`.
    pub async fn open_async(node: &Node, lease_id: LeaseId) -> Result<Self, Error> {
        let info = node.lease_async(Request::LeaseQuery(lease_id)).await?;
        check_kind::<K>(&info)?;
        if let Some(error) = transfer::end_error(&info) {
            return Err(error);
        }
        // 0: at a renewal the node repeats the length of the last term.
        Self::new(node.of_lease(lease_id), info, 0, Renewer::OtherProgram)
    }

    /// Opens a lease that was granted before, blocking; see [`Lease::open_async`].
    pub fn open(node: &Node, lease_id: LeaseId) -> Result<Self, Error> {
        wait(Self::open_async(node, lease_id))
    }

    /// The id of the lease.
    pub fn lease_id(&self) -> LeaseId {
        self.shared.lease_id
    }

    /// The id of the node that granted the lease; every later answer was its own.
    pub fn node_id(&self) -> Option<NodeId> {
        self.shared.node.id()
    }

    /// The node that granted the lease: another one than the asked one, if that is a scheduler.
    pub fn node(&self) -> Node {
        self.shared.patient_node()
    }

    /// The last answer of the node.
    pub fn info(&self) -> LeaseInfo {
        self.shared.info()
    }

    /// The coordinates of the data plane in the last answer.
    pub fn binding(&self) -> Binding {
        self.shared.info().binding
    }

    /// The end of the term by the wall clock of the node.
    pub fn expires_at_unix_secs(&self) -> u64 {
        self.shared.info().expires_at_unix_ms / 1_000
    }

    /// Time until access ends, independent of wall clocks.
    pub fn remaining(&self) -> Duration {
        self.shared.remaining()
    }

    /// The state of the renewals, without a request: for a lease that another program renews, by the last
    /// [`Lease::query`].
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// Sets for how long further requests of this lease are repeated, see [`Node::patient`], and for how long a transfer over
    /// UDP waits for a daemon that has ended; automatic renewals have another schedule.
    pub fn set_patience(&self, patience: Duration) {
        self.shared.set_patience(patience);
    }

    /// Renews the lease for another term from now. The node allows this in the last fifth of the current term.
    pub async fn renew_async(&self) -> Result<LeaseInfo, Error> {
        self.ask(self.shared.renewal()).await
    }

    /// Renews the lease, blocking.
    pub fn renew(&self) -> Result<LeaseInfo, Error> {
        wait(self.renew_async())
    }

    /// Asks the node for the state of the lease.
    pub async fn query_async(&self) -> Result<LeaseInfo, Error> {
        self.ask(Request::LeaseQuery(self.lease_id())).await
    }

    /// Asks the node for the state of the lease, blocking.
    pub fn query(&self) -> Result<LeaseInfo, Error> {
        wait(self.query_async())
    }

    /// Ends the lease. After `Ok` access has ended. After an error the lease is not renewed any more and expires.
    pub async fn free_async(self) -> Result<LeaseInfo, Error> {
        self.free_shared_async().await
    }

    /// Ends a lease whose handle several threads share; see [`Lease::free_async`]. Their further calls fail with
    /// [`Error::Ended`]; a transfer that is going on fails too, or has ended before.
    pub async fn free_shared_async(&self) -> Result<LeaseInfo, Error> {
        self.stop_renewing();
        self.may_be_dropped.store(true, Ordering::Relaxed);
        let node = self.shared.patient_node();
        let freed = node
            .lease_async(Request::LeaseFree(self.lease_id()))
            .await?;
        self.shared.update(freed.clone());
        self.shared.set_freed();
        Ok(freed)
    }

    /// Ends the lease, blocking; see [`Lease::free_async`].
    pub fn free(self) -> Result<LeaseInfo, Error> {
        wait(self.free_async())
    }

    /// Ends a lease whose handle several threads share, blocking; see [`Lease::free_shared_async`].
    pub fn free_shared(&self) -> Result<LeaseInfo, Error> {
        wait(self.free_shared_async())
    }

    /// Waits for the end of the lease, also after the handle has been freed.
    pub fn end_watch(&self) -> EndWatch {
        EndWatch::new(Arc::clone(&self.shared))
    }

    pub(crate) async fn ask(&self, request: Request) -> Result<LeaseInfo, Error> {
        if !matches!(request, Request::LeaseQuery(_)) {
            self.shared.check_not_lost()?;
        }
        let info = self.shared.patient_node().lease_async(request).await?;
        self.shared.update(info.clone());
        Ok(info)
    }

    fn stop_renewing(&self) {
        if let Some(renewing) = &self.renewing {
            renewing.abort();
        }
    }
}

impl<K: Storage> Lease<K> {
    /// Makes a new key; the old one goes on working for `overlap_ms`.
    pub async fn rotate_async(&self, overlap_ms: u32) -> Result<LeaseInfo, Error> {
        self.ask(Request::LeaseRotate {
            lease_id: self.lease_id(),
            overlap_ms,
        })
        .await
    }

    /// Makes a new key, blocking: the old one does not work any more when this returns.
    pub fn rotate(&self) -> Result<LeaseInfo, Error> {
        wait(self.rotate_async(0))
    }
}

fn check_kind<K: Kind>(info: &LeaseInfo) -> Result<(), Error> {
    let (is, wanted): (ResourceType, ResourceType) = (info.resource_type(), K::TYPE);
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
        if !self.may_be_dropped.load(Ordering::Relaxed) {
            let (lease_id, left) = (self.lease_id(), self.remaining());
            tracing::warn!(%lease_id, ?left, "lease dropped without free(): the lease ends with its term");
        }
    }
}
