//! What is known of a lease after it ended, and across restarts.

use alloc::{boxed::Box, sync::Arc};

use fabricbios_wire::{
    Binding, Effective, Generation, LeaseEnd, LeaseId, LeaseInfo, LeasePhase, LeaseStatus,
    LeaseTerms, ResourceId, ResourceType,
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
    pub tenant: Arc<str>,
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

impl LeaseRecord {
    /// Of a lease that ended so: nothing is held any more, nothing falls due.
    pub(crate) fn over(self, phase: LeasePhase) -> Self {
        Self {
            placement: None,
            term_secs: 0,
            grace_secs: 0,
            deadline: BootTime(0),
            ended: Some(phase),
            cannot_go_on: false,
            fenced_by_release: false,
            terms: None,
            ..self
        }
    }

    /// As the holder is told of a lease that has nothing any more: which operator took it back is for operators.
    pub(crate) fn info(self, phase: LeasePhase) -> LeaseInfo {
        let mut end = self.end;
        if let Some(end) = &mut end {
            end.by = None;
        }
        LeaseInfo {
            lease_id: self.lease_id,
            resource_id: self.resource_id,
            status: status_of(phase),
            phase,
            generation: self.generation,
            capacity: self.capacity,
            granted_at_unix_ms: self.granted_at_unix_ms,
            expires_at_unix_ms: self.expires_at_unix_ms,
            renewable_at_unix_ms: 0,
            grace_ends_unix_ms: 0,
            remaining_ms: 0,
            effective: self.effective,
            binding: Binding::plain(self.resource_type),
            tenant: None,
            end,
        }
    }
}

/// The specification's word for a phase. The three phases after the end that it does not know are
/// told by whether the holder could have known: freed and expired are Expired, the others Revoked.
fn status_of(phase: LeasePhase) -> LeaseStatus {
    match phase {
        LeasePhase::Binding | LeasePhase::Active => LeaseStatus::Active,
        LeasePhase::Grace | LeasePhase::Expired | LeasePhase::Freed => LeaseStatus::Expired,
        LeasePhase::Revoked | LeasePhase::Fenced => LeaseStatus::Revoked,
    }
}

/// A lease that is over.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) phase: LeasePhase,
    pub(crate) record: LeaseRecord,
    /// When the record goes.
    pub(crate) forget_at: BootTime,
}

impl Ended {
    pub(crate) fn info(&self) -> LeaseInfo {
        self.record.clone().info(self.phase)
    }
}
