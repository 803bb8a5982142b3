//! How leases end: time passing, cuts, releases, fences.

use core::time::Duration;

use fabricbios_wire::{
    LeaseError, LeaseId, LeasePhase, Refusal, RefusalClass, Reply, ResourceId, RevokeOutcome,
};

use crate::{
    Change, Event, Farewell, FenceRecord, LeaseTable, Note, Now, Order, State, StepError,
    config::FAREWELLS_AT_ONCE,
    lease::{OldKey, Waiting},
    table::Timer,
};

impl LeaseTable {
    /// Does what fell due. Calling it too often is harmless; calling it at
    /// [`LeaseTable::next_deadline`] is enough.
    pub fn on_tick(&mut self, now: Now) {
        while let Some(&(at, timer)) = self.timers.first().filter(|&&(at, _)| at <= now.boot) {
            match timer {
                Timer::Lease(id) => self.lease_is_due(now, id),
                Timer::Reset(id) => self.reset_is_overdue(now, id),
            }
            // Whatever became of it: a timer fires once, so that this loop ends.
            self.timers.remove(&(at, timer));
        }
        self.forget_old(now);
    }

    fn lease_is_due(&mut self, now: Now, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.timer = None;
        match lease.state {
            State::Active | State::Rebinding if lease.deadline <= now.boot => {
                self.end(now, id, Event::Deadline, LeasePhase::Expired);
            }
            State::Active | State::Rebinding => self.key_or_bind_is_due(now, id),
            State::Binding => self.end(now, id, Event::Revoke, LeasePhase::Revoked),
            State::Cutting => {
                let overdue = StepError::new("cut", self.not_done_within(self.policy.cut_within));
                self.fence(now, id, Event::CutFailed, overdue);
            }
            State::Grace => self.end(now, id, Event::GraceOver, LeasePhase::Expired),
            State::Releasing => {
                let stall = self.policy.release_stall;
                let stuck = StepError::new("release", self.not_done_within(stall));
                self.fence(now, id, Event::ReleaseFailed, stuck);
            }
            State::Ended | State::Fenced => {}
        }
    }

    fn not_done_within(&self, limit: Duration) -> alloc::string::String {
        alloc::format!("no outcome within {} ms", limit.as_millis())
    }

    /// The old key's time is over, or its retirement or a new binding takes too long.
    fn key_or_bind_is_due(&mut self, now: Now, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        match lease.old_key {
            Some(OldKey::Until(at)) if at <= now.boot => {
                lease.old_key = Some(OldKey::Retiring {
                    by: now.boot + self.policy.cut_within,
                });
                let tag = lease.tag();
                self.order(Order::RetireKey(tag));
                self.arm(id);
            }
            // A key that does not die takes the lease with it.
            Some(OldKey::Retiring { by }) if by <= now.boot => {
                self.end(now, id, Event::Revoke, LeasePhase::Revoked);
            }
            _bind_takes_long => self.lose_patience(now, id),
        }
    }

    /// Who waits for a binding or key is told that it is still being made. The lease goes on: its
    /// deadline is soon enough an end.
    fn lose_patience(&mut self, now: Now, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.patience_over = true;
        self.tell_without(now, id, &still_binding(id));
        self.arm(id);
    }

    /// Starts the end of a lease: the cut, or the release if it was cut already. Prohibited events
    /// change nothing.
    pub(crate) fn end(&mut self, now: Now, id: LeaseId, event: Event, phase: LeasePhase) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        if lease.state == State::Cutting && lease.ending == LeasePhase::Expired {
            // Somebody wants it gone: after the proof nothing is kept for a renewal.
            lease.ending = phase;
            return;
        }
        if !lease.step(event) {
            return;
        }
        lease.ending = phase;
        lease.since = now.boot;
        // The cut ends every key.
        lease.old_key = None;
        if lease.state == State::Releasing {
            self.tell_ended(now, id);
            self.start_release(now, id);
            return;
        }
        let tag = lease.tag();
        // Who asked for the end expects nothing; and many cuts at once have no time for it.
        let hurried = self.draining || self.cutting >= FAREWELLS_AT_ONCE;
        let farewell = match phase {
            LeasePhase::Freed => Farewell::None,
            _ if hurried => Farewell::None,
            _ => Farewell::Brief,
        };
        self.cutting += 1;
        self.order(Order::Cut(tag, farewell));
        self.arm(id);
    }

    /// After the proof: who waited for a binding or for the end is told.
    pub(crate) fn tell_ended(&mut self, now: Now, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let waiting = core::mem::take(&mut lease.waiting);
        let info = lease.info(now, false);
        let over = lease.over();
        if lease.granted() {
            let record = lease.record();
            self.journal(Change::PutLease(record));
        }
        for waiting in waiting {
            let (ticket, answer) = match waiting {
                Waiting::Grant(ticket) => (ticket, Err(bind_overdue())),
                Waiting::Rebind(ticket) | Waiting::Renew(ticket) => (ticket, Err(over.clone())),
                Waiting::Free(ticket) => (ticket, Ok(Reply::Lease(info.clone()))),
                Waiting::Revoke(ticket) => (ticket, Ok(Reply::Revoked(RevokeOutcome::TornDown))),
            };
            self.answer(ticket, answer);
        }
    }

    /// The state is `Releasing` already.
    pub(crate) fn start_release(&mut self, now: Now, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.since = now.boot;
        lease.release_began = false;
        lease.binding = None;
        if lease.outstanding.is_none() {
            let order = Order::Release(lease.tag(), lease.extent);
            self.order(order);
        }
        self.arm(id);
    }

    /// What could not be proved clean: the lease stays as it is, its resource gets no new ones.
    pub(crate) fn fence(&mut self, now: Now, id: LeaseId, event: Event, reason: StepError) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let waiting = lease.waiting.clone();
        let (before, tag) = (lease.state, lease.tag());
        // What is stranded is graver than a release that failed, also when that came first.
        let graver = lease.state == State::Fenced && event == Event::Stranded;
        if !graver && !lease.step(event) {
            return;
        }
        lease.fenced_by_release = event == Event::ReleaseFailed;
        lease.fault = Some(reason.clone().into());
        lease.binding = None;
        let fence = FenceRecord {
            resource_id: lease.resource_id,
            resource_type: lease.kind,
            lease_id: id,
            since_unix_ms: now.unix_ms,
            reason: reason.clone(),
            by_release: lease.fenced_by_release,
        };
        // Also of a lease that nobody was told of: its bytes are nobody's after a crash either. Before
        // the fence: what a crash leaves is never a fence under a lease that seems to live.
        let record = lease.record();
        self.journal(Change::PutLease(record));
        match before {
            State::Cutting => self.cutting -= 1,
            // Whatever still works is taken away as far as can be; that does not clear the fence.
            State::Binding | State::Active | State::Rebinding => {
                self.order(Order::Cut(tag, Farewell::None));
            }
            _ => {}
        }
        self.order(Order::Fenced(tag));
        self.fence_resource(fence);
        self.tell_fenced(id, waiting);
        self.arm(id);
    }

    fn fence_resource(&mut self, fence: FenceRecord) {
        let Some(resource) = self.resources.get_mut(&fence.resource_id) else {
            return;
        };
        resource.fenced_leases.insert(fence.lease_id);
        resource.fenced_again = resource.resetting.is_some();
        let note = Note::Fenced {
            resource_id: fence.resource_id,
            lease_id: fence.lease_id,
            reason: fence.reason.clone(),
        };
        // The first reason stands, except that a failed cut is graver than a failed release.
        let graver = resource
            .fence
            .as_ref()
            .is_none_or(|old| old.by_release && !fence.by_release);
        if graver {
            resource.fence = Some(fence.clone());
            self.journal(Change::PutFence(fence));
        }
        self.note(note);
    }

    fn tell_fenced(&mut self, id: LeaseId, waiting: alloc::vec::Vec<Waiting>) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.waiting.clear();
        let over = lease.over();
        for waiting in waiting {
            let (ticket, answer) = match waiting {
                Waiting::Revoke(ticket) => (ticket, Ok(Reply::Revoked(RevokeOutcome::Fenced))),
                Waiting::Grant(ticket)
                | Waiting::Rebind(ticket)
                | Waiting::Renew(ticket)
                | Waiting::Free(ticket) => (ticket, Err(over.clone())),
            };
            self.answer(ticket, answer);
        }
    }

    /// Clean: the bytes are anybody's again and a record remains. The state is `Ended` already.
    pub(crate) fn finish(&mut self, now: Now, id: LeaseId) {
        let Some(lease) = self.leases.remove(&id) else {
            return;
        };
        if let Some(at) = lease.timer {
            self.timers.remove(&(at, Timer::Lease(id)));
        }
        if let Some(resource) = self.resources.get_mut(&lease.resource_id) {
            resource.free.give_back(lease.extent);
            resource.fenced_leases.remove(&id);
        }
        let fenced = lease.fault.is_some();
        if !lease.granted() {
            // Nobody was ever told of it.
            self.forget_name(&lease.tenant, id);
            if fenced {
                self.journal(Change::RemoveLease(id));
            }
            return;
        }
        let phase = if fenced {
            LeasePhase::Fenced
        } else {
            lease.ending
        };
        let ended = lease.to_ended(phase);
        if fenced {
            // Its bytes are not to be kept from anybody any more.
            self.journal(Change::PutLease(ended.record(id)));
        }
        self.note(Note::Ended {
            lease_id: id,
            phase,
        });
        self.remember(now, id, ended);
    }

    fn reset_is_overdue(&mut self, now: Now, id: ResourceId) {
        let limit = self.not_done_within(self.policy.reset_within);
        self.reset_done(now, id, Err(StepError::new("reset", limit)));
    }

    /// A remediation came to an end: only a verified one clears the fence.
    pub(crate) fn reset_done(&mut self, now: Now, id: ResourceId, outcome: Result<(), StepError>) {
        let Some(resource) = self.resources.get_mut(&id) else {
            return;
        };
        let Some((asker, by)) = resource.resetting.take() else {
            return;
        };
        self.timers.remove(&(by, Timer::Reset(id)));
        // It began before that and proves nothing about it.
        let outcome = match outcome {
            Ok(()) if resource.fenced_again => Err(StepError::new(
                "reset",
                "another lease was fenced meanwhile; clear the fence once more",
            )),
            outcome => outcome,
        };
        let answer = match outcome {
            Ok(()) => {
                self.unfence(now, id, Event::Remedied, "remediation");
                Ok(Reply::FenceCleared)
            }
            Err(error) => Err(Refusal::new(
                LeaseError::Fenced,
                RefusalClass::Transient,
                alloc::format!("resource {id} stays fenced: {error}"),
            )),
        };
        if let Some(ticket) = asker {
            self.answer(ticket, answer);
        }
    }

    /// Takes a fence away; every lease that it kept is over, clean.
    pub(crate) fn unfence(&mut self, now: Now, id: ResourceId, event: Event, by: &'static str) {
        let Some(resource) = self.resources.get_mut(&id) else {
            return;
        };
        resource.fence = None;
        for lease_id in core::mem::take(&mut resource.fenced_leases) {
            let stepped = self
                .leases
                .get_mut(&lease_id)
                .is_some_and(|lease| lease.step(event));
            if stepped {
                self.finish(now, lease_id);
            }
        }
        self.journal(Change::RemoveFence(id));
        self.note(Note::Unfenced {
            resource_id: id,
            by,
        });
    }
}

fn still_binding(id: LeaseId) -> Refusal {
    Refusal::new(
        LeaseError::Unavailable,
        RefusalClass::Transient,
        alloc::format!(
            "the binding of lease {id} is still being made; LEASE_QUERY tells when it is"
        ),
    )
}

fn bind_overdue() -> Refusal {
    Refusal::new(
        LeaseError::Internal,
        RefusalClass::Transient,
        "the binding could not be made in time and was taken back; nothing was leased",
    )
}

/// The node is going down.
impl LeaseTable {
    /// Takes every lease back. Each is cut, proved, scrubbed, as by an operator's revoke.
    pub fn on_drain(&mut self, now: Now) {
        self.on_tick(now);
        self.draining = true;
        let ids: alloc::vec::Vec<LeaseId> = self.leases.keys().copied().collect();
        for id in ids {
            self.end(now, id, Event::Revoke, LeasePhase::Revoked);
        }
    }
}
