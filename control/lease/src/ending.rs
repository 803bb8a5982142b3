//! How leases end: time passing, cuts, releases, fences.

use alloc::{boxed::Box, format, string::String};
use core::time::Duration;

use fabricbios_wire::{EndCause, LeaseId, LeasePhase, Reply, RevokeOutcome};

use crate::{
    BootTime, Change, Event, LeaseTable, Linger, Note, Now, Order, State, StepError,
    config::{CUT_PATIENCES, LINGERS_AT_ONCE},
    lease::{OldKey, Stage, Waiting},
    repeats::gets_no_other,
    standing::unavailable,
    timers::Timer,
};

impl LeaseTable {
    /// Handles every due timer. Calling it too often is harmless; calling it at [`LeaseTable::next_deadline`] is
    /// enough.
    pub fn on_tick(&mut self, now: Now) {
        self.tick_some(now, now.boot, usize::MAX);
    }

    /// Handles up to `most` due timers, deadlines first, by turns of the tenants. Returns whether more are due.
    /// `heard`: all reports of work done until this time have been handled, so that a provider does not count as late
    /// because nobody has read its report yet.
    pub fn tick_some(&mut self, now: Now, heard: BootTime, most: usize) -> bool {
        self.now = now.boot;
        for _ in 0..most {
            self.fence_broken(now);
            if let Some(timer) = self.deadlines.take_due(now.boot) {
                self.deadline_is_due(now, timer);
            } else if let Some(timer) = self.patience.take_due(heard) {
                self.patience_is_over(now, timer);
            } else if let Some(Timer::Lease(id)) = self.forget.take_due(now.boot) {
                self.forget_record(id);
            } else {
                return false;
            }
        }
        true
    }

    /// Handles the due deadline of this lease before the caller does anything else with the lease.
    pub(crate) fn catch_up(&mut self, now: Now, id: LeaseId) {
        let Some(lease) = self.leases.get(&id) else {
            return;
        };
        let due = lease.timers.0.filter(|&at| at <= now.boot);
        if due.is_some() {
            let owner = Some(lease.tenant.clone());
            self.deadlines.set(&owner, Timer::Lease(id), due, None);
            self.deadline_is_due(now, Timer::Lease(id));
        }
    }

    /// Handles a deadline that is due. The caller has removed the timer from the queue.
    fn deadline_is_due(&mut self, now: Now, timer: Timer) {
        let Timer::Lease(id) = timer else { return };
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.timers.0 = None;
        let overlap_is_over = matches!(lease.old_key(), Some(OldKey::Until(at)) if at <= now.boot);
        let is_due = |at: BootTime| at <= now.boot;
        let binds_again = lease.binds_again_at().is_some_and(is_due) && !is_due(lease.deadline);
        if binds_again && lease.step(Event::Rebind) {
            return self.bind_anew(now, id);
        }
        match lease.state() {
            State::Active | State::Rebinding if lease.deadline <= now.boot => {
                self.end(now, id, Event::Deadline, EndCause::Expired, None);
            }
            State::Active | State::Rebinding if overlap_is_over => {
                self.retire_key(now, id);
            }
            // The first term is over before the paths acknowledged it. The client does not know the lease yet.
            State::Binding => self.end(now, id, Event::Revoke, EndCause::BindingFailed, None),
            State::Grace => self.end(now, id, Event::GraceOver, EndCause::Expired, None),
            _ => {}
        }
    }

    /// Handles the end of a provider's time limit. The caller has removed the timer from the queue.
    fn patience_is_over(&mut self, now: Now, timer: Timer) {
        let id = match timer {
            Timer::Lease(id) => id,
            Timer::Reset(id) => return self.reset_is_overdue(id),
        };
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.timers.1 = None;
        match lease.state() {
            State::Binding => {
                let resource_id = lease.resource_id;
                let bind_within = self.policy.bind_within;
                let tenant = String::from(&*lease.tenant);
                self.note(Note::NotBound {
                    lease_id: id,
                    resource_id,
                    tenant,
                    is_new: true,
                    error: StepError::new("bind", not_done_within(bind_within)),
                });
                self.end(now, id, Event::Revoke, EndCause::BindingFailed, None);
            }
            State::Active | State::Rebinding => self.key_or_bind_is_overdue(now, id),
            State::Cutting => self.cut_is_overdue(now, id),
            State::Releasing => {
                let stall = self.policy.release_stall;
                let stuck = StepError::new("release", not_done_within(stall));
                self.fence(now, id, Event::ReleaseFailed, stuck);
            }
            State::New | State::Grace | State::Ended | State::Fenced => {}
        }
    }

    /// A cut that waits behind cuts of the same kind of resource is not overdue while they progress.
    fn cut_is_overdue(&mut self, now: Now, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let moved = self.cut_moved.get(&lease.kind).copied();
        let began = lease.cut_mut().and_then(|cut| cut.moved.as_mut());
        let error = match began {
            Some(at) if moved > Some(*at) => {
                *at = moved.unwrap_or(*at);
                return self.arm(id);
            }
            Some(_) => not_done_within(lease.cut_within),
            None => format!(
                "not begun within {} ms: every thread for cuts of {} is busy or stuck",
                (lease.cut_within * CUT_PATIENCES).as_millis(),
                lease.kind
            ),
        };
        self.fence(now, id, Event::CutFailed, StepError::new("cut", error));
    }

    /// Orders the end of the key before the last rotation.
    pub(crate) fn retire_key(&mut self, now: Now, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let by = now.boot + lease.cut_within * CUT_PATIENCES;
        if let Some(in_use) = lease.in_use_mut() {
            in_use.old_key = Some(OldKey::Retiring { by });
        }
        let order = Order::RetireKey(lease.binding_id());
        self.order(order);
        self.arm(id);
    }

    /// The retirement of an old key, an acknowledgement or a new binding takes too long.
    fn key_or_bind_is_overdue(&mut self, now: Now, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        match lease.old_key() {
            // A key that cannot be retired ends the lease.
            Some(OldKey::Retiring { by }) if by <= now.boot => {
                self.end(now, id, Event::Revoke, EndCause::KeyNotRetired, None);
            }
            _ if lease.extends_to().is_some() => self.extension_is_overdue(now, id),
            // The client is answered that the bind takes long. The lease goes on until its deadline.
            _bind_takes_long => {
                lease.since = None;
                let still_binding = unavailable(format!(
                    "the binding of lease {id} is still being made; LEASE_QUERY tells when it is"
                ));
                self.tell_without(now, id, &still_binding);
                self.arm(id);
            }
        }
    }

    /// Starts the end of a lease: the cut, or the release if it was cut already. Prohibited events
    /// change nothing.
    pub(crate) fn end(
        &mut self,
        now: Now,
        id: LeaseId,
        event: Event,
        cause: EndCause,
        by: Option<String>,
    ) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let before = lease.state();
        if !lease.step(event) {
            return;
        }
        if before == State::Cutting {
            // The lease is freed or revoked while its expiry is being cut: no grace time follows.
            if lease.ending() == LeasePhase::Expired && !lease.is_told_over() {
                lease.ends(cause, by);
            }
            return;
        }
        lease.ends(cause, by);
        lease.since = Some(now.boot);
        let (state, binding_id) = (lease.state(), lease.binding_id());
        if state == State::Releasing {
            self.tell_ended(now, id);
            self.start_release(id);
            return;
        }
        // A client that freed the lease needs no error, and many cuts at once have no time for a linger.
        let hurried = self.draining || self.cutting() >= LINGERS_AT_ONCE;
        let linger = match cause {
            EndCause::Freed => Linger::None,
            _ if hurried => Linger::None,
            _ => Linger::Brief,
        };
        self.order(Order::Cut(binding_id, linger));
        self.arm(id);
    }

    /// Answers the requests that waited for a binding or for the end. The cut is proved.
    pub(crate) fn tell_ended(&mut self, now: Now, id: LeaseId) {
        if !self.may_tell_end(id) {
            return;
        }
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        if lease.state() != State::Grace {
            lease.end_is_certain(now, now.boot);
        }
        let info = lease.info(now, false);
        let over = lease.over();
        let (granted, is_kept) = (lease.granted(), lease.state() == State::Grace);
        if granted {
            let record = lease.record();
            self.journal(Change::PutLease(record));
        }
        let overdue =
            "the binding was not made, or not in time, and was taken back; nothing was leased";
        self.answer_waiting(id, |waiting| match waiting {
            Waiting::Grant => Err(unavailable(overdue)),
            Waiting::Repeat if !granted => Err(unavailable(overdue)),
            Waiting::Repeat if is_kept => Ok(Reply::Lease(info.clone())),
            Waiting::Repeat => Err(gets_no_other(over.clone())),
            Waiting::Rebind | Waiting::Peers | Waiting::Renew => Err(over.clone()),
            Waiting::Free => Ok(Reply::Lease(info.clone())),
            Waiting::Revoke => Ok(Reply::Revoked(RevokeOutcome::TornDown)),
        });
    }

    /// Starts the release. The state is `Releasing` already.
    pub(crate) fn start_release(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.since = None;
        if !lease.is_on_its_way() {
            let order = Order::Release(lease.binding_id(), lease.placement.clone());
            self.order(order);
        }
        self.arm(id);
    }

    /// Removes a clean lease: its part is free again and a record remains. The state is `Ended` already.
    pub(crate) fn finish(&mut self, now: Now, id: LeaseId) {
        self.count(id);
        let Some(lease) = self.leases.remove(&id) else {
            return;
        };
        let owner = Some(lease.tenant.clone());
        let (term, patience) = lease.timers;
        self.deadlines.set(&owner, Timer::Lease(id), term, None);
        self.patience.set(&owner, Timer::Lease(id), patience, None);
        let mut releases_again = false;
        if let Some(resource) = self.resources.get_mut(&lease.resource_id) {
            resource.free.give_back(&lease.placement);
            resource.fenced_leases.remove(&id);
            releases_again = resource.durability.leases_stay();
        }
        self.change_held(&lease, false);
        self.recount(lease.counted.0, None);
        if let Some((state, _)) = lease.counted.0 {
            let stay = (state, lease.state_since);
            self.figures.leaves(lease.resource_id, id, stay, self.now);
        }
        self.lives_no_more(&lease);
        let fenced = matches!(lease.stage(), Stage::Ended { fenced: true });
        if !lease.granted() {
            // The client never learned of the lease.
            if fenced {
                self.journal(Change::RemoveLease(id));
            }
            return;
        }
        let phase = if fenced {
            LeasePhase::Fenced
        } else {
            lease.ending()
        };
        let record = lease.record();
        let ended = record.clone().over(phase);
        if fenced || releases_again {
            // Goes to the journal before the part is granted again: the next run must neither reserve the part for this
            // lease nor release it again.
            self.journal(Change::PutLease(ended.clone()));
        }
        self.note(Note::Ended {
            phase,
            record: Box::new(record),
            cut: lease.cut_time.map(|it| *it),
        });
        self.remember(now, Duration::ZERO, phase, ended);
    }
}

pub(crate) fn not_done_within(limit: Duration) -> String {
    format!("no outcome within {} ms", limit.as_millis())
}

/// The node is going down.
impl LeaseTable {
    /// Revokes every lease: each is cut, proved and scrubbed.
    pub fn on_drain(&mut self, now: Now) {
        self.on_tick(now);
        self.draining = true;
        let ids: alloc::vec::Vec<LeaseId> = self.leases.keys().copied().collect();
        for id in ids {
            self.end(now, id, Event::Revoke, EndCause::NodeStopped, None);
        }
        self.fence_broken(now);
    }
}
