//! What is known of a lease after it ended, and across restarts.

use alloc::{string::String, sync::Arc};

use fabricbios_wire::{Effective, Generation, LeaseId, LeasePhase, ResourceId, ResourceType};
use serde::{Deserialize, Serialize};

/// What survives of a lease: enough to answer LEASE_QUERY after it ended, nothing secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// Which.
    pub lease_id: LeaseId,
    /// Whose.
    pub tenant: String,
    /// On what.
    pub resource_id: ResourceId,
    /// Of what kind.
    pub resource_type: ResourceType,
    /// How much.
    pub capacity: u64,
    /// Bindings it had.
    pub generation: Generation,
    /// Wall clock.
    pub granted_at_unix_ms: u64,
    /// Wall clock.
    pub expires_at_unix_ms: u64,
    /// What was enforced.
    pub effective: Effective,
    /// How it ended; absent while it lives.
    pub ended: Option<LeasePhase>,
}

/// A lease that is over, in memory: the tenant's name is shared.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) tenant: Arc<str>,
    pub(crate) resource_id: ResourceId,
    pub(crate) resource_type: ResourceType,
    pub(crate) capacity: u64,
    pub(crate) generation: Generation,
    pub(crate) granted_at_unix_ms: u64,
    pub(crate) expires_at_unix_ms: u64,
    pub(crate) effective: Effective,
    pub(crate) phase: LeasePhase,
}

impl Ended {
    pub(crate) fn record(&self, lease_id: LeaseId) -> LeaseRecord {
        LeaseRecord {
            lease_id,
            tenant: String::from(&*self.tenant),
            resource_id: self.resource_id,
            resource_type: self.resource_type,
            capacity: self.capacity,
            generation: self.generation,
            granted_at_unix_ms: self.granted_at_unix_ms,
            expires_at_unix_ms: self.expires_at_unix_ms,
            effective: self.effective,
            ended: Some(self.phase),
        }
    }
}
