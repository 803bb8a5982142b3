//! What the backends report. A report about a binding that is not the lease's current one, or that
//! no longer fits its state, changes nothing: it is noted and dropped.

use fabricbios_wire::EndCause;

use crate::{
    BootTime, Event, LeaseTable, Note, Now, Proof, Report, State, StepError, Tag,
    lease::{Lease, OldKey, Outstanding},
};

impl LeaseTable {
    /// Takes in what came of an order, which was `done` at that time. What fell due of its lease has happened
    /// before it.
    pub fn on_report(&mut self, now: Now, done: BootTime, report: Report) {
        if let Some(id) = report.lease_id() {
            self.catch_up(now, id);
        }
        match report {
            Report::Bind(tag, outcome) => {
                if self.was_outstanding(tag, Outstanding::Bind) {
                    self.made_or_not(now, tag, outcome, Self::bound, Self::not_bound);
                }
            }
            Report::BindProgress(tag) => self.bind_moves(done, tag),
            Report::Extended(tag, deadline, outcome) => self.extended(now, tag, deadline, outcome),
            Report::Confirmed(tag, outcome) => self.confirmed(now, tag, outcome),
            Report::Rotate(tag, outcome) => {
                if self.was_outstanding(tag, Outstanding::Rotation) {
                    self.made_or_not(now, tag, outcome, Self::rotated, Self::not_rotated);
                }
            }
            Report::RetireKey(tag, outcome) => self.retire_reported(now, tag, outcome),
            Report::EndBegan(tag) => self.end_began(done, tag),
            Report::CutMoves(tag) => self.cut_moves(done, tag),
            Report::Cut(tag, outcome) => self.cut_reported(now, done, tag, outcome),
            Report::ReleaseProgress(tag) => self.release_moves(done, tag),
            Report::Release(tag, outcome) => self.release_reported(now, tag, outcome),
            Report::Reset(id, outcome) => self.reset_done(now, id, outcome),
            Report::Condition(..) => {}
        }
        self.fence_broken(now);
    }

    /// The lease that the report is about, if it is in one of the states that wait for it.
    pub(crate) fn waiting_for(
        &mut self,
        tag: Tag,
        what: &'static str,
        states: &[State],
    ) -> Option<&mut Lease> {
        let fits = self
            .leases
            .get(&tag.lease_id)
            .is_some_and(|lease| lease.tag() == tag && states.contains(&lease.state));
        if !fits {
            self.note(Note::Stale(tag, what));
            return None;
        }
        self.leases.get_mut(&tag.lease_id)
    }

    /// Whether this is the report that the lease is owed. The same one twice is none.
    fn was_outstanding(&mut self, tag: Tag, what: Outstanding) -> bool {
        let lease = self.leases.get_mut(&tag.lease_id);
        let lease = lease.filter(|lease| lease.tag() == tag);
        let owed = lease.and_then(|lease| {
            let owed = lease.outstanding.take_if(|it| *it == what);
            owed.map(|_| lease.tenant.clone())
        });
        let Some(name) = owed else {
            self.note(Note::Stale(tag, "bound or rotated"));
            return false;
        };
        self.arrived(tag.lease_id, &name);
        true
    }

    /// Nothing is on its way for this lease any more: a release that waited for that can start.
    pub(crate) fn release_if_waiting(&mut self, now: Now, tag: Tag) {
        let lease = self.leases.get(&tag.lease_id);
        if lease.is_some_and(|lease| lease.state == State::Releasing) {
            self.start_release(now, tag.lease_id);
        }
    }

    fn cut_reported(
        &mut self,
        now: Now,
        done: BootTime,
        tag: Tag,
        outcome: Result<Proof, StepError>,
    ) {
        let Some(lease) = self.waiting_for(tag, "cut", &[State::Cutting]) else {
            return;
        };
        let proof = match outcome {
            Ok(proof) => proof,
            Err(error) => return self.fence(now, tag.lease_id, Event::CutFailed, error),
        };
        let cause = lease
            .end
            .as_ref()
            .map_or(EndCause::Revoked, |end| end.cause);
        let note = Note::Cut {
            tag,
            cause,
            took: lease.since.until(done),
            after_deadline: (cause == EndCause::Expired).then(|| lease.deadline.until(done)),
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
        lease.may_be_open = false;
        if let Some(end) = &mut lease.end {
            end.proof = proof.into_steps();
        }
        if !keep {
            lease.end_is_certain(now, done);
        }
        self.cut_is_over(now, tag.lease_id);
        self.note(note);
        self.tell_ended(now, tag.lease_id);
        if keep {
            self.arm(tag.lease_id);
        } else {
            self.start_release(now, tag.lease_id);
        }
    }

    /// From here on it must come to an end.
    fn end_began(&mut self, done: BootTime, tag: Tag) {
        let by = done + self.policy.cut_within;
        let expected = [State::Cutting, State::Active, State::Rebinding];
        let Some(lease) = self.waiting_for(tag, "end began", &expected) else {
            return;
        };
        match &mut lease.old_key {
            _ if lease.state == State::Cutting => lease.cut_moved = Some(done),
            Some(OldKey::Retiring { by: old }) => *old = by,
            _ => {}
        }
        self.arm(tag.lease_id);
    }

    /// Also of a lease that is fenced by now: the one behind it has a thread more.
    fn cut_moves(&mut self, done: BootTime, tag: Tag) {
        let expected = [State::Cutting, State::Fenced];
        if let Some(lease) = self.waiting_for(tag, "cut moves", &expected) {
            let kind = lease.kind;
            let moved = self.cut_moved.entry(kind).or_insert(done);
            *moved = done.max(*moved);
        }
    }

    /// One that is being cut or waits for its release goes on making its bytes clean, and nobody waits for it.
    fn bind_moves(&mut self, done: BootTime, tag: Tag) {
        let moves = |lease: &&mut Lease| {
            let waits = matches!(lease.state, State::Binding | State::Rebinding);
            lease.tag() == tag && waits && lease.outstanding == Some(Outstanding::Bind)
        };
        if let Some(lease) = self.leases.get_mut(&tag.lease_id).filter(moves) {
            lease.since = done;
            self.arm(tag.lease_id);
        }
    }

    fn release_moves(&mut self, done: BootTime, tag: Tag) {
        let expected = [State::Releasing, State::Fenced];
        let Some(lease) = self.waiting_for(tag, "release moves", &expected) else {
            return;
        };
        // A release that waits for a bind to come back has not been ordered yet.
        if lease.state == State::Releasing && lease.outstanding.is_none() {
            lease.since = done;
            lease.release_began = true;
            self.arm(tag.lease_id);
        }
    }

    fn release_reported(&mut self, now: Now, tag: Tag, outcome: Result<(), StepError>) {
        let expected = [State::Releasing, State::Fenced];
        let Some(lease) = self.waiting_for(tag, "released", &expected) else {
            return;
        };
        match (lease.state, outcome) {
            (State::Releasing, Ok(())) => {
                if lease.step(Event::Released) {
                    self.finish(now, tag.lease_id);
                }
            }
            (State::Releasing, Err(error)) => {
                self.fence(now, tag.lease_id, Event::ReleaseFailed, error);
            }
            (_fenced, Ok(())) if lease.fenced_by_release => self.released_late(now, tag),
            _ => self.note(Note::Stale(tag, "released")),
        }
    }

    /// The release that had fenced ended after all, and verified. The fence goes when this was the
    /// last lease behind it.
    fn released_late(&mut self, now: Now, tag: Tag) {
        let Some(lease) = self.leases.get_mut(&tag.lease_id) else {
            return;
        };
        if !lease.step(Event::ReleasedLate) {
            return;
        }
        self.finish(now, tag.lease_id);
        let last = self
            .resources
            .get(&tag.resource_id)
            .is_some_and(|resource| {
                resource.fenced_leases.is_empty()
                    && resource
                        .fence
                        .as_ref()
                        .is_some_and(|fence| fence.by_release)
            });
        if last {
            self.unfence(now, tag.resource_id, Event::ReleasedLate, "late release");
        } else {
            self.name_another_culprit(tag);
        }
    }
}
