//! The state that the handle of a lease, its renewals and its transfers share.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use fabricbios_wire::{Binding, EndCause, LeaseId, LeaseInfo, LeasePhase, Request};
use tokio::sync::Notify;

use crate::{
    DataTransport, Error, Health, Node, Transfers,
    transfer::{BlockChannel, Channel, end_error},
};

/// The shared state of one lease.
#[derive(Debug)]
pub(crate) struct SharedLease {
    /// The node; this handle sends each request once.
    pub(crate) node: Node,
    pub(crate) lease_id: LeaseId,
    pub(crate) lease_secs: u32,
    /// A weak reference to this state, for parts of the lease that refer to it.
    pub(crate) me: Weak<SharedLease>,
    /// The connection to the memory of the lease; locked during a transfer.
    pub(crate) channel: Mutex<Option<Channel>>,
    /// The connection to the blocks of the lease.
    pub(crate) blocks: Mutex<Option<BlockChannel>>,
    /// Whether the lease is connected to queue pairs of the caller.
    callers_peers: AtomicBool,
    state: Mutex<LeaseState>,
    /// Wakes those who wait for the end of the lease after a change of its state.
    pub(crate) changed: Notify,
}

#[derive(Clone, Debug)]
struct LeaseState {
    info: LeaseInfo,
    /// Time at which `info` came; its `remaining_ms` counts from this time.
    updated_at: Instant,
    health: Health,
    transfers: Transfers,
    patience: Duration,
    transport: Option<DataTransport>,
    /// The lease was given back.
    is_freed: bool,
}

impl SharedLease {
    pub(crate) fn new(node: Node, info: LeaseInfo, lease_secs: u32) -> Arc<Self> {
        let lease_id = info.lease_id;
        let state = LeaseState {
            info,
            updated_at: Instant::now(),
            health: Health::Good,
            transfers: Transfers::default(),
            patience: node.patience,
            transport: None,
            is_freed: false,
        };
        Arc::new_cyclic(|me| Self {
            node: node.patient(Duration::ZERO),
            lease_id,
            lease_secs,
            me: me.clone(),
            channel: Mutex::new(None),
            blocks: Mutex::new(None),
            callers_peers: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Notify::new(),
        })
    }

    /// Fails if the lease is known to be over for good, without a request.
    pub(crate) fn check_not_lost(&self) -> Result<(), Error> {
        self.state().end().map_or(Ok(()), Err)
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

    pub(crate) fn set_patience(&self, patience: Duration) {
        self.state().patience = patience;
    }

    pub(crate) fn patience(&self) -> Duration {
        self.state().patience
    }

    /// The node, for requests of a waiting caller; it repeats them, at most until the end of the lease.
    pub(crate) fn patient_node(&self) -> Node {
        let left = self.left_with_grace();
        self.node.patient(self.state().patience.min(left))
    }

    pub(crate) fn transport(&self) -> Option<DataTransport> {
        self.state().transport
    }

    pub(crate) fn set_transport(&self, transport: DataTransport) {
        self.state().transport = Some(transport);
    }

    /// Whether the lease is connected to queue pairs of the caller.
    pub(crate) fn has_callers_peers(&self) -> bool {
        self.callers_peers.load(Ordering::Relaxed)
    }

    pub(crate) fn set_callers_peers(&self) {
        self.callers_peers.store(true, Ordering::Relaxed);
    }

    pub(crate) fn renewal(&self) -> Request {
        Request::LeaseRenew {
            lease_id: self.lease_id,
            lease_secs: self.lease_secs,
        }
    }

    /// Takes an answer of the node. A longer term sets the health to good.
    pub(crate) fn update(&self, info: LeaseInfo) {
        let mut state = self.state();
        if is_older(&info, &state.info) {
            return;
        }
        let longer = info.expires_at_unix_ms > state.info.expires_at_unix_ms;
        if longer {
            state.health = Health::Good;
        }
        state.info = info;
        state.updated_at = Instant::now();
        drop(state);
        self.changed.notify_waiters();
    }

    /// Forgets the coordinates of the last answer, which may not be valid any more.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "only RDMA binds"))]
    pub(crate) fn forget_keys(&self) {
        let info = &mut self.state().info;
        info.binding = Binding::plain(info.resource_type());
    }

    /// The state of the renewals. By the clock of this machine a lease is lost once its term is over by the last answer of
    /// the node, unless renewals are still tried in its grace time.
    pub(crate) fn health(&self) -> Health {
        let state = self.state();
        match (&state.health, state.left_with_grace().is_zero()) {
            (Health::Lost(_), _) => return state.health.clone(),
            (Health::Retrying(_), false) if state.end().is_none() => return state.health.clone(),
            _ => {}
        }
        let lost = state.end().or_else(|| end_error(&state.info));
        let lost = lost.or_else(|| state.ran_out());
        lost.map_or_else(|| state.health.clone(), Health::Lost)
    }

    pub(crate) fn set_health(&self, health: Health) {
        self.state().health = health;
        self.changed.notify_waiters();
    }

    /// Marks the lease as given back: parts of it that still exist, such as sessions, fail from now on.
    pub(crate) fn set_freed(&self) {
        self.state().is_freed = true;
        self.changed.notify_waiters();
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.state().remaining()
    }

    /// The last part of the term, in which the node accepts renewals: as the node says, or else a fifth.
    pub(crate) fn window(&self) -> Duration {
        let state = self.state();
        match state.info.renewable_at_unix_ms {
            0 => Duration::from_secs(self.lease_secs.into()) / 5,
            from => Duration::from_millis(state.info.expires_at_unix_ms.saturating_sub(from)),
        }
    }

    /// Time until the contents are deleted, by the last answer.
    pub(crate) fn left_with_grace(&self) -> Duration {
        self.state().left_with_grace()
    }

    /// A panic under the lock leaves a complete answer.
    fn state(&self) -> MutexGuard<'_, LeaseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeaseState {
    fn remaining(&self) -> Duration {
        let left = Duration::from_millis(self.info.remaining_ms);
        left.saturating_sub(self.updated_at.elapsed())
    }

    fn left_with_grace(&self) -> Duration {
        let info = &self.info;
        let grace = info
            .grace_ends_unix_ms
            .saturating_sub(info.expires_at_unix_ms);
        let left = Duration::from_millis(info.remaining_ms.saturating_add(grace));
        left.saturating_sub(self.updated_at.elapsed())
    }

    /// The error if the lease is known to be over for good.
    fn end(&self) -> Option<Error> {
        let lease_id = self.info.lease_id;
        let ended = |cause, why| Error::Ended {
            lease_id,
            cause,
            why,
        };
        match &self.health {
            _ if self.is_freed => {
                Some(ended(Some(EndCause::Freed), "it was given back".to_owned()))
            }
            Health::Lost(error) if error.is_over() => {
                Some(ended(error.end_cause(), error.to_string()))
            }
            _ => end_error(&self.info).filter(Error::is_over),
        }
    }

    /// The error if the term is over by the clock of this machine.
    fn ran_out(&self) -> Option<Error> {
        let lease_id = self.info.lease_id;
        match (self.remaining().is_zero(), self.left_with_grace().is_zero()) {
            (false, _) => None,
            (true, false) => Some(Error::InGrace { lease_id }),
            (true, true) => Some(Error::Ended {
                lease_id,
                cause: Some(EndCause::Expired),
                why: "the term has ended, by the node's last answer".to_owned(),
            }),
        }
    }
}

/// Answers may overtake each other; an older one is ignored.
fn is_older(info: &LeaseInfo, known: &LeaseInfo) -> bool {
    let open = matches!(info.phase, LeasePhase::Binding | LeasePhase::Active);
    let key = |info: &LeaseInfo| (info.generation, info.expires_at_unix_ms);
    open && key(info) < key(known)
}
