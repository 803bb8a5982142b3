//! A lease in the caller's hand.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use fabricbios_wire::{Binding, LeaseError, LeaseId, LeaseInfo, LeasePhase, RdmaPeer, Request};
use tokio::task::AbortHandle;

use crate::{
    Error, Node, Road, Transfers, renewal, runtime,
    runtime::wait,
    transfer::{self, Channel},
};

/// Leased memory. [`MemLease::free`] gives it back; dropped without that, it runs out by itself at
/// the end of its term.
#[derive(Debug)]
pub struct MemLease {
    pub(crate) shared: Arc<Shared>,
    renewing: Option<AbortHandle>,
    /// Dropping it is nothing to warn of: it was freed, or somebody else looks after it.
    may_be_dropped: bool,
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

/// What handle and renewal both know.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) node: Node,
    pub(crate) lease_id: LeaseId,
    pub(crate) lease_secs: u32,
    /// For what the lease has and needs the lease.
    pub(crate) me: Weak<Shared>,
    /// The connection to its bytes; locked for as long as a transfer takes.
    pub(crate) channel: Mutex<Option<Channel>>,
    /// The lease is connected to queue pairs of the caller's.
    callers: AtomicBool,
    state: Mutex<State>,
}

#[derive(Clone, Debug)]
struct State {
    info: LeaseInfo,
    /// When `info` came; its `remaining_ms` counts from then.
    told_at: Instant,
    health: Health,
    transfers: Transfers,
    road: Option<Road>,
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

impl MemLease {
    pub(crate) fn new(
        node: Node,
        info: LeaseInfo,
        lease_secs: u32,
        care: Care,
    ) -> Result<Self, Error> {
        let lease_id = info.lease_id;
        let state = State {
            info,
            told_at: Instant::now(),
            health: Health::Good,
            transfers: Transfers::default(),
            road: None,
        };
        let shared = Arc::new_cyclic(|me| Shared {
            node,
            lease_id,
            lease_secs,
            me: me.clone(),
            channel: Mutex::new(None),
            callers: AtomicBool::new(false),
            state: Mutex::new(state),
        });
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
        })
    }

    /// A lease that was granted before, to this program or another one of the same tenant. It is not
    /// renewed by itself, and dropping it changes nothing.
    pub async fn open_async(node: &Node, lease_id: LeaseId) -> Result<Self, Error> {
        let info = node.lease(Request::LeaseQuery(lease_id)).await?;
        if let Some(error) = transfer::over(&info) {
            return Err(error);
        }
        // 0: at a renewal the node takes the last term again.
        Self::new(node.clone(), info, 0, Care::Others)
    }

    /// A lease that was granted before, blocking; see [`MemLease::open_async`].
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
        self.shared.state().info.binding.clone()
    }

    /// The end of the term by the node's wall clock.
    pub fn expires_at_unix_secs(&self) -> u64 {
        self.shared.state().info.expires_at_unix_ms / 1_000
    }

    /// Access that is left, independent of wall clocks.
    pub fn remaining(&self) -> Duration {
        self.shared.remaining()
    }

    /// How renewals go.
    pub fn health(&self) -> Health {
        self.shared.state().health.clone()
    }

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
        self.shared
            .node
            .lease(Request::LeaseFree(self.lease_id()))
            .await
    }

    /// Gives the lease back, blocking.
    pub fn free(self) -> Result<LeaseInfo, Error> {
        wait(self.free_async())
    }

    async fn ask(&self, request: Request) -> Result<LeaseInfo, Error> {
        if !matches!(request, Request::LeaseQuery(_)) {
            self.shared.check_not_lost()?;
        }
        let info = self.shared.node.lease(request).await?;
        self.shared.told(info.clone());
        Ok(info)
    }

    fn stop_renewing(&mut self) {
        if let Some(renewing) = self.renewing.take() {
            renewing.abort();
        }
    }
}

impl Drop for MemLease {
    fn drop(&mut self) {
        self.stop_renewing();
        if !self.may_be_dropped {
            let (lease_id, left) = (self.lease_id(), self.remaining());
            tracing::warn!(%lease_id, ?left, "lease dropped without free(): it runs out by itself");
        }
    }
}

impl Shared {
    /// A lease that is known to be lost says so before it bothers the node.
    pub(crate) fn check_not_lost(&self) -> Result<(), Error> {
        let lost = match &self.state().health {
            Health::Lost(error) if is_over(error) => Some(error.to_string()),
            _ => None,
        };
        let lease_id = self.lease_id;
        lost.map_or(Ok(()), |why| Err(Error::Ended { lease_id, why }))
    }

    pub(crate) fn info(&self) -> LeaseInfo {
        self.state().info.clone()
    }

    pub(crate) fn transfers(&self) -> Transfers {
        self.state().transfers
    }

    pub(crate) fn set_transfers(&self, transfers: Transfers) {
        self.state().transfers = transfers;
    }

    pub(crate) fn road(&self) -> Option<Road> {
        self.state().road
    }

    pub(crate) fn set_road(&self, road: Road) {
        self.state().road = Some(road);
    }

    /// Whether the lease is connected to queue pairs of the caller's.
    pub(crate) fn is_callers(&self) -> bool {
        self.callers.load(Ordering::Relaxed)
    }

    pub(crate) fn has_callers_peers(&self) {
        self.callers.store(true, Ordering::Relaxed);
    }

    pub(crate) fn renewal(&self) -> Request {
        Request::LeaseRenew {
            lease_id: self.lease_id,
            lease_secs: self.lease_secs,
        }
    }

    /// Takes what the node said. A renewal is news about the term, so it also clears old trouble.
    pub(crate) fn told(&self, info: LeaseInfo) {
        let mut state = self.state();
        if is_older(&info, &state.info) {
            return;
        }
        let longer = info.expires_at_unix_ms > state.info.expires_at_unix_ms;
        if longer {
            state.health = Health::Good;
        }
        state.info = info;
        state.told_at = Instant::now();
    }

    /// What was told last is not valid any more; who needs coordinates asks for them.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "only RDMA binds"))]
    pub(crate) fn forget_keys(&self) {
        self.state().info.binding = Binding::default();
    }

    pub(crate) fn set_health(&self, health: Health) {
        self.state().health = health;
    }

    pub(crate) fn remaining(&self) -> Duration {
        let state = self.state();
        let left = Duration::from_millis(state.info.remaining_ms);
        left.saturating_sub(state.told_at.elapsed())
    }

    /// The last part of the term, in which the node accepts renewals: a fifth, or what it says.
    pub(crate) fn window(&self) -> Duration {
        let state = self.state();
        match state.info.renewable_at_unix_ms {
            0 => Duration::from_secs(self.lease_secs.into()) / 5,
            from => Duration::from_millis(state.info.expires_at_unix_ms.saturating_sub(from)),
        }
    }

    /// How long the contents are kept after access has ended.
    pub(crate) fn grace(&self) -> Duration {
        let state = self.state();
        let grace = state
            .info
            .grace_ends_unix_ms
            .saturating_sub(state.info.expires_at_unix_ms);
        Duration::from_millis(grace)
    }

    /// A panic elsewhere leaves the last answer, which is still the last answer.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers may overtake each other; what an older one says is not so any more.
fn is_older(told: &LeaseInfo, known: &LeaseInfo) -> bool {
    let open = matches!(told.phase, LeasePhase::Binding | LeasePhase::Active);
    let key = |info: &LeaseInfo| (info.generation, info.expires_at_unix_ms);
    open && key(told) < key(known)
}

/// Whether the node has said that nothing can be done with the lease any more.
pub(crate) fn is_over(error: &Error) -> bool {
    use LeaseError::{Expired, Fenced, NotFound, Revoked};
    let code = error.refusal().map(|refusal| refusal.error);
    matches!(code, Some(Expired | Fenced | NotFound | Revoked))
}
