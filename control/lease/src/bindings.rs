//! Results of a bind: the lease is in use, or the waiting client receives the reason of the failure.

use alloc::{boxed::Box, format, string::String};
use core::time::Duration;

use fabricbios_wire::{Answer, Binding, EndCause, LeaseId, Refusal, Reply};

use crate::{
    After, BindError, BindingId, Change, Event, LeaseTable, Note, Now, State, StepError,
    config::BIND_AGAIN_WITHIN,
    lease::{Bound, Lease, Waiting, whole_secs},
    peers::numbers,
    standing::{invalid, unavailable},
};

impl LeaseTable {
    /// Handles the result of a bind or a rotation: calls `made` or `not_made`, or fences the lease if something is
    /// left behind.
    pub(crate) fn made_or_not(
        &mut self,
        now: Now,
        binding_id: BindingId,
        outcome: Result<Binding, BindError>,
        made: fn(&mut Self, Now, BindingId, Binding),
        not_made: fn(&mut Self, Now, BindingId, &BindError),
    ) {
        let id = binding_id.lease_id;
        let outcome =
            outcome.and_then(|binding| self.of_its_kind(id, binding).map_err(BindError::Stranded));
        match outcome {
            Err(BindError::Stranded(error)) => {
                self.fence(now, id, Event::Stranded, error);
                return self.came_late(id);
            }
            Ok(binding) => made(self, now, binding_id, binding),
            Err(error) => not_made(self, now, binding_id, &error),
        }
        // The lease has no outstanding order now: a release that waited for the report can start.
        let lease = self.leases.get(&id);
        if lease.is_some_and(|lease| lease.state() == State::Releasing) {
            self.start_release(id);
        }
    }

    /// Checks that the coordinates are of the lease's kind: a path that returns others has opened something else.
    pub(crate) fn of_its_kind(&self, id: LeaseId, binding: Binding) -> Result<Binding, StepError> {
        let given = binding.kind.resource_type();
        match self.leases.get(&id).map(|lease| lease.kind) {
            Some(kind) if kind != given => Err(StepError::new(
                "read binding",
                alloc::format!("lease {id} of {kind} was given coordinates of {given}"),
            )),
            _ => Ok(binding),
        }
    }

    pub(crate) fn bound(&mut self, now: Now, binding_id: BindingId, binding: Binding) {
        let expected = [State::Binding, State::Rebinding];
        let Some(lease) = self.waiting_for(binding_id, "bound", &expected) else {
            return;
        };
        if let Some(in_use) = lease.in_use_mut() {
            in_use.older_is_gone();
        }
        lease.adoptions_failed = None;
        if lease.state() == State::Binding {
            lease.start_term(now, whole_secs(lease.term));
        }
        let generation = lease.generation;
        let pairs = numbers(&binding).len();
        lease.is_made(Box::new(Bound {
            generation,
            binding,
        }));
        self.has_queue_pairs(binding_id.lease_id, pairs);
        // The client receives the binding only after every path has acknowledged the deadline.
        self.extend(now, binding_id.lease_id);
    }

    /// Every path has acknowledged the deadline: the lease uses the binding from now on.
    pub(crate) fn use_binding(&mut self, now: Now, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let first = lease.state() == State::Binding;
        if !lease.step(Event::Bound) {
            return;
        }
        if first {
            lease.granted_at_unix_ms = now.unix_ms;
        }
        if let Some((wanted, policy)) = lease.wanted.take().map(|boxed| *boxed) {
            let note = Note::Granted {
                lease_id: id,
                tenant: String::from(&*lease.tenant),
                resource_id: lease.resource_id,
                wanted,
                effective: lease.effective,
                intent: lease.intent.clone(),
                policy,
            };
            self.note(note);
        }
        // A later binding was on record before it was made, and a change of queue pairs changes no record.
        if first {
            self.put(id);
        }
        self.settle(now, id);
    }

    /// Answers the waiting requests with the lease in its new state. A request that waits for another term goes on
    /// waiting.
    pub(crate) fn settle(&mut self, now: Now, id: LeaseId) {
        self.arm(id);
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        if lease.extends_to().is_some() {
            return;
        }
        let info = lease.info(now, true);
        self.answer_waiting(id, |_| Ok(Reply::Lease(info.clone())));
    }

    /// Answers the requests that wait for this lease.
    pub(crate) fn answer_waiting(&mut self, id: LeaseId, answer: impl Fn(Waiting) -> Answer) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let binding_id = lease.binding_id();
        for (waiting, ticket) in core::mem::take(&mut lease.waiting) {
            let answer = answer(waiting);
            let after = match waiting {
                Waiting::Grant if answer.is_ok() => After::Grant(binding_id),
                Waiting::Repeat if answer.is_ok() => After::Repeat(id),
                Waiting::Peers if answer.is_ok() => After::Nothing,
                _ => After::Journal,
            };
            self.answer_after(after, ticket, answer);
        }
    }

    pub(crate) fn not_bound(&mut self, now: Now, binding_id: BindingId, error: &BindError) {
        let expected = [State::Binding, State::Rebinding];
        let Some(lease) = self.waiting_for(binding_id, "not bound", &expected) else {
            return;
        };
        let peers_before = lease.peers_before();
        if !lease.step(Event::NotBound) {
            return;
        }
        if matches!(error, BindError::Lost(_)) {
            if let Some(in_use) = lease.in_use_mut() {
                in_use.older_is_gone();
            }
        } else if let Some(peers) = peers_before {
            lease.peers = peers;
        }
        if matches!(error, BindError::Failed(_)) {
            lease.try_again(now);
        }
        let over = lease.state() == State::Ended;
        self.recount_queue_pairs(binding_id.lease_id);
        self.refuse_binding(now, binding_id, error);
        if over {
            self.finish(now, binding_id.lease_id);
        } else {
            self.arm(binding_id.lease_id);
        }
    }

    /// Refuses the requests that waited for a binding or key, and notes the reason.
    pub(crate) fn refuse_binding(&mut self, now: Now, binding_id: BindingId, error: &BindError) {
        let Some(lease) = self.leases.get_mut(&binding_id.lease_id) else {
            return;
        };
        let mut refusal = bind_refusal(binding_id.lease_id, error);
        if lease.granted() {
            let goes_on = match lease.binding() {
                Some(_) => String::from("; what was bound before goes on"),
                None => format!(
                    "; the lease goes on without a key: {} gives it one",
                    lease.asks_for_a_key_by()
                ),
            };
            refusal.message.push_str(&goes_on);
        }
        let tenant = String::from(&*lease.tenant);
        let wanted = lease.wanted.take().map(|boxed| boxed.0);
        // A store without room for this one may have it for smaller ones.
        let is_fault = matches!(error, BindError::Failed(_) | BindError::Stranded(_));
        let is_new = wanted.is_some() && is_fault;
        self.tell_without(now, binding_id.lease_id, &refusal);
        let lease_id = Some(binding_id.lease_id);
        if let BindError::Unavailable(error)
        | BindError::Failed(error)
        | BindError::Lost(error)
        | BindError::Stranded(error) = error
        {
            self.note(Note::NotBound {
                lease_id: binding_id.lease_id,
                resource_id: binding_id.resource_id,
                tenant: tenant.clone(),
                is_new,
                error: error.clone(),
            });
        }
        self.note(Note::Refused {
            tenant,
            wanted,
            lease_id,
            refusal,
        });
    }

    /// Answers the requests that waited for a binding or key that was not made. A renewal has succeeded: its answer has
    /// the new term and the old key, or no key.
    pub(crate) fn tell_without(&mut self, now: Now, id: LeaseId, refusal: &Refusal) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let renewed = lease.info(now, true);
        self.answer_waiting(id, |waiting| match waiting {
            Waiting::Renew => Ok(Reply::Lease(renewed.clone())),
            _ => Err(refusal.clone()),
        });
    }
}

impl LeaseTable {
    /// Handles the result of [`crate::Order::Confirm`]. The lease is on record by now. If the store could not save its
    /// own data of the lease, the lease ends.
    pub(crate) fn confirmed(
        &mut self,
        now: Now,
        binding_id: BindingId,
        outcome: Result<(), StepError>,
    ) {
        let Err(error) = outcome else { return };
        let lease_id = binding_id.lease_id;
        let Some(lease) = self.leases.get(&lease_id) else {
            return;
        };
        let tenant = String::from(&*lease.tenant);
        self.note(Note::NotBound {
            lease_id,
            resource_id: binding_id.resource_id,
            tenant,
            is_new: true,
            error,
        });
        let cause = EndCause::BindingFailed;
        self.end(now, lease_id, Event::Revoke, cause, None);
    }

    /// Takes back a grant that the journal could not write. The client was refused, so the lease is cut, released and
    /// removed at once. A lease that is fenced by now keeps its record, so that no other lease gets its bytes.
    pub fn on_grant_lost(&mut self, now: Now, id: LeaseId) {
        self.now = now.boot;
        let lease = self.leases.get_mut(&id);
        let Some(lease) = lease.filter(|it| it.state() != State::Fenced) else {
            return;
        };
        lease.granted_at_unix_ms = 0;
        self.journal(Change::RemoveLease(id));
        self.end(now, id, Event::Revoke, EndCause::BindingFailed, None);
        self.fence_broken(now);
    }
}

impl Lease {
    /// Plans another bind of a lease of an earlier run: no waiting client could repeat the request, and an address or a
    /// disk may be ready only some time after a boot.
    fn try_again(&mut self, now: Now) {
        let failed = self.adoptions_failed;
        if let (Some(active), Some(failed)) = (self.active_mut(), failed) {
            let pause = Duration::from_secs(1 << failed.min(8));
            active.bind_again_at = Some(now.boot + pause.min(BIND_AGAIN_WITHIN));
            self.adoptions_failed = Some(failed + 1);
        }
    }
}

/// The refusal for a bind that failed. Details of the node's devices and paths go to its log only.
fn bind_refusal(id: LeaseId, error: &BindError) -> Refusal {
    match error {
        BindError::Refused(error) => invalid(format!("{error}")),
        BindError::Unavailable(error) => {
            unavailable(format!("{error}; try again later or elsewhere"))
        }
        BindError::Failed(error) | BindError::Lost(error) | BindError::Stranded(error) => {
            unavailable(format!(
                "the node could not do `{}` for lease {id}: what the lease is made of is full, broken or not ready; try again \
                 later or elsewhere, the node's log says what is wrong",
                error.step
            ))
        }
        BindError::Cancelled => unavailable("the binding was taken back while it was being made"),
    }
}
