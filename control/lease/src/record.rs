//! The record of a lease: kept across restarts and after the end.

use alloc::{boxed::Box, sync::Arc, vec::Vec};

use crc::{CRC_64_XZ, Crc};
use fabricbios_wire::{
    Binding, Effective, Generation, LeaseAllocRequest, LeaseEnd, LeaseId, LeaseInfo, LeaseIntent,
    LeasePhase, LeaseStatus, LeaseTerms, RequestToken, ResourceId, ResourceType,
};
use serde::{Deserialize, Serialize};

use crate::{BootTime, Placement};

/// The record of a lease: enough to adopt it, or to answer LEASE_QUERY after its end. It contains no secret. A change
/// of its fields needs another [`crate::FORMAT`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// The lease.
    pub lease_id: LeaseId,
    /// The tenant.
    pub tenant: Arc<str>,
    /// The resource.
    pub resource_id: ResourceId,
    /// The type of the resource.
    pub resource_type: ResourceType,
    /// The capacity in the unit of the type.
    pub capacity: u64,
    /// The part of the resource; absent when the part is free again.
    pub placement: Option<Placement>,
    /// The newest generation of its binding.
    pub generation: Generation,
    /// When the lease was granted, wall clock.
    pub granted_at_unix_ms: u64,
    /// When the term ends, wall clock.
    pub expires_at_unix_ms: u64,
    /// The classes that are enforced.
    pub effective: Effective,
    /// The current term, seconds.
    pub term_secs: u32,
    /// The grace time, seconds.
    pub grace_secs: u32,
    /// End of the term on the boot-time clock; valid on the boot in which it was written.
    pub deadline: BootTime,
    /// The phase after the end; absent while the lease lives.
    pub ended: Option<LeasePhase>,
    /// Cause and time of the end, with the proof of the cut; absent while the lease lives.
    pub end: Option<Arc<LeaseEnd>>,
    /// A restart could not adopt the lease and revokes it; no later restart adopts it either.
    pub cannot_go_on: bool,
    /// If `ended` is `Fenced`: the lease is cut, and only its release failed.
    pub fenced_by_release: bool,
    /// The terms of the kind as they are enforced; absent if they are plain, and after the end.
    pub terms: Option<Box<LeaseTerms>>,
    /// The use of the lease that the tenant stated: kept and reported, not enforced. Absent if the tenant stated none,
    /// and after the end.
    pub intent: Option<Box<LeaseIntent>>,
    /// The request that got the lease, also after the end; absent if it had no token.
    pub requested: Option<Requested>,
}

/// By this a repeat of a request for a lease is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requested {
    /// The token of the request.
    pub token: RequestToken,
    /// The CRC-64/XZ of the request's payload, see [`LeaseAllocRequest::payload`]. Requests of the same length that differ
    /// in one field have different sums.
    pub sum: u64,
}

impl Requested {
    pub(crate) fn by(request: &LeaseAllocRequest) -> Option<Self> {
        let token = request.request_token?;
        // A node ignores what is for schedulers.
        let request = LeaseAllocRequest {
            follows_redirect: false,
            tried: Vec::new(),
            explain: false,
            ..request.clone()
        };
        let sum = Crc::<u64>::new(&CRC_64_XZ).checksum(&request.payload());
        Some(Self { token, sum })
    }
}

impl LeaseRecord {
    /// The record after the end: without a part and without timers.
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
            intent: None,
            ..self
        }
    }

    /// The answer to LEASE_QUERY by the holder, without a binding. The name of a revoking operator is for operators
    /// only.
    pub(crate) fn info(self, phase: LeasePhase) -> LeaseInfo {
        let mut end = self.end;
        if let Some(end) = end.as_mut().filter(|end| end.by.is_some()) {
            Arc::make_mut(end).by = None;
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
            intent: self.intent,
            request_token: self.requested.map(|it| it.token),
            binding: Binding::plain(self.resource_type),
            tenant: None,
            end,
        }
    }
}

/// The status of the specification for a phase. Grace and Freed are reported as Expired, since the holder could have
/// known; Fenced is reported as Revoked.
fn status_of(phase: LeasePhase) -> LeaseStatus {
    match phase {
        LeasePhase::Binding | LeasePhase::Active => LeaseStatus::Active,
        LeasePhase::Grace | LeasePhase::Expired | LeasePhase::Freed => LeaseStatus::Expired,
        LeasePhase::Revoked | LeasePhase::Fenced => LeaseStatus::Revoked,
    }
}

/// A lease that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) phase: LeasePhase,
    pub(crate) record: LeaseRecord,
    /// When the record is dropped.
    pub(crate) forget_at: BootTime,
}

impl Ended {
    pub(crate) fn info(&self) -> LeaseInfo {
        self.record.clone().info(self.phase)
    }
}
