//! What an earlier run left behind.
//!
//! A lease goes on where its bytes and its road survive the process: then it is *adopted*, with a new
//! binding and the deadline that it had. All others ended with the process. What was fenced stays
//! fenced, and keeps its bytes from everybody until a remediation has verified them.
//!
//! At start, in this order: [`LeaseTable::offer`] for every resource, [`LeaseTable::restore_lease`]
//! for every lease on record, [`LeaseTable::restore_fence`] for every fence. Then everything of a
//! resource that [`LeaseTable::held`] does not name is scrubbed, and only then is anything advertised.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::time::Duration;

use fabricbios_wire::{LeasePhase, ResourceId, Transport};

use crate::{
    Change, Extent, FenceRecord, LeaseRecord, LeaseTable, Note, Now, Outlives, State, StepError,
    lease::Lease, record::Ended, resource::Resource,
};

/// What becomes of a lease of an earlier run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Over(LeasePhase),
    /// Alive or fenced: it holds its bytes.
    Holds(State, Extent),
}

impl LeaseTable {
    /// Takes up a lease of an earlier run. `same_boot`: that run was of this boot, so that deadlines
    /// on the boot-time clock mean what they meant then.
    ///
    /// Adopted is what has no end on record, on the same boot, over UDP or both roads, on a resource
    /// that outlives the process: before its deadline it gets a new binding, in its grace time its
    /// bytes are kept, afterwards it is Expired. Whatever else was alive is Revoked.
    pub fn restore_lease(&mut self, now: Now, record: LeaseRecord, same_boot: bool) {
        match self.fate(now, &record, same_boot) {
            Fate::Over(phase) => self.restore_ended(now, &record, phase),
            Fate::Holds(state, extent) if self.take(record.resource_id, extent) => {
                self.restore_holder(now, &record, state, extent);
            }
            // The arena is another one, or the bytes are somebody else's.
            Fate::Holds(State::Fenced, _) => self.restore_ended(now, &record, LeasePhase::Fenced),
            Fate::Holds(..) => self.restore_ended(now, &record, LeasePhase::Revoked),
        }
    }

    /// Takes up a fence of an earlier run. With `reverify` the remediation is tried at once: the
    /// machine was rebooted since, and only the kernel held what was fenced.
    pub fn restore_fence(&mut self, now: Now, fence: FenceRecord, reverify: bool) {
        let Some(resource) = self.resources.get_mut(&fence.resource_id) else {
            return;
        };
        let (id, culprit) = (resource.id, self.leases.get_mut(&fence.lease_id));
        match culprit {
            Some(lease) if lease.state == State::Fenced => {
                lease.fault = Some(Box::new(fence.reason.clone()));
            }
            Some(_alive) => {}
            None => drop(resource.fenced_leases.insert(fence.lease_id)),
        }
        resource.fence = Some(fence);
        if reverify {
            self.start_reset(now, id, None);
        }
    }

    /// Which parts of a resource are somebody's: of leases that go on, and of fenced ones, whose
    /// bytes are touched by nothing but the remediation. Everything else is nobody's.
    pub fn held(&self, resource_id: ResourceId) -> impl Iterator<Item = Extent> + '_ {
        let leases = self.leases.values();
        let its = leases.filter(move |lease| lease.resource_id == resource_id);
        its.map(|lease| lease.extent)
    }

    fn fate(&self, now: Now, record: &LeaseRecord, same_boot: bool) -> Fate {
        match (record.ended, record.extent) {
            (Some(LeasePhase::Fenced), Some(extent)) => Fate::Holds(State::Fenced, extent),
            (Some(phase), _) => Fate::Over(phase),
            (None, Some(extent)) if same_boot && self.outlived(now, record) => {
                if now.boot < record.deadline {
                    Fate::Holds(State::Rebinding, extent)
                } else if now.boot < record.deadline + secs(record.grace_secs) {
                    Fate::Holds(State::Grace, extent)
                } else {
                    Fate::Over(LeasePhase::Expired)
                }
            }
            (None, _) => Fate::Over(LeasePhase::Revoked),
        }
    }

    /// Whether bytes and road are still there. A deadline farther away than a whole term was read
    /// from another clock.
    fn outlived(&self, now: Now, record: &LeaseRecord) -> bool {
        let found = self.resources.get(&record.resource_id);
        found.is_some_and(|resource| {
            resource.kind == record.resource_type
                && record
                    .effective
                    .transport
                    .is_some_and(|road| resource.can_reopen(road))
                && record.deadline <= now.boot + secs(record.term_secs)
        })
    }

    fn take(&mut self, id: ResourceId, extent: Extent) -> bool {
        let resource = self.resources.get_mut(&id);
        resource.is_some_and(|resource| resource.free.take_this(extent))
    }

    fn restore_ended(&mut self, now: Now, record: &LeaseRecord, phase: LeasePhase) {
        let lease_id = record.lease_id;
        let ended = Ended::of(record, self.tenant_name(&record.tenant), phase);
        if record.ended.is_none() {
            self.journal(Change::PutLease(ended.record(lease_id)));
            self.note(Note::Ended { lease_id, phase });
        }
        self.remember(now, lease_id, ended);
    }

    /// The bytes are taken already.
    fn restore_holder(&mut self, now: Now, record: &LeaseRecord, state: State, extent: Extent) {
        let id = record.lease_id;
        let tenant = self.tenant_name(&record.tenant);
        let lease = Lease::restored(now, record, tenant.clone(), state, extent);
        self.lives(&tenant, id);
        self.leases.insert(id, lease);
        match state {
            State::Fenced => self.restore_fenced(now, record),
            State::Grace => self.arm(id),
            _ => self.bind_anew(now, id),
        }
        if state != State::Fenced {
            self.note(Note::Adopted {
                lease_id: id,
                state,
            });
        }
    }

    /// Whatever was written down of its fence, it is one: the record of that comes later and may be
    /// missing, where the crash came between the two.
    fn restore_fenced(&mut self, now: Now, record: &LeaseRecord) {
        let Some(resource) = self.resources.get_mut(&record.resource_id) else {
            return;
        };
        resource.fenced_leases.insert(record.lease_id);
        resource.fence.get_or_insert_with(|| FenceRecord {
            resource_id: record.resource_id,
            resource_type: record.resource_type,
            lease_id: record.lease_id,
            since_unix_ms: now.unix_ms,
            reason: fenced_before(),
            by_release: false,
        });
    }
}

impl Resource {
    /// Whether a new process can open again what a lease over `road` had: queue pairs die with the
    /// process, keys of datagrams are made anew.
    fn can_reopen(&self, road: Transport) -> bool {
        let by_datagrams = matches!(road, Transport::Udp | Transport::Both);
        self.outlives != Outlives::Nothing && by_datagrams && self.transports.contains(&road)
    }
}

impl Lease {
    fn restored(
        now: Now,
        record: &LeaseRecord,
        tenant: Arc<str>,
        state: State,
        extent: Extent,
    ) -> Self {
        Self {
            id: record.lease_id,
            tenant,
            resource_id: record.resource_id,
            kind: record.resource_type,
            extent,
            state,
            generation: record.generation,
            term: secs(record.term_secs),
            grace: secs(record.grace_secs),
            deadline: record.deadline,
            granted_at_unix_ms: record.granted_at_unix_ms,
            expires_at_unix_ms: record.expires_at_unix_ms,
            timer: None,
            since: now.boot,
            effective: record.effective,
            peers: Vec::new(),
            binding: None,
            old_key: None,
            outstanding: None,
            patience_over: false,
            release_began: false,
            overlap: Duration::ZERO,
            ending: match state {
                State::Grace => LeasePhase::Expired,
                _ => LeasePhase::Revoked,
            },
            fault: (state == State::Fenced).then(|| Box::new(fenced_before())),
            fenced_by_release: false,
            waiting: Vec::new(),
            wanted: None,
        }
    }
}

fn secs(secs: u32) -> Duration {
    Duration::from_secs(secs.into())
}

fn fenced_before() -> StepError {
    StepError::new("restart", "it was fenced before the node started")
}
