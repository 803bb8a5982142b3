//! Leases and fences of an earlier run.
//!
//! A lease goes on if its bytes and its transport survive the process: it is *adopted*, with a new binding and its
//! old deadline. All other leases end. If their resource ended with the process, they are over at once. If it
//! survives, they are cut and released like any other, and keep their bytes until then. A fenced lease stays fenced
//! and keeps its bytes until a remediation has verified them.
//!
//! At start, in this order: [`LeaseTable::offer`] for every resource, [`LeaseTable::restore_lease`] for every lease
//! on record, [`LeaseTable::restore_fence`] for every fence. Then every part that [`LeaseTable::holders`] does not
//! name is removed and scrubbed, or [`LeaseTable::restore_stray`] fences it; only after that the node advertises. The driver calls [`LeaseTable::on_start`] when
//! orders can be carried out.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::time::Duration;

use fabricbios_wire::{EndCause, LeaseEnd, LeaseId, LeasePhase, ResourceId, Transport};

use crate::{
    BindingId, BootTime, Change, EarlierRun, Event, FenceRecord, LeaseRecord, LeaseTable, Linger,
    Note, Now, Order, Placement, State, StepError,
    config::RESTORED_CUTS_AT_ONCE,
    lease::Lease,
    recovery::{Held, RecoveryDecision, secs},
};

impl LeaseTable {
    /// Takes up a lease of an earlier run.
    ///
    /// With [`crate::Durability::Process`], a lease over UDP or both transports without an end on record is adopted
    /// on the same boot: before its deadline it gets a new binding, in its grace time its bytes are kept, afterwards
    /// it is Expired. Every other live lease is Revoked.
    ///
    /// With [`crate::Durability::Boot`], each lease is adopted on the same boot or cut and released; on another boot
    /// it is over.
    ///
    /// With [`crate::Durability::Machine`], a lease over any transport that is still offered is adopted, also on
    /// another boot. There the wall clock gives the rest of the term (the time off counts), if that clock is trusted,
    /// is not before the grant, and leaves no more than a term. In the grace time of a lease its bytes are kept once a
    /// cut is proved, since the earlier run may have died between the deadline and its cut. A term that ended before
    /// this boot counts as ended at the start of this run, so that the bytes are kept somewhat longer. Every other
    /// lease that holds a part is cut and released, also a lease whose end was reported already: its phase stays.
    ///
    /// If the part of a lease is gone, because the resource shrank, or belongs to another lease, the lease is over,
    /// with a note, and the bytes are not touched. Its remaining access is removed with all parts that no lease holds.
    pub fn restore_lease(&mut self, now: Now, record: LeaseRecord, run: EarlierRun) {
        self.now = now.boot;
        match self.recovery_decision(now, &record, run) {
            RecoveryDecision::Over(phase) => {
                let is_news = record.ended.is_none();
                let cause = cause_of(phase);
                self.restore_ended(now, &record, phase, cause, is_news);
            }
            RecoveryDecision::Holds(held, placement) => {
                if self.take(record.resource_id, &placement) {
                    self.restore_holder(now, &record, held, placement);
                } else {
                    self.note(Note::Displaced {
                        lease_id: record.lease_id,
                        resource_id: record.resource_id,
                        placement,
                    });
                    let phase = held.displaced();
                    self.restore_ended(now, &record, phase, EndCause::Displaced, true);
                }
            }
        }
    }

    /// Takes up a fence of an earlier run. With `reverify` the remediation starts at once: the machine was rebooted
    /// since, and the fenced objects were in the kernel only.
    pub fn restore_fence(&mut self, now: Now, fence: FenceRecord, reverify: bool) {
        self.now = now.boot;
        let Some(resource) = self.resources.get_mut(&fence.resource_id) else {
            return;
        };
        let (id, culprit) = (resource.id, self.leases.get_mut(&fence.lease_id));
        match culprit {
            Some(lease) => {
                let its_fence = FenceRecord {
                    by_release: lease.is_fenced_by_release(),
                    ..fence.clone()
                };
                let is_alive = !lease.step_to_fenced(Event::FoundFenced, its_fence);
                resource.whole_in_doubt |= is_alive && !fence.by_release;
            }
            // Nobody knows its part.
            None => {
                resource.fenced_leases.insert(fence.lease_id);
                resource.whole_in_doubt |= !fence.by_release;
            }
        }
        // A fence by a failed cut stands, also if a crash came before it was written down.
        let found_graver = resource
            .fence
            .as_ref()
            .is_some_and(|found| !found.by_release);
        if !(found_graver && fence.by_release) {
            resource.fence = Some(fence);
        }
        // Orders are not carried out yet: a remediation that was ordered earlier in this start covers this fence too.
        if reverify && resource.resetting.is_none() {
            self.start_reset(now, id, None);
        }
    }

    /// Takes up the fence of a stray, as [`LeaseTable::restore_fence`] does with `reverify`. No lease gets the part in
    /// which its store has the stray, until the fence is cleared: the store would refuse each. If a lease has the part,
    /// or some of it, the lease keeps it.
    pub fn restore_stray(&mut self, now: Now, fence: FenceRecord, part: Option<Placement>) {
        let resource = self.resources.get_mut(&fence.resource_id);
        if let (Some(resource), Some(part)) = (resource, part)
            && resource.free.take_this(&part)
        {
            resource.set_aside.push(part);
        }
        self.restore_fence(now, fence, true);
    }

    /// The parts of a resource that leases hold: live, ending and fenced leases. Only the remediation touches the
    /// bytes of fenced leases. All other parts are free.
    pub fn holders(
        &self,
        resource_id: ResourceId,
    ) -> impl Iterator<Item = (BindingId, &Placement)> + '_ {
        self.leases_of(resource_id)
            .map(|lease| (lease.binding_id(), &lease.placement))
    }

    /// Leases of the resource that a client may still reach, with deadline and transport: adopted leases, and leases
    /// whose cut is not proved yet.
    pub fn reachable(
        &self,
        resource_id: ResourceId,
    ) -> impl Iterator<Item = (BindingId, BootTime, Option<Transport>)> + '_ {
        let its = self.leases_of(resource_id);
        let its = its.filter(|lease| lease.may_be_reachable());
        its.map(|lease| {
            (
                lease.binding_id(),
                lease.deadline,
                lease.effective.transport,
            )
        })
    }

    /// Leases that are fenced by a failed release alone: a late release clears the fence.
    pub fn unreleased(
        &self,
        resource_id: ResourceId,
    ) -> impl Iterator<Item = (BindingId, &Placement)> + '_ {
        let its = self.leases_of(resource_id);
        let its = its.filter(|lease| lease.is_fenced_by_release());
        its.map(|lease| (lease.binding_id(), &lease.placement))
    }

    fn leases_of(&self, id: ResourceId) -> impl Iterator<Item = &Lease> + '_ {
        let leases = self.leases.values().map(|lease| &**lease);
        leases.filter(move |lease| lease.resource_id == id)
    }

    fn take(&mut self, id: ResourceId, placement: &Placement) -> bool {
        let resource = self.resources.get_mut(&id);
        resource.is_some_and(|resource| resource.free.take_this(placement))
    }

    fn restore_ended(
        &mut self,
        now: Now,
        record: &LeaseRecord,
        phase: LeasePhase,
        cause: EndCause,
        is_news: bool,
    ) {
        let end = known_end(record).unwrap_or_else(|| ended_for(cause, now.unix_ms));
        let over_for_ms = now.unix_ms.saturating_sub(end.at_unix_ms);
        let told = LeaseRecord {
            tenant: self.tenant_name(&record.tenant),
            end: Some(end),
            ..record.clone()
        };
        let ended = told.clone().over(phase);
        // Otherwise the next start on this boot would give it its part again, which another lease may have by then.
        let would_stay = { self.resources.get(&record.resource_id) }
            .is_some_and(|resource| resource.durability.leases_stay());
        if is_news || (would_stay && record.placement.is_some()) {
            self.journal(Change::PutLease(ended.clone()));
        }
        if is_news {
            self.note(Note::Ended {
                phase,
                record: Box::new(told),
                cut: None,
            });
        }
        self.remember(now, Duration::from_millis(over_for_ms), phase, ended);
    }

    /// Restores a lease whose part is taken already.
    fn restore_holder(&mut self, now: Now, record: &LeaseRecord, held: Held, placement: Placement) {
        let id = record.lease_id;
        let tenant = self.tenant_name(&record.tenant);
        let cut_within = self.cut_within(record.resource_id);
        let resource = self.resources.get(&record.resource_id);
        let stays = resource.is_some_and(|resource| resource.durability.leases_stay());
        let (of, kind) = (record.resource_id, record.resource_type);
        let mut lease = Lease::new(now, id, tenant, of, kind, placement);
        lease.restore(now, record, held, stays);
        lease.cut_within = cut_within;
        lease.queue_pairs = lease.queue_pairs_at_first();
        let state = lease.state();
        self.lives(lease);
        match state {
            State::Fenced => self.restore_fenced(id),
            State::Cutting => self.cut_once_more(now, id),
            State::Grace => {}
            _ => self.bind_anew(now, id),
        }
        self.arm(id);
        self.fence_broken(now);
        if state != State::Fenced {
            self.note(Note::Adopted {
                lease_id: id,
                state,
            });
        }
    }

    /// Orders another cut of a lease, which is written down with the clock of this boot.
    fn cut_once_more(&mut self, now: Now, id: LeaseId) {
        self.put(id);
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.since = None;
        if lease.is_told_over() {
            self.cut_later.push_back(id);
        } else {
            self.cut_later.push_front(id);
        }
        self.order_later_cuts(now);
    }

    /// Orders cuts of leases of an earlier run, up to the limit. They need no linger: this run has no client yet.
    fn order_later_cuts(&mut self, now: Now) {
        while self.cut_now.len() < RESTORED_CUTS_AT_ONCE
            && let Some(id) = self.cut_later.pop_front()
        {
            let Some(lease) = self.leases.get_mut(&id) else {
                continue;
            };
            lease.since = Some(now.boot);
            let order = Order::Cut(lease.binding_id(), Linger::None);
            self.cut_now.insert(id);
            self.order(order);
            self.arm(id);
        }
    }

    /// Counts a cut as done and orders the next one.
    pub(crate) fn cut_is_over(&mut self, now: Now, id: LeaseId) {
        if self.cut_now.remove(&id) {
            self.order_later_cuts(now);
        }
    }

    /// Starts the time limits of providers: the node can carry out orders from now on.
    pub fn on_start(&mut self, now: Now) {
        self.now = now.boot;
        let ids: Vec<LeaseId> = self.leases.keys().copied().collect();
        for id in ids {
            if let Some(lease) = self.leases.get_mut(&id)
                && matches!(lease.state(), State::Cutting | State::Rebinding)
            {
                lease.since = lease.since.map(|_| now.boot);
                self.arm(id);
            }
        }
    }

    /// Restores the fence of a fenced lease. The record of the fence comes after that of the lease and may be missing
    /// after a crash.
    fn restore_fenced(&mut self, id: LeaseId) {
        let fence = self.leases.get(&id).and_then(|it| it.fence()).cloned();
        let Some(fence) = fence else { return };
        if let Some(resource) = self.resources.get_mut(&fence.resource_id) {
            resource.fenced_leases.insert(id);
            resource.fence_for(fence);
        }
    }
}

impl Lease {
    fn restore(&mut self, now: Now, record: &LeaseRecord, held: Held, stays: bool) {
        let over = |cause| Some(known_end(record).unwrap_or_else(|| ended_for(cause, now.unix_ms)));
        let ending = |cause| Some(ended_for(cause, 0));
        let (_begins, deadline, end) = match held {
            Held::Fenced => {
                let fence = FenceRecord {
                    resource_id: record.resource_id,
                    resource_type: record.resource_type,
                    lease_id: record.lease_id,
                    since_unix_ms: now.unix_ms,
                    reason: StepError::new("restart", "it was fenced before the node started"),
                    by_release: record.fenced_by_release,
                };
                let begins = self.step_to_fenced(Event::FoundFenced, fence);
                (begins, record.deadline, over(EndCause::NodeRestarted))
            }
            Held::Lives(deadline) => (self.step(Event::Adopted), deadline, None),
            Held::Kept(ended_at) => {
                // The earlier run may have died between the deadline and its cut.
                let event = if stays {
                    Event::FoundUncut
                } else {
                    Event::FoundCut
                };
                (self.step(event), ended_at, ending(EndCause::Expired))
            }
            Held::Ends {
                phase,
                told,
                ended_at,
            } => {
                let cause = cause_of(phase);
                let (event, end) = match told {
                    true => (Event::FoundOver, over(cause)),
                    false => (Event::FoundUncut, ending(cause)),
                };
                (self.step(event), ended_at, end)
            }
        };
        let ends = matches!(held, Held::Ends { .. });
        // A lease that ends has no grace time.
        let grace_secs = if ends { 0 } else { record.grace_secs };
        self.generation = record.generation;
        self.term = secs(record.term_secs);
        self.grace = secs(grace_secs);
        self.deadline = deadline;
        self.granted_at_unix_ms = record.granted_at_unix_ms;
        self.expires_at_unix_ms = record.expires_at_unix_ms;
        self.effective = record.effective;
        self.terms.clone_from(&record.terms);
        self.intent.clone_from(&record.intent);
        self.requested = record.requested;
        self.adoptions_failed = stays.then_some(0);
        self.end = end;
        self.over_since = ends.then_some(now.boot);
    }
}

/// The end that an earlier run reported.
fn known_end(record: &LeaseRecord) -> Option<Arc<LeaseEnd>> {
    record.end.clone().filter(|end| end.at_unix_ms != 0)
}

fn ended_for(cause: EndCause, at_unix_ms: u64) -> Arc<LeaseEnd> {
    Arc::new(LeaseEnd {
        at_unix_ms,
        cause,
        by: None,
        proof: Vec::new(),
        cleaning: Vec::new(),
    })
}

/// The cause for a lease whose end was not reported.
fn cause_of(phase: LeasePhase) -> EndCause {
    match phase {
        LeasePhase::Expired => EndCause::Expired,
        LeasePhase::Freed => EndCause::Freed,
        _ => EndCause::NodeRestarted,
    }
}
