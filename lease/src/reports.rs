//! What the backends report. A report about a binding that is not the lease's current one, or that
//! no longer fits its state, changes nothing: it is noted and dropped.

use alloc::{boxed::Box, string::String};

use fabricbios_wire::{Binding, LeaseError, LeaseId, LeasePhase, Refusal, RefusalClass, Reply};

use crate::{
    BindError, Event, LeaseTable, Note, Now, Order, Report, State, StepError, Tag,
    lease::{Lease, Outstanding, Waiting, whole_secs},
};

impl LeaseTable {
    /// Takes in what came of an order. Whatever fell due before `now` has happened before it.
    pub fn on_report(&mut self, now: Now, report: Report) {
        self.on_tick(now);
        match report {
            Report::Bind(tag, outcome) => {
                if self.was_outstanding(tag, Outstanding::Bind) {
                    self.bind_reported(now, tag, outcome);
                }
            }
            Report::Rotate(tag, outcome) => {
                if self.was_outstanding(tag, Outstanding::Rotation) {
                    self.rotate_reported(now, tag, outcome);
                }
            }
            Report::RetireKey(tag, outcome) => self.retire_reported(now, tag, outcome),
            Report::Cut(tag, outcome) => self.cut_reported(now, tag, outcome),
            Report::CutMoves(tag) => self.cut_moves(now, tag),
            Report::ReleaseProgress(tag) => self.release_moves(now, tag),
            Report::Release(tag, outcome) => self.release_reported(now, tag, outcome),
            Report::Reset(id, outcome) => self.reset_done(now, id, outcome),
        }
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
        self.arrived(&name);
        true
    }

    /// Nothing is on its way for this lease any more: a release that waited for that can start.
    pub(crate) fn release_if_waiting(&mut self, now: Now, tag: Tag) {
        let lease = self.leases.get(&tag.lease_id);
        if lease.is_some_and(|lease| lease.state == State::Releasing) {
            self.start_release(now, tag.lease_id);
        }
    }

    fn bind_reported(&mut self, now: Now, tag: Tag, outcome: Result<Binding, BindError>) {
        match outcome {
            Err(BindError::Stranded(error)) => {
                return self.fence(now, tag.lease_id, Event::Stranded, error);
            }
            Ok(binding) => self.bound(now, tag, binding),
            Err(error) => self.not_bound(now, tag, &error),
        }
        self.release_if_waiting(now, tag);
    }

    fn bound(&mut self, now: Now, tag: Tag, binding: Binding) {
        let expected = [State::Binding, State::Rebinding];
        let Some(lease) = self.waiting_for(tag, "bound", &expected) else {
            return;
        };
        let first = lease.state == State::Binding;
        if !lease.step(Event::Bound) {
            return;
        }
        lease.binding = Some(Box::new(binding));
        lease.bound_before = false;
        if first {
            lease.granted_at_unix_ms = now.unix_ms;
            lease.start_term(now, whole_secs(lease.term));
            self.note_grant(tag.lease_id);
        }
        self.extend(tag.lease_id);
        self.settle(now, tag.lease_id);
    }

    /// Every road learns until when, before anybody is told.
    pub(crate) fn extend(&mut self, id: LeaseId) {
        if let Some(lease) = self.leases.get(&id) {
            let order = Order::Extend(lease.tag(), lease.deadline);
            self.order(order);
        }
    }

    fn note_grant(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let Some((wanted, policy)) = lease.wanted.take().map(|boxed| *boxed) else {
            return;
        };
        let note = Note::Granted {
            lease_id: id,
            tenant: String::from(&*lease.tenant),
            resource_id: lease.resource_id,
            wanted,
            effective: lease.effective,
            policy,
        };
        self.note(note);
    }

    /// Active with what it now has: written down, told to who waited for it.
    pub(crate) fn settle(&mut self, now: Now, id: LeaseId) {
        self.put(id);
        self.arm(id);
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let info = lease.info(now, true);
        for waiting in core::mem::take(&mut lease.waiting) {
            match waiting {
                Waiting::Grant(ticket) | Waiting::Rebind(ticket) | Waiting::Renew(ticket) => {
                    self.answer(ticket, Ok(Reply::Lease(info.clone())));
                }
                // Who waits for the end is put on the list when the end has begun.
                Waiting::Free(_) | Waiting::Revoke(_) => {}
            }
        }
    }

    fn not_bound(&mut self, now: Now, tag: Tag, error: &BindError) {
        let expected = [State::Binding, State::Rebinding];
        let Some(lease) = self.waiting_for(tag, "not bound", &expected) else {
            return;
        };
        if !lease.step(Event::NotBound) {
            return;
        }
        // The old binding was cut before the new one was tried.
        lease.binding = None;
        let over = lease.state == State::Ended;
        self.refuse_binding(now, tag, error);
        if over {
            self.finish(now, tag.lease_id);
        } else {
            self.put(tag.lease_id);
            self.arm(tag.lease_id);
        }
    }

    /// Tells who waited for a binding or key that there is none.
    pub(crate) fn refuse_binding(&mut self, now: Now, tag: Tag, error: &BindError) {
        let Some(lease) = self.leases.get_mut(&tag.lease_id) else {
            return;
        };
        let mut refusal = bind_refusal(error);
        if lease.granted() && lease.binding.is_none() {
            let by = lease.asks_for_a_key_by();
            let goes_on = alloc::format!("; the lease goes on without a key: {by} gives it one");
            refusal.message.push_str(&goes_on);
        }
        let tenant = String::from(&*lease.tenant);
        let wanted = lease.wanted.take().map(|boxed| boxed.0);
        self.tell_without(now, tag.lease_id, &refusal);
        let lease_id = Some(tag.lease_id);
        self.note(Note::Refused {
            tenant,
            wanted,
            lease_id,
            refusal,
        });
    }

    /// Answers who waited for a binding or key that there is none. Who renewed has his term and is
    /// told so: with the key before, or with none.
    pub(crate) fn tell_without(&mut self, now: Now, id: LeaseId, refusal: &Refusal) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let waiting = core::mem::take(&mut lease.waiting);
        let renewed = lease.info(now, true);
        for waiting in waiting {
            match waiting {
                Waiting::Grant(ticket) | Waiting::Rebind(ticket) => {
                    self.answer(ticket, Err(refusal.clone()));
                }
                Waiting::Renew(ticket) => {
                    self.answer(ticket, Ok(Reply::Lease(renewed.clone())));
                }
                Waiting::Free(_) | Waiting::Revoke(_) => {}
            }
        }
    }

    fn cut_reported(&mut self, now: Now, tag: Tag, outcome: Result<String, StepError>) {
        let Some(lease) = self.waiting_for(tag, "cut", &[State::Cutting]) else {
            return;
        };
        let proof = match outcome {
            Ok(proof) => proof,
            Err(error) => return self.fence(now, tag.lease_id, Event::CutFailed, error),
        };
        let note = Note::Cut {
            tag,
            phase: lease.ending,
            took: lease.since.until(now.boot),
            after_deadline: (lease.ending == LeasePhase::Expired)
                .then(|| lease.deadline.until(now.boot)),
            proof,
        };
        let keep = lease.ending == LeasePhase::Expired && lease.grace_ends() > now.boot;
        let event = if keep {
            Event::CutProvedKeep
        } else {
            Event::CutProved
        };
        if !lease.step(event) {
            return;
        }
        self.cutting -= 1;
        self.note(note);
        self.tell_ended(now, tag.lease_id);
        if keep {
            self.arm(tag.lease_id);
        } else {
            self.start_release(now, tag.lease_id);
        }
    }

    /// Also of a lease that is fenced by now: the one behind it has a thread more.
    fn cut_moves(&mut self, now: Now, tag: Tag) {
        let expected = [State::Cutting, State::Fenced];
        if let Some(lease) = self.waiting_for(tag, "cut moves", &expected) {
            let kind = lease.kind;
            self.cut_moved.insert(kind, now.boot);
        }
    }

    fn release_moves(&mut self, now: Now, tag: Tag) {
        let expected = [State::Releasing, State::Fenced];
        let Some(lease) = self.waiting_for(tag, "release moves", &expected) else {
            return;
        };
        // A release that waits for a bind to come back has not been ordered yet.
        if lease.state == State::Releasing && lease.outstanding.is_none() {
            lease.since = now.boot;
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

/// Whose fault it is that there is no binding.
fn bind_refusal(error: &BindError) -> Refusal {
    let (code, class, message) = match error {
        BindError::Refused(error) => (
            LeaseError::InvalidArgs,
            RefusalClass::Permanent,
            alloc::format!("{error}"),
        ),
        BindError::Failed(error) | BindError::Stranded(error) => (
            LeaseError::Internal,
            RefusalClass::Transient,
            alloc::format!("{error}"),
        ),
        BindError::Cancelled => (
            LeaseError::Unavailable,
            RefusalClass::Transient,
            String::from("the binding was taken back while it was being made"),
        ),
    };
    Refusal::new(code, class, message)
}
