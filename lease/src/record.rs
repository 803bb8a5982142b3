//! What is known of a lease after it ended, and across restarts.

use alloc::{boxed::Box, string::String, sync::Arc};

use fabricbios_wire::{
    Effective, Generation, LeaseEnd, LeaseId, LeasePhase, LeaseTerms, ResourceId, ResourceType,
};
use serde::{Deserialize, Serialize};

use crate::{BootTime, Placement};

/// The shape of [`LeaseRecord`] and [`crate::FenceRecord`]. To be written with each of them: serde
/// formats without names would read one shape as another.
pub const RECORDS_VERSION: u8 = 5;

/// What survives of a lease: enough to go on with it, or to answer LEASE_QUERY after it ended; nothing
/// secret.
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
    /// Which part of the resource; absent when that is anybody's again.
    pub placement: Option<Placement>,
    /// Bindings it had.
    pub generation: Generation,
    /// Wall clock.
    pub granted_at_unix_ms: u64,
    /// Wall clock.
    pub expires_at_unix_ms: u64,
    /// What was enforced.
    pub effective: Effective,
    /// The current term, seconds.
    pub term_secs: u32,
    /// Seconds.
    pub grace_secs: u32,
    /// End of the term; of the boot in which it was written, and of no other.
    pub deadline: BootTime,
    /// How it ended; absent while it lives.
    pub ended: Option<LeasePhase>,
    /// Why and when it ended, with the proof of its cut; absent while it lives.
    pub end: Option<Box<LeaseEnd>>,
    /// A restart could not go on with it and is revoking it: no later one takes it up, whatever its clock
    /// says.
    pub cannot_go_on: bool,
    /// Where `ended` is `Fenced`: it is cut, and all that failed is its release.
    pub fenced_by_release: bool,
    /// What was stated that only its kind has, as it is enforced; absent where that is nothing, and when
    /// it holds nothing any more.
    pub terms: Option<Box<LeaseTerms>>,
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
    pub(crate) end: Option<Box<LeaseEnd>>,
    /// When the record goes.
    pub(crate) forget_at: BootTime,
}

impl Ended {
    pub(crate) fn of(record: &LeaseRecord, tenant: Arc<str>, phase: LeasePhase) -> Self {
        Self {
            tenant,
            resource_id: record.resource_id,
            resource_type: record.resource_type,
            capacity: record.capacity,
            generation: record.generation,
            granted_at_unix_ms: record.granted_at_unix_ms,
            expires_at_unix_ms: record.expires_at_unix_ms,
            effective: record.effective,
            phase,
            end: record.end.clone(),
            forget_at: BootTime(0),
        }
    }

    /// Nothing is held any more, nothing falls due.
    pub(crate) fn record(&self, lease_id: LeaseId) -> LeaseRecord {
        LeaseRecord {
            lease_id,
            tenant: String::from(&*self.tenant),
            resource_id: self.resource_id,
            resource_type: self.resource_type,
            capacity: self.capacity,
            placement: None,
            generation: self.generation,
            granted_at_unix_ms: self.granted_at_unix_ms,
            expires_at_unix_ms: self.expires_at_unix_ms,
            effective: self.effective,
            term_secs: 0,
            grace_secs: 0,
            deadline: BootTime(0),
            ended: Some(self.phase),
            end: self.end.clone(),
            cannot_go_on: false,
            fenced_by_release: false,
            terms: None,
        }
    }
}
