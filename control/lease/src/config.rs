//! The operator's limits, each with its reason.

use alloc::{collections::BTreeMap, vec::Vec};
use core::{net::SocketAddr, time::Duration};

use fabricbios_wire::ResourceType;

use crate::NetworkRights;

/// The limits of the operator and the time limits of the node.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Longest term. An hour: long enough that renewal is cheap, short enough that a forgotten
    /// lease comes back the same day.
    pub lease_secs_max: u32,
    /// Longest grace time. During a grace time nobody uses the bytes, and no other lease can have them.
    pub grace_secs_max: u32,
    /// A cut fails if it is not proved this long after a thread began it: the published contract wants an outcome of
    /// a revoke within a second. If a provider reports [`CutMoves`](crate::Report::CutMoves), the time counts from the
    /// last progress. In any case a cut fails ten times this long after its order. A resource may need longer, see
    /// [`Offer::cut_within`](crate::Offer::cut_within).
    pub cut_within: Duration,
    /// A first bind without progress for this long is cut. A later bind goes on, and the holder is answered that it
    /// takes long. A kernel gives up on an address after a few seconds, and several binds may queue for their turn.
    pub bind_within: Duration,
    /// A release fails after this long without progress. Not in total: scrubbing scales with size.
    pub release_stall: Duration,
    /// A deadline that a path has not acknowledged for this long is not in force. A path acknowledges without disk or
    /// network; the shortest term is a second.
    pub extend_within: Duration,
    /// A remediation that takes longer is reported as failed.
    pub reset_within: Duration,
    /// For how long LEASE_QUERY answers for an ended lease; at least 10 minutes.
    pub keep_ended: Duration,
    /// Maximum of live leases: with `ended_max`, the limit of the table's memory.
    pub leases_max: usize,
    /// Maximum of records of ended leases. The oldest are dropped.
    pub ended_max: usize,
    /// Maximum of live leases of one tenant.
    pub tenant_leases_max: usize,
    /// Maximum of records of ended leases of one tenant. The oldest are dropped.
    pub tenant_ended_max: usize,
    /// The most that the leases of one tenant may hold of a kind, in its unit; no limit for other kinds.
    pub tenant_capacity_max: BTreeMap<ResourceType, u64>,
    /// Maximum of queue pairs of the node in the leases of one tenant. A card has a limited number of them, and a kernel
    /// some memory for each.
    pub tenant_queue_pairs_max: usize,
    /// Maximum of requests of one tenant per second; 0 is no limit. Operators have no limit.
    pub tenant_requests_per_sec: u32,
    /// Maximum of binds and rotations of one tenant that wait or are under way. They take turns with those of other
    /// tenants, see [`Effect::Order`](crate::Effect::Order).
    pub tenant_binds_max: usize,
    /// The address of the node's rdma_cm listener, if it has one.
    pub attach_at: Option<SocketAddr>,
    /// Which VLANs and addresses tenants may have.
    pub network: NetworkRights,
    /// Kinds that were detected; a kind without an offer is refused as not offered, not as absent.
    pub detected: Vec<ResourceType>,
    /// The rules of admission for CPU leases.
    pub profile: Profile,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            lease_secs_max: 3600,
            grace_secs_max: 3600,
            cut_within: Duration::from_secs(1),
            bind_within: Duration::from_secs(30),
            release_stall: Duration::from_secs(10),
            extend_within: Duration::from_secs(1),
            reset_within: Duration::from_secs(30),
            keep_ended: Duration::from_secs(15 * 60),
            leases_max: 1 << 20,
            ended_max: 1 << 18,
            tenant_leases_max: 1 << 14,
            tenant_ended_max: 1 << 15,
            tenant_capacity_max: BTreeMap::new(),
            tenant_queue_pairs_max: 1 << 14,
            tenant_requests_per_sec: 20_000,
            tenant_binds_max: 1024,
            attach_at: None,
            network: NetworkRights::default(),
            detected: Vec::new(),
            profile: Profile::Linux,
        }
    }
}

impl Policy {
    /// Takes over what may change while leases live: terms, quotas and network rights, which count when a request comes.
    /// Time limits of steps, sizes of the table and the node's profile stay.
    pub(crate) fn take_limits(&mut self, new: Self) {
        *self = Self {
            lease_secs_max: new.lease_secs_max,
            grace_secs_max: new.grace_secs_max,
            tenant_leases_max: new.tenant_leases_max,
            tenant_capacity_max: new.tenant_capacity_max,
            tenant_queue_pairs_max: new.tenant_queue_pairs_max,
            tenant_requests_per_sec: new.tenant_requests_per_sec,
            network: new.network,
            ..core::mem::take(self)
        };
    }
}

/// The kind of node, for its rules of admission (004).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// A scheduler divides the time of the CPUs: a lease may have more cores than threads.
    #[default]
    Linux,
    /// Nothing would use a core without a thread: a CPU lease has exactly its execution width.
    BareMetal,
}

/// Any cut fails this many times its time limit after its order, with or without progress.
pub(crate) const CUT_PATIENCES: u32 = 10;

/// The longest pause before an adopted lease is bound again; the first pause is a second.
pub(crate) const BIND_AGAIN_WITHIN: Duration = Duration::from_secs(64);

/// Renewal is accepted in the last fifth of the term (000, LEASE_RENEW).
pub(crate) const RENEWAL_WINDOW_FRACTION: u32 = 5;

/// Longest overlap of two keys, milliseconds: a client that has not taken the new key after a minute will not take it.
pub(crate) const OVERLAP_MS_MAX: u32 = 60_000;

/// Maximum of cuts of leases of an earlier run that are under way, so that the last of many cuts is not late.
pub(crate) const RESTORED_CUTS_AT_ONCE: usize = 32;

/// Maximum of cuts under way that may linger. With more cuts there is no time to linger.
pub(crate) const LINGERS_AT_ONCE: usize = 32;
