//! The operator's limits, each with its reason.

use alloc::{collections::BTreeMap, vec::Vec};
use core::time::Duration;

use fabricbios_wire::ResourceType;

/// What the operator allows and how patient the node is.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Longest term. An hour: long enough that renewal is cheap, short enough that a forgotten
    /// lease comes back the same day.
    pub lease_secs_max: u32,
    /// Longest grace time. It keeps bytes from everybody else without being used.
    pub grace_secs_max: u32,
    /// A cut that is not proved so long after a thread began with it has failed: the published contract wants an
    /// outcome of a revoke within a second. Where a backend reports [`CutMoves`](crate::Report::CutMoves), it is
    /// without progress that it has failed by then. In any case, also where no thread has begun with it, it has
    /// failed ten times as long after it was ordered.
    pub cut_within: Duration,
    /// A first binding that has made no progress for so long is cut; of a later one the holder is told that
    /// it is still being made. A kernel gives up on an address after a few seconds,
    /// and several binds may queue for their turn.
    pub bind_within: Duration,
    /// A release without progress for so long has failed. On progress, not in total: scrubbing
    /// scales with size.
    pub release_stall: Duration,
    /// A deadline that a path has not acknowledged for so long is not in force. A path looks at no disk and asks nobody
    /// before it answers; the shortest term is a second.
    pub extend_within: Duration,
    /// A remediation that takes longer is reported as failed.
    pub reset_within: Duration,
    /// For how long LEASE_QUERY answers for an ended lease; at least 10 minutes.
    pub keep_ended: Duration,
    /// Leases that are not over: with `ended_max`, the bound on the table's memory.
    pub leases_max: usize,
    /// Records of ended leases. The oldest give way.
    pub ended_max: usize,
    /// Leases of one tenant that are not over.
    pub tenant_leases_max: usize,
    /// Records of ended leases of one tenant. The oldest give way.
    pub tenant_ended_max: usize,
    /// What the leases of one tenant may hold of a kind, in its unit; no bound for kinds that are not named.
    pub tenant_capacity_max: BTreeMap<ResourceType, u64>,
    /// Requests of one tenant in a second; 0 is no bound. Operators have none.
    pub tenant_requests_per_sec: u32,
    /// Bindings and rotations of one tenant that may be on their way at once. They take turns with those of other
    /// tenants, see [`Effect::Order`](crate::Effect::Order).
    pub tenant_binds_max: usize,
    /// Kinds that were detected; those without an offer are refused as not offered, not as absent.
    pub detected: Vec<ResourceType>,
    /// Kinds that this daemon has no backend for: no operator could offer them.
    pub not_built: Vec<ResourceType>,
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
            tenant_requests_per_sec: 20_000,
            tenant_binds_max: 1024,
            detected: Vec::new(),
            not_built: Vec::new(),
        }
    }
}

/// So many times [`Policy::cut_within`] after its order is the end of any cut, however much moves.
pub(crate) const CUT_PATIENCES: u32 = 10;

/// After so long at most an adopted lease without a binding is bound again; it begins with a second.
pub(crate) const BIND_AGAIN_WITHIN: Duration = Duration::from_secs(64);

/// Renewal is accepted in the last fifth of the term (000, LEASE_RENEW).
pub(crate) const RENEWAL_WINDOW_FRACTION: u32 = 5;

/// Longest overlap of two keys: a client that needs a minute to follow is not following.
pub(crate) const OVERLAP_MS_MAX: u32 = 60_000;

/// Cuts of leases of an earlier run that are ordered at once: a start that finds many does not find the last ones
/// late.
pub(crate) const RESTORED_CUTS_AT_ONCE: usize = 32;

/// Cuts under way at once that may each take a moment for a linger. With more, time is short.
pub(crate) const FAREWELLS_AT_ONCE: usize = 32;
