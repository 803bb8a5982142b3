//! How leases end: time passing, cuts, releases, fences.

use core::time::Duration;

use fabricbios_wire::{
    LeaseError, LeaseId, LeasePhase, Refusal, RefusalClass, Reply, RevokeOutcome,
};

use crate::{
    Change, Event, Farewell, LeaseTable, Note, Now, Order, State, StepError,
    config::{CUT_PATIENCES, FAREWELLS_AT_ONCE},
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
            State::Active if lease.bind_again_at.is_some_and(|at| at <= now.boot) => {
                if lease.step(Event::Rebind) {
                    self.bind_anew(now, id);
                }
            }
            State::Active | State::Rebinding => self.key_or_bind_is_due(now, id),
            State::Binding => self.end(now, id, Event::Revoke, LeasePhase::Revoked),
            State::Cutting => self.cut_is_due(now, id),
            State::Grace => self.end(now, id, Event::GraceOver, LeasePhase::Expired),
            State::Releasing => {
                let stall = self.policy.release_stall;
                let stuck = StepError::new("release", self.not_done_within(stall));
                self.fence(now, id, Event::ReleaseFailed, stuck);
            }
            State::Ended | State::Fenced => {}
        }
    }

    fn cut_is_due(&mut self, now: Now, id: LeaseId) {
        if self.cuts_move(now, id) {
            return self.arm(id);
        }
        let overdue = StepError::new("cut", self.not_done_within(self.policy.cut_within));
        self.fence(now, id, Event::CutFailed, overdue);
    }

    /// Whether cuts of its kind have moved since it was looked at, and until when they may go on.
    fn cuts_move(&mut self, now: Now, id: LeaseId) -> bool {
        let within = self.policy.cut_within;
        let Some(lease) = self.leases.get_mut(&id) else {
            return false;
        };
        let Some(moved) = self.cut_moved.get(&lease.kind) else {
            return false;
        };
        lease.cut_by = (*moved + within).min(lease.since + within * CUT_PATIENCES);
        lease.cut_by > now.boot
    }

    pub(crate) fn not_done_within(&self, limit: Duration) -> alloc::string::String {
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
        let may_be_kept = lease.ending == LeasePhase::Expired && !lease.told_over;
        if lease.state == State::Cutting && may_be_kept {
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

    /// Clean: the bytes are anybody's again and a record remains. The state is `Ended` already.
    pub(crate) fn finish(&mut self, now: Now, id: LeaseId) {
        let Some(lease) = self.leases.remove(&id) else {
            return;
        };
        if let Some(at) = lease.timer {
            self.timers.remove(&(at, Timer::Lease(id)));
        }
        let mut releases_again = false;
        if let Some(resource) = self.resources.get_mut(&lease.resource_id) {
            resource.free.give_back(lease.extent);
            resource.fenced_leases.remove(&id);
            releases_again = resource.outlives_machine();
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
        if fenced || releases_again {
            // Its bytes are not to be kept from anybody any more, nor released again by the next run:
            // written down before any grant of who has them next.
            self.journal(Change::PutLease(ended.record(id)));
        }
        self.note(Note::Ended {
            lease_id: id,
            phase,
        });
        self.remember(now, id, ended);
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
        LeaseError::Unavailable,
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
