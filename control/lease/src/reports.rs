//! Reports of the providers. A report that names an old binding, or does not fit the state of the lease, is noted and
//! ignored.

use alloc::{boxed::Box, sync::Arc};
use core::time::Duration;

use fabricbios_wire::{EndCause, LeaseId};

use crate::{
    BindingId, BootTime, CutTime, Event, LeaseTable, Note, Now, Proof, Report, State, StepError,
    lease::{Lease, OldKey, Owed},
    leaving::Pace,
};

impl LeaseTable {
    /// Handles the result of an order. `done`: when the provider finished. A due deadline of the lease is handled
    /// first.
    pub fn on_report(&mut self, now: Now, done: BootTime, report: Report) {
        self.now = now.boot;
        if let Some(id) = report.lease_id() {
            self.catch_up(now, id);
        }
        match report {
            Report::Bind(binding_id, outcome) => {
                if self.was_owed(binding_id, Owed::Bind) {
                    self.made_or_not(now, binding_id, outcome, Self::bound, Self::not_bound);
                }
            }
            Report::BindProgress(binding_id) => self.bind_moves(done, binding_id),
            Report::Extended(binding_id, deadline, outcome) => {
                self.extended(now, binding_id, deadline, outcome);
            }
            Report::Confirmed(binding_id, outcome) => self.confirmed(now, binding_id, outcome),
            Report::Rotate(binding_id, outcome) => {
                if self.was_owed(binding_id, Owed::Rotation) {
                    self.made_or_not(now, binding_id, outcome, Self::rotated, Self::not_rotated);
                }
            }
            Report::PeersChanged(binding_id, outcome) => {
                if self.was_owed(binding_id, Owed::Peers) {
                    let not_made = Self::not_rotated;
                    self.made_or_not(now, binding_id, outcome, Self::peers_changed, not_made);
                }
            }
            Report::RetireKey(binding_id, outcome) => {
                self.retire_reported(now, binding_id, outcome);
            }
            Report::EndBegan(binding_id) => self.end_began(done, binding_id),
            Report::CutMoves(binding_id) => self.cut_moves(done, binding_id),
            Report::Cut(binding_id, outcome) => self.cut_reported(now, done, binding_id, outcome),
            Report::ReleaseProgress(binding_id) => self.release_moves(done, binding_id),
            Report::Release(binding_id, outcome) => self.release_reported(now, binding_id, outcome),
            Report::Reset(id, outcome) => self.reset_done(now, id, outcome),
            Report::Condition(id, condition) => self.condition_reported(now, id, condition),
        }
        self.fence_broken(now);
    }

    /// The lease that the report is about, if it is in one of the states that wait for it.
    pub(crate) fn waiting_for(
        &mut self,
        binding_id: BindingId,
        what: &'static str,
        states: &[State],
    ) -> Option<&mut Lease> {
        let fits = self.leases.get(&binding_id.lease_id).is_some_and(|lease| {
            lease.binding_id() == binding_id && states.contains(&lease.state())
        });
        if !fits {
            self.note(Note::Stale(binding_id, what));
            return None;
        }
        let lease = self.leases.get_mut(&binding_id.lease_id);
        lease.map(|it| &mut **it)
    }

    /// Whether the lease waits for this report. A report that comes twice counts once.
    fn was_owed(&mut self, binding_id: BindingId, what: Owed) -> bool {
        let lease = self.leases.get(&binding_id.lease_id);
        let lease = lease.filter(|lease| lease.binding_id() == binding_id);
        if lease.is_none_or(|it| it.owed() != Some(what)) {
            self.note(Note::Stale(binding_id, "bound or rotated"));
            return false;
        }
        self.came_late(binding_id.lease_id);
        true
    }

    /// Notes that nothing is owed any more of a lease that ends.
    pub(crate) fn came_late(&mut self, id: LeaseId) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.late = None;
        }
        self.count(id);
    }

    fn cut_reported(
        &mut self,
        now: Now,
        done: BootTime,
        binding_id: BindingId,
        outcome: Result<Proof, StepError>,
    ) {
        let Some(lease) = self.waiting_for(binding_id, "cut", &[State::Cutting]) else {
            return;
        };
        let proof = match outcome {
            Ok(proof) => proof,
            Err(error) => return self.fence(now, binding_id.lease_id, Event::CutFailed, error),
        };
        let cause = lease
            .end
            .as_ref()
            .map_or(EndCause::Revoked, |end| end.cause);
        let time = CutTime {
            took: { lease.since }.map_or(Duration::ZERO, |since| since.until(done)),
            after_deadline: (cause == EndCause::Expired).then(|| lease.deadline.until(done)),
        };
        let note = Note::Cut {
            binding_id,
            cause,
            time,
            proof: proof.clone(),
        };
        let keep = cause == EndCause::Expired && lease.grace_ends() > now.boot;
        let event = if keep {
            Event::CutProvedKeep
        } else {
            Event::CutProved
        };
        if !lease.step(event) {
            return;
        }
        lease.cut_time = Some(Box::new(time));
        if let Some(end) = lease.end.as_mut().map(Arc::make_mut) {
            end.proof = proof.into_steps();
        }
        if !keep {
            lease.end_is_certain(now, done);
        }
        self.cut_is_over(now, binding_id.lease_id);
        self.note(note);
        self.tell_ended(now, binding_id.lease_id);
        if keep {
            self.arm(binding_id.lease_id);
        } else {
            self.start_release(binding_id.lease_id);
        }
    }

    /// A thread has begun a cut or a retirement, which must finish in time from now on.
    fn end_began(&mut self, done: BootTime, binding_id: BindingId) {
        let expected = [State::Cutting, State::Active, State::Rebinding];
        let Some(lease) = self.waiting_for(binding_id, "end began", &expected) else {
            return;
        };
        let (within, since) = (lease.cut_within, lease.since);
        if let Some(cut) = lease.cut_mut() {
            // What began before the order of the cut is a retirement.
            if since.is_some_and(|since| since <= done) {
                cut.moved = Some(done);
            }
        } else if let Some(in_use) = lease.in_use_mut()
            && let Some(OldKey::Retiring { by }) = &mut in_use.old_key
        {
            *by = done + within;
        }
        self.arm(binding_id.lease_id);
    }

    /// Notes progress, also of a cut whose lease is fenced by now: the cuts behind it get its thread.
    fn cut_moves(&mut self, done: BootTime, binding_id: BindingId) {
        let expected = [State::Cutting, State::Fenced];
        if let Some(lease) = self.waiting_for(binding_id, "cut moves", &expected) {
            let kind = lease.kind;
            let moved = self.cut_moved.entry(kind).or_insert(done);
            *moved = done.max(*moved);
        }
    }

    /// Notes progress of a bind. Ignored for a lease that ends: no client waits for its bind.
    fn bind_moves(&mut self, done: BootTime, binding_id: BindingId) {
        if let Some(lease) = self.leases.get_mut(&binding_id.lease_id)
            && matches!(lease.state(), State::Binding | State::Rebinding)
            && (lease.binding_id(), lease.owed()) == (binding_id, Some(Owed::Bind))
        {
            lease.since = lease.since.map(|_| done);
            self.arm(binding_id.lease_id);
        }
    }

    fn release_moves(&mut self, done: BootTime, binding_id: BindingId) {
        let expected = [State::Releasing, State::Fenced];
        let Some(lease) = self.waiting_for(binding_id, "release moves", &expected) else {
            return;
        };
        // While the report of a bind is outstanding, the release has not been ordered yet.
        if lease.state() == State::Releasing && !lease.is_on_its_way() {
            lease.since = Some(done);
            self.arm(binding_id.lease_id);
        }
    }

    fn release_reported(
        &mut self,
        now: Now,
        binding_id: BindingId,
        outcome: Result<Proof, StepError>,
    ) {
        let expected = [State::Releasing, State::Fenced];
        let Some(lease) = self.waiting_for(binding_id, "released", &expected) else {
            return;
        };
        let outcome = outcome.map(|cleaning| {
            if let Some(end) = &mut lease.end {
                Arc::make_mut(end).cleaning = cleaning.into_steps();
            }
        });
        match (lease.state(), outcome) {
            (State::Releasing, Ok(_)) => {
                let pace = Pace::new(lease.placement.amount(), lease.cleaned_for(now));
                if lease.step(Event::Released) {
                    if let Some(of) = self.resources.get_mut(&binding_id.resource_id) {
                        of.pace = pace;
                    }
                    self.finish(now, binding_id.lease_id);
                }
            }
            (State::Releasing, Err(error)) => {
                self.fence(now, binding_id.lease_id, Event::ReleaseFailed, error);
            }
            (_fenced, Ok(_)) if lease.is_fenced_by_release() => self.released_late(now, binding_id),
            _ => self.note(Note::Stale(binding_id, "released")),
        }
    }

    /// A release that had failed is done and verified. The fence is cleared if this was the last lease behind it.
    fn released_late(&mut self, now: Now, binding_id: BindingId) {
        let Some(lease) = self.leases.get_mut(&binding_id.lease_id) else {
            return;
        };
        if !lease.step(Event::ReleasedLate) {
            return;
        }
        self.finish(now, binding_id.lease_id);
        let last = self
            .resources
            .get(&binding_id.resource_id)
            .is_some_and(|resource| {
                resource.fenced_leases.is_empty()
                    && resource
                        .fence
                        .as_ref()
                        .is_some_and(|fence| fence.by_release)
            });
        if last {
            self.unfence(
                now,
                binding_id.resource_id,
                Event::ReleasedLate,
                "late release",
            );
        } else {
            self.name_another_culprit(binding_id);
        }
    }
}
