//! A new deadline: an order to every path, and the step that waits for the acknowledgement.
//!
//! The old deadline is in force until every path has acknowledged the new one. Then the client is answered, or the next
//! step is taken. If a path has cut the binding already, it refuses, and the lease ends. If the acknowledgement does
//! not come in time, the lease keeps its old deadline, and the client receives that answer.

use alloc::format;
use core::time::Duration;

use fabricbios_wire::{EndCause, LeaseId};

use crate::{
    AlreadyCut, BindError, BindingId, BootTime, Event, LeaseTable, Note, Now, Order, State,
    StepError, ending::not_done_within, standing::unavailable,
};

/// Overlap of a rotation that a renewal causes. The client learns the new key from the answer, so the overlap covers
/// its requests in flight.
const RENEWAL_OVERLAP: Duration = Duration::from_secs(5);

impl LeaseTable {
    /// Orders the deadline that the stage of the lease waits for.
    pub(crate) fn extend(&mut self, now: Now, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.since = Some(now.boot);
        let to = lease.extends_to();
        if let Some(order) = to.map(|to| Order::Extend(lease.binding_id(), to)) {
            self.order(order);
        }
        self.arm(id);
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
        let Some(lease) = lease.filter(|it| it.extends_to() == Some(to)) else {
            return self.note(Note::Stale(binding_id, "extended"));
        };
        // A lease that has lost its binding is renewed without one: no path is open.
        let is_bound = lease.state() != State::Active || lease.binding().is_some();
        if let Err(cut) = outcome
            && is_bound
        {
            let (id, error) = (binding_id.lease_id, StepError::new("extend", cut));
            self.note(Note::NotExtended(binding_id, error));
            return self.end(now, id, Event::Revoke, EndCause::BindingFailed, None);
        }
        let renewal = lease.active_mut().and_then(|it| it.renewal.take());
        if let Some(renewal) = renewal {
            if !lease.step(Event::Renew) {
                return;
            }
            lease.set_term(renewal.secs, to, renewal.expires_at_unix_ms);
            // The overlap ends before the next renewal, also for a short term.
            let overlap = RENEWAL_OVERLAP.min(lease.term / 2);
            if renewal.rotates && lease.step(Event::Rebind) {
                self.rotate_now(now, binding_id, overlap);
            } else {
                self.put(binding_id.lease_id);
                self.settle(now, binding_id.lease_id);
            }
        } else if lease.is_on_its_way() {
            self.order_bind(now, binding_id.lease_id);
        } else {
            self.use_binding(now, binding_id.lease_id);
        }
        // The term may be over by now.
        self.catch_up(now, binding_id.lease_id);
    }

    /// The acknowledgement did not come in time.
    pub(crate) fn extension_is_overdue(&mut self, now: Now, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let binding_id = lease.binding_id();
        let error = StepError::new("extend", not_done_within(self.policy.extend_within));
        match lease.state() {
            State::Active => {
                if let Some(active) = lease.active_mut() {
                    active.renewal = None;
                }
                self.note(Note::NotExtended(binding_id, error));
                let refusal = unavailable(format!(
                    "the node could not renew lease {id}: a path did not answer; the lease goes on until the deadline \
                     that it had, ask again"
                ));
                self.answer_waiting(id, |_| Err(refusal.clone()));
                self.arm(id);
            }
            State::Binding => self.end(now, id, Event::Revoke, EndCause::BindingFailed, None),
            // A change of queue pairs leaves the binding in use.
            _ if lease.is_on_its_way() || lease.binding().is_some() => {
                self.not_bound(now, binding_id, &BindError::Failed(error));
            }
            // The old binding was cut for the new one.
            _ => self.not_bound(now, binding_id, &BindError::Lost(error)),
        }
    }
}
