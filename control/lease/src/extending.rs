//! A new deadline: an order to every path, and the step that waits for the acknowledgement.
//!
//! The old deadline is in force until every path has acknowledged the new one. Then the client is answered, or the next
//! step is taken. If a path has cut the binding already, it refuses, and the lease ends. If the acknowledgement does
//! not come in time, the lease keeps its old deadline, and the client receives that answer.

use alloc::{boxed::Box, format};
use core::time::Duration;

use fabricbios_wire::{Binding, EndCause, LeaseId};

use crate::{
    AlreadyCut, BindError, BindingId, BootTime, Event, LeaseTable, Note, Now, Order, State,
    StepError,
    ending::not_done_within,
    lease::{Outstanding, Waiting},
    standing::unavailable,
};

/// Overlap of a rotation that a renewal causes. The client learns the new key from the answer, so the overlap covers
/// its requests in flight.
const RENEWAL_OVERLAP: Duration = Duration::from_secs(5);

/// A deadline that is ordered and not acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Extending {
    pub(crate) to: BootTime,
    pub(crate) then: Then,
}

/// The step that waits for the acknowledgement.
#[derive(Clone, Debug)]
pub(crate) enum Then {
    /// The lease gets another term, and another key if it rotates.
    Renew {
        secs: u32,
        expires_at_unix_ms: u64,
        rotates: bool,
    },
    /// The next binding is ordered. Every path knows its deadline before it opens, so that it closes even if this
    /// process dies.
    Bind,
    /// The client receives the binding.
    Tell(Box<Binding>),
}

impl LeaseTable {
    pub(crate) fn extend(&mut self, now: Now, id: LeaseId, to: BootTime, then: Then) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.since = now.boot;
        lease.extending = Some(Box::new(Extending { to, then }));
        let order = Order::Extend(lease.binding_id(), to);
        self.order(order);
        self.arm(id);
    }

    /// Drops the step that waits for the acknowledgement; a bind that waited is not outstanding any more.
    pub(crate) fn stop_extending(&mut self, id: LeaseId) -> Option<Then> {
        let lease = self.leases.get_mut(&id)?;
        let then = lease.extending.take()?.then;
        let term = lease.outstanding.take_if(|it| *it == Outstanding::Term);
        if term.is_some() {
            let name = lease.tenant.clone();
            self.arrived(id, &name);
        }
        Some(then)
    }

    pub(crate) fn extended(
        &mut self,
        now: Now,
        binding_id: BindingId,
        to: BootTime,
        outcome: Result<(), AlreadyCut>,
    ) {
        let lease = self.leases.get_mut(&binding_id.lease_id);
        let lease = lease.filter(|lease| lease.binding_id() == binding_id);
        let Some(lease) = lease.filter(|it| it.extending.as_ref().is_some_and(|it| it.to == to))
        else {
            return self.note(Note::Stale(binding_id, "extended"));
        };
        let then = lease.extending.as_ref().map(|it| &it.then);
        let renews = matches!(then, Some(Then::Renew { .. }));
        // A lease that has lost its binding is renewed without one: no path is open.
        let is_bound = lease.binding.is_some() || !renews;
        if let Err(cut) = outcome
            && is_bound
        {
            let (id, error) = (binding_id.lease_id, StepError::new("extend", cut));
            self.note(Note::NotExtended(binding_id, error));
            return self.end(now, id, Event::Revoke, EndCause::BindingFailed, None);
        }
        match lease.extending.take().map(|it| it.then) {
            Some(Then::Renew {
                secs,
                expires_at_unix_ms,
                rotates,
            }) => {
                if !lease.step(Event::Renew) {
                    return;
                }
                lease.set_term(secs, to, expires_at_unix_ms);
                // The overlap ends before the next renewal, also for a short term.
                let overlap = RENEWAL_OVERLAP.min(lease.term / 2);
                if rotates && lease.step(Event::Rebind) {
                    self.rotate_now(now, binding_id, overlap);
                } else {
                    self.settle(now, binding_id.lease_id);
                }
            }
            Some(Then::Bind) => self.order_bind(now, binding_id.lease_id),
            Some(Then::Tell(binding)) => self.use_binding(now, binding_id.lease_id, binding),
            None => {}
        }
        // The term may be over by now.
        self.catch_up(now, binding_id.lease_id);
    }

    /// The acknowledgement did not come in time.
    pub(crate) fn extension_is_overdue(&mut self, now: Now, id: LeaseId) {
        let Some(then) = self.stop_extending(id) else {
            return;
        };
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let binding_id = lease.binding_id();
        let error = StepError::new("extend", not_done_within(self.policy.extend_within));
        match then {
            Then::Renew { .. } => {
                let waiting = core::mem::take(&mut lease.waiting);
                self.note(Note::NotExtended(binding_id, error));
                for waiting in waiting {
                    if let Waiting::Renew(ticket) = waiting {
                        let refusal = unavailable(format!(
                            "the node could not renew lease {id}: a path did not answer; the lease goes on until the \
                             deadline that it had, ask again"
                        ));
                        self.answer(ticket, Err(refusal));
                    }
                }
                self.arm(id);
            }
            Then::Bind => self.not_bound(now, binding_id, &BindError::Failed(error)),
            Then::Tell(_) if lease.state == State::Binding => {
                self.end(now, id, Event::Revoke, EndCause::BindingFailed, None);
            }
            // The old binding was cut for the new one.
            Then::Tell(_) => self.not_bound(now, binding_id, &BindError::Lost(error)),
        }
    }
}
