//! Fences: leases that could not be proved clean, and their remediation.

use alloc::format;

use fabricbios_wire::{EndCause, LeaseId, Reply, ResourceId, RevokeOutcome};

use crate::{
    Asked, BindingId, Change, Condition, Event, FenceRecord, LeaseTable, Linger, Note, Now, Order,
    State, StepError, Ticket,
    ending::not_done_within,
    lease::Waiting,
    requests::Decision,
    resource::{Remediation, Resource},
    standing::{busy, check_operator, fenced, not_found},
    timers::Timer,
};

/// Fencing.
impl LeaseTable {
    /// Fences a lease that could not be proved clean: it keeps its part. [`crate::FenceScope`] says whether the
    /// resource gets new leases.
    pub(crate) fn fence(&mut self, now: Now, id: LeaseId, event: Event, reason: StepError) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let (before, binding_id) = (lease.state(), lease.binding_id());
        let fence = FenceRecord {
            resource_id: lease.resource_id,
            resource_type: lease.kind,
            lease_id: id,
            since_unix_ms: now.unix_ms,
            reason,
            by_release: event == Event::ReleaseFailed,
        };
        if !lease.step_to_fenced(event, fence.clone()) {
            return;
        }
        if lease.end.is_none() {
            lease.ends(EndCause::BindingFailed, None);
        }
        lease.end_is_certain(now, now.boot);
        // Also for a lease that was not granted: its bytes must not be given away after a crash. Written before the
        // fence, so that a crash never leaves a fence whose lease seems alive.
        let record = lease.record();
        self.journal(Change::PutLease(record));
        match before {
            State::Cutting => self.cut_is_over(now, id),
            // A cut ends access as far as possible; it does not clear the fence.
            State::Binding | State::Active | State::Rebinding => {
                self.order(Order::Cut(binding_id, Linger::None));
            }
            _ => {}
        }
        self.order(Order::Fenced(binding_id));
        self.fence_resource(fence);
        self.tell_fenced(id);
        self.arm(id);
    }

    /// Handles a condition that the store of a resource reports.
    pub(crate) fn condition_reported(&mut self, now: Now, id: ResourceId, condition: Condition) {
        if let Condition::Lost { why, leases } = &condition {
            self.lost(now, id, leases, why);
        }
        let resource = self.resources.get_mut(&id);
        if let Some(resource) = resource.filter(|it| it.condition.0 != condition) {
            match &condition {
                Condition::Partial { missing, .. } => resource.free.set_missing(missing),
                // Its leases end, and the next report says what is missing.
                Condition::Lost { .. } => {}
                _ => resource.free.set_missing(&[]),
            }
            let before = resource.condition.1;
            // A failed resource that fails for another reason keeps its fence, and the time since which it is fenced.
            let is_same = resource.failure().is_some() && matches!(condition, Condition::Failed(_));
            let since = if is_same { before } else { now.unix_ms };
            resource.condition = (condition, since);
        }
    }

    /// Fences the leases of a [`Condition::Lost`].
    fn lost(&mut self, now: Now, of: ResourceId, leases: &[LeaseId], why: &str) {
        for &id in leases {
            self.catch_up(now, id);
            if self
                .leases
                .get(&id)
                .is_some_and(|lease| lease.resource_id == of)
            {
                self.fence(now, id, Event::Lost, StepError::new("keep", why));
            }
        }
    }

    pub(crate) fn fence_resource(&mut self, fence: FenceRecord) {
        let Some(resource) = self.resources.get_mut(&fence.resource_id) else {
            return;
        };
        resource.fenced_leases.insert(fence.lease_id);
        if let Some(remediation) = &mut resource.resetting {
            remediation.fenced_again = true;
        }
        let note = Note::Fenced {
            resource_id: fence.resource_id,
            lease_id: fence.lease_id,
            reason: fence.reason.clone(),
            by_release: fence.by_release,
        };
        if resource.fence_for(fence.clone()) {
            self.journal(Change::PutFence(fence));
        }
        self.note(note);
    }

    /// If the fence of the resource names this lease, which is clean now, names another fenced lease instead.
    pub(crate) fn name_another_culprit(&mut self, clean: BindingId) {
        let Some(resource) = self.resources.get_mut(&clean.resource_id) else {
            return;
        };
        let its_fence = |id: &LeaseId| self.leases.get(id)?.fence();
        let other = resource.fenced_leases.iter().find_map(its_fence);
        let told = resource.fence.as_mut();
        let told = told.filter(|fence| fence.lease_id == clean.lease_id);
        let (Some(fence), Some(other)) = (told, other) else {
            return;
        };
        fence.lease_id = other.lease_id;
        fence.reason = other.reason.clone();
        let fence = fence.clone();
        self.journal(Change::PutFence(fence));
    }

    fn tell_fenced(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.get(&id) else {
            return;
        };
        let over = lease.over();
        self.answer_waiting(id, |waiting| match waiting {
            Waiting::Revoke => Ok(Reply::Revoked(RevokeOutcome::Fenced)),
            _ => Err(over.clone()),
        });
    }
}

/// Remediation.
impl LeaseTable {
    pub(crate) fn clear_fence(&mut self, now: Now, asked: &Asked, id: ResourceId) -> Decision {
        check_operator(asked, "clear a fence")?;
        let is_fenced = |it: &&Resource| it.fence.is_some() || it.failure().is_some();
        let Some(resource) = self.resources.get(&id).filter(is_fenced) else {
            return Err(not_found(format!("no fenced resource {id}")));
        };
        if resource.resetting.is_some() {
            return Err(busy(format!("resource {id} is being remediated already")));
        }
        let on_its_way = |id| self.leases.get(id).is_some_and(|it| it.is_on_its_way());
        if resource.fenced_leases.iter().any(on_its_way) {
            return Err(busy(format!(
                "a binding on resource {id} has not come back yet; ask again when it has"
            )));
        }
        self.start_reset(now, id, Some(asked.ticket));
        Ok(None)
    }

    pub(crate) fn start_reset(&mut self, now: Now, id: ResourceId, asker: Option<Ticket>) {
        let Some(resource) = self.resources.get_mut(&id) else {
            return;
        };
        let by = now.boot + self.policy.reset_within;
        resource.resetting = Some(Remediation {
            asker,
            by: Some(by),
            fenced_again: false,
        });
        let leases = resource.fenced_leases.iter();
        let leases = leases.filter_map(|id| self.leases.get(id));
        let leases = leases
            .map(|lease| (lease.binding_id(), lease.placement.clone()))
            .collect();
        self.patience.set(&None, Timer::Reset(id), None, Some(by));
        self.order(Order::Reset(id, leases));
    }

    /// The remediation takes too long. It goes on, and clears the fence if it succeeds. The caller has removed the timer
    /// from the queue.
    pub(crate) fn reset_is_overdue(&mut self, id: ResourceId) {
        let resource = self.resources.get_mut(&id);
        let Some(remediation) = resource.and_then(|it| it.resetting.as_mut()) else {
            return;
        };
        remediation.by = None;
        if let Some(ticket) = remediation.asker.take() {
            let limit = not_done_within(self.policy.reset_within);
            let stays = format!(
                "resource {id} stays fenced: reset: {limit}; the remediation goes on, and clears the fence if it succeeds"
            );
            self.answer(ticket, Err(fenced(stays)));
        }
    }

    /// Handles the end of a remediation: only a verified remediation clears the fence.
    pub(crate) fn reset_done(&mut self, now: Now, id: ResourceId, outcome: Result<(), StepError>) {
        let Some(resource) = self.resources.get_mut(&id) else {
            return;
        };
        let Some(remediation) = resource.resetting.take() else {
            return;
        };
        let (reset, by) = (Timer::Reset(id), remediation.by);
        self.patience.set(&None, reset, by, None);
        // The remediation began before that lease was fenced and proves nothing about it.
        let outcome = match outcome {
            Ok(()) if remediation.fenced_again => Err(StepError::new(
                "reset",
                "another lease was fenced meanwhile; clear the fence once more",
            )),
            Ok(()) => match resource.failure() {
                Some(why) => Err(StepError::new("watch health", why)),
                None => Ok(()),
            },
            failed => failed,
        };
        let answer = match outcome {
            Ok(()) => {
                self.unfence(now, id, Event::Remedied, "remediation");
                Ok(Reply::FenceCleared)
            }
            Err(error) => Err(fenced(format!("resource {id} stays fenced: {error}"))),
        };
        if let Some(ticket) = remediation.asker {
            self.answer(ticket, answer);
        }
    }

    /// Clears a fence; every lease behind it is over and clean.
    pub(crate) fn unfence(&mut self, now: Now, id: ResourceId, event: Event, by: &'static str) {
        let Some(resource) = self.resources.get_mut(&id) else {
            return;
        };
        (resource.fence, resource.whole_in_doubt) = (None, false);
        for place in core::mem::take(&mut resource.set_aside) {
            resource.free.give_back(&place);
        }
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
