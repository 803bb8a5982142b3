//! What is asked of the table.

use alloc::{boxed::Box, format, string::String};
use core::time::Duration;

use fabricbios_wire::{
    Generation, LeaseAllocRequest, LeaseError, LeaseId, LeasePhase, RdmaPeer, Refusal,
    RefusalClass, Reply, Request, ResourceId, RevokeOutcome,
};

use crate::{
    Asked, BindOrder, BootTime, Change, Event, LeaseTable, Note, Now, Order, State, Tag, Ticket,
    Wanted,
    admission::{Admitted, check_peers, wanted},
    config::OVERLAP_MS_MAX,
    lease::{Lease, OldKey, Outstanding, Waiting, whole_secs},
    standing::{busy, check_operator, invalid, not_found},
    table::Timer,
};

/// Overlap of a rotation that renewal causes: the client learns the new key from the answer, so
/// this covers what it has in flight.
const RENEWAL_OVERLAP: Duration = Duration::from_secs(5);

/// `Ok(Some)`: answer at once. `Ok(None)`: somebody will be told when it is done.
type Decision = Result<Option<Reply>, Refusal>;

impl LeaseTable {
    /// Decides a request. Whatever fell due before `now` has happened before it.
    pub fn on_request(&mut self, now: Now, asked: &Asked) {
        self.on_tick(now);
        let decision = self.decide(now, asked);
        let answer = match decision {
            Ok(None) => return,
            Ok(Some(reply)) => Ok(reply),
            Err(refusal) => Err(self.refused(asked, refusal)),
        };
        match asked.request {
            Request::LeaseQuery(_) | Request::LeaseList { .. } | Request::FenceList => {
                self.answer_now(asked.ticket, answer);
            }
            _ => self.answer(asked.ticket, answer),
        }
    }

    fn decide(&mut self, now: Now, asked: &Asked) -> Decision {
        match &asked.request {
            Request::LeaseAlloc(request) => self.alloc(now, asked, request),
            Request::LeaseRenew {
                lease_id,
                lease_secs,
            } => self.renew(now, asked, *lease_id, *lease_secs),
            Request::LeaseQuery(id) => self.query(now, asked, *id),
            Request::LeaseFree(id) => self.free(now, asked, *id),
            Request::LeaseList { after, ended } => Ok(Some(self.list(now, asked, *after, *ended))),
            Request::LeaseBind { lease_id, peers } => self.bind(now, asked, *lease_id, peers),
            Request::LeaseRotate {
                lease_id,
                overlap_ms,
            } => self.rotate(now, asked, *lease_id, *overlap_ms),
            Request::LeaseRevoke(id) => self.revoke(now, asked, *id),
            Request::FenceList => {
                check_operator(asked, "see fences")?;
                Ok(Some(Reply::Fences(self.fences())))
            }
            Request::FenceClear(id) => self.clear_fence(now, asked, *id),
            other => Err(Refusal::new(
                LeaseError::Internal,
                RefusalClass::Permanent,
                format!("{other:?} is not for the lease table"),
            )),
        }
    }

    fn alloc(&mut self, now: Now, asked: &Asked, request: &LeaseAllocRequest) -> Decision {
        if self.leases.contains_key(&asked.fresh_id) || self.ended.contains_key(&asked.fresh_id) {
            return Err(busy("the fresh lease id is taken; ask again".into()));
        }
        self.check_records(&asked.tenant)?;
        self.check_binds(&asked.tenant)?;
        let admitted = self.admit(request)?;
        let lease = self.new_lease(now, asked, request, &admitted);
        let (name, order) = (lease.tenant.clone(), lease.bind_order());
        self.on_its_way(&name, lease.id);
        self.leases.insert(lease.id, lease);
        self.order(order);
        self.arm(asked.fresh_id);
        Ok(None)
    }

    fn new_lease(
        &mut self,
        now: Now,
        asked: &Asked,
        request: &LeaseAllocRequest,
        admitted: &Admitted,
    ) -> Lease {
        Lease {
            id: asked.fresh_id,
            tenant: self.tenant_name(&asked.tenant),
            resource_id: admitted.resource_id,
            kind: request.resource_type,
            extent: admitted.extent,
            state: State::Binding,
            generation: Generation(1),
            term: Duration::from_secs(request.lease_secs.into()),
            grace: Duration::from_secs(request.grace_secs.into()),
            deadline: BootTime(0),
            granted_at_unix_ms: 0,
            expires_at_unix_ms: 0,
            timer: None,
            since: now.boot,
            effective: admitted.effective,
            peers: request.rdma_peers.clone(),
            binding: None,
            old_key: None,
            outstanding: Some(Outstanding::Bind),
            patience_over: false,
            release_began: false,
            overlap: Duration::ZERO,
            ending: LeasePhase::Revoked,
            fault: None,
            fenced_by_release: false,
            waiting: alloc::vec![Waiting::Grant(asked.ticket)],
            wanted: Some(Box::new((wanted(request), admitted.policy))),
        }
    }

    fn renew(&mut self, now: Now, asked: &Asked, id: LeaseId, secs: u32) -> Decision {
        self.check_holder(asked, id)?;
        let lease = self.live(id)?;
        let secs = match secs {
            0 => whole_secs(lease.term),
            given => given,
        };
        if lease.state == State::Active && now.boot < lease.renewable_at() {
            let at = lease.info(now, false).renewable_at_unix_ms;
            let wait_ms = now.boot.until(lease.renewable_at()).as_millis();
            return Err(Refusal {
                renewable_at_unix_ms: Some(at),
                ..Refusal::new(
                    LeaseError::RenewTooEarly,
                    RefusalClass::Transient,
                    format!(
                        "lease {id} can be renewed in the last 20 % of its term: in {wait_ms} ms"
                    ),
                )
            });
        }
        self.check_term(secs)?;
        let rotates = lease.effective.rotate_on_renew && lease.has_key();
        if lease.state == State::Grace || rotates {
            self.check_binds(&asked.tenant)?;
        }
        let lease = self.live_mut(id)?;
        if lease.effective.rotate_on_renew && lease.old_key.is_some() {
            return Err(busy(format!(
                "lease {id}: the key before still works; renew after it"
            )));
        }
        let was = lease.state;
        if lease.outstanding.is_some() || !lease.step(Event::Renew) {
            return Err(lease.busy());
        }
        lease.start_term(now, secs);
        let rotate = lease.effective.rotate_on_renew && lease.has_key();
        // Over before the next renewal can come, however short the term.
        let (tag, overlap) = (lease.tag(), RENEWAL_OVERLAP.min(lease.term / 2));
        if was == State::Active {
            self.extend(id);
        }
        match (was, rotate) {
            (State::Grace, _) => self.bind_again(now, Waiting::Renew(asked.ticket), id),
            (_, true) => self.rotate_now(now, Waiting::Renew(asked.ticket), tag, overlap),
            (_, false) => {
                self.put(id);
                self.arm(id);
                Ok(Some(Reply::Lease(self.live(id)?.info(now, true))))
            }
        }
    }

    fn query(&self, now: Now, asked: &Asked, id: LeaseId) -> Decision {
        let tenant = self.visible(asked, id)?;
        let with_keys = tenant;
        let live = self.leases.get(&id).map(|lease| lease.info(now, with_keys));
        let info = live.or_else(|| self.ended.get(&id).map(|ended| ended.info(id)));
        Ok(info.map(Reply::Lease))
    }

    fn free(&mut self, now: Now, asked: &Asked, id: LeaseId) -> Decision {
        self.check_holder(asked, id)?;
        if let Some(ended) = self.ended.get(&id).filter(|e| e.phase == LeasePhase::Freed) {
            return Ok(Some(Reply::Lease(ended.info(id))));
        }
        let freed = |lease: &&Lease| lease.phase() == LeasePhase::Freed;
        if let Some(lease) = self.leases.get(&id).filter(freed) {
            return Ok(Some(Reply::Lease(lease.info(now, false))));
        }
        self.end_by_request(
            now,
            id,
            Event::Free,
            LeasePhase::Freed,
            Waiting::Free(asked.ticket),
        )
    }

    fn revoke(&mut self, now: Now, asked: &Asked, id: LeaseId) -> Decision {
        check_operator(asked, "revoke a lease")?;
        let waiting = Waiting::Revoke(asked.ticket);
        match self.end_by_request(now, id, Event::Revoke, LeasePhase::Revoked, waiting) {
            Err(refusal) => Ok(Some(Reply::Revoked(match refusal.error {
                LeaseError::Fenced => RevokeOutcome::Fenced,
                LeaseError::NotFound => RevokeOutcome::NotFound,
                _already_over => RevokeOutcome::TornDown,
            }))),
            decision => decision,
        }
    }

    /// Ends a lease for somebody who waits for the proof.
    fn end_by_request(
        &mut self,
        now: Now,
        id: LeaseId,
        event: Event,
        phase: LeasePhase,
        waiting: Waiting,
    ) -> Decision {
        let lease = self.live_mut(id)?;
        match lease.state {
            State::Releasing | State::Fenced | State::Ended => return Err(lease.over()),
            _ => {
                lease.waiting.push(waiting);
                self.end(now, id, event, phase);
            }
        }
        Ok(None)
    }

    fn bind(&mut self, now: Now, asked: &Asked, id: LeaseId, peers: &[RdmaPeer]) -> Decision {
        self.check_holder(asked, id)?;
        let lease = self.live_mut(id)?;
        if !lease.takes_peers() {
            return Err(invalid(format!(
                "lease {id} goes over {}; only RDMA leases take a queue pair",
                lease.effective.transport.unwrap_or_default()
            )));
        }
        check_peers(peers)?;
        self.check_binds(&asked.tenant)?;
        let lease = self.live_mut(id)?;
        if !lease.step(Event::Rebind) {
            return Err(lease.busy());
        }
        lease.peers = peers.to_vec();
        self.bind_again(now, Waiting::Rebind(asked.ticket), id)
    }

    /// A new binding for somebody who waits for it. The state is `Rebinding` already.
    fn bind_again(&mut self, now: Now, waiting: Waiting, id: LeaseId) -> Decision {
        self.live_mut(id)?.waiting.push(waiting);
        self.bind_anew(now, id);
        Ok(None)
    }

    /// A new generation towards the peers on record. The state is `Rebinding` already.
    pub(crate) fn bind_anew(&mut self, now: Now, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.generation = lease.generation.next();
        lease.since = now.boot;
        lease.old_key = None;
        // What was before is cut first: nobody is told of it any more.
        lease.binding = None;
        lease.outstanding = Some(Outstanding::Bind);
        lease.patience_over = false;
        let (name, order) = (lease.tenant.clone(), lease.bind_order());
        self.on_its_way(&name, id);
        // Who renewed has his term, and may be told of it before the binding is there.
        self.put(id);
        self.order(order);
        self.arm(id);
    }

    fn rotate(&mut self, now: Now, asked: &Asked, id: LeaseId, overlap_ms: u32) -> Decision {
        self.check_holder(asked, id)?;
        let lease = self.live_mut(id)?;
        if overlap_ms > OVERLAP_MS_MAX {
            return Err(invalid(format!(
                "overlap_ms={overlap_ms}; at most {OVERLAP_MS_MAX}"
            )));
        }
        if lease.old_key.is_some() {
            return Err(busy(format!(
                "lease {id}: the key before still works; rotate after it"
            )));
        }
        if lease.state == State::Active && !lease.has_key() && lease.takes_peers() {
            return Err(invalid(format!(
                "lease {id} has no key yet: LEASE_BIND gives it one"
            )));
        }
        self.check_binds(&asked.tenant)?;
        let lease = self.live_mut(id)?;
        if !lease.step(Event::Rebind) {
            return Err(lease.busy());
        }
        let tag = lease.tag();
        if !lease.has_key() {
            return self.bind_again(now, Waiting::Rebind(asked.ticket), id);
        }
        self.rotate_now(
            now,
            Waiting::Rebind(asked.ticket),
            tag,
            Duration::from_millis(overlap_ms.into()),
        )
    }

    fn rotate_now(&mut self, now: Now, waiting: Waiting, tag: Tag, overlap: Duration) -> Decision {
        let lease = self.live_mut(tag.lease_id)?;
        if lease.state == State::Active && !lease.step(Event::Rebind) {
            return Err(lease.busy());
        }
        lease.since = now.boot;
        lease.overlap = overlap;
        lease.outstanding = Some(Outstanding::Rotation);
        lease.patience_over = false;
        lease.waiting.push(waiting);
        let name = lease.tenant.clone();
        self.on_its_way(&name, tag.lease_id);
        self.put(tag.lease_id);
        self.order(Order::Rotate(tag));
        self.arm(tag.lease_id);
        Ok(None)
    }

    fn clear_fence(&mut self, now: Now, asked: &Asked, id: ResourceId) -> Decision {
        check_operator(asked, "clear a fence")?;
        let Some(resource) = self.resources.get(&id).filter(|r| r.fence.is_some()) else {
            return Err(not_found(format!("no fenced resource {id}")));
        };
        if resource.resetting.is_some() {
            return Err(busy(format!("resource {id} is being remediated already")));
        }
        let on_its_way = |id| self.leases.get(id).is_some_and(|l| l.outstanding.is_some());
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
        resource.resetting = Some((asker, by));
        resource.fenced_again = false;
        let fenced = resource.fenced_leases.iter();
        let fenced = fenced.filter_map(|id| self.leases.get(id));
        let fenced = fenced.map(|lease| (lease.tag(), lease.extent)).collect();
        self.timers.insert((by, Timer::Reset(id)));
        self.order(Order::Reset(id, fenced));
    }
}

/// What requests leave behind.
impl LeaseTable {
    pub(crate) fn put(&mut self, id: LeaseId) {
        if let Some(lease) = self.leases.get(&id) {
            let record = lease.record();
            self.journal(Change::PutLease(record));
        }
    }

    fn refused(&mut self, asked: &Asked, refusal: Refusal) -> Refusal {
        let (wanted, lease_id): (Option<Wanted>, _) = match &asked.request {
            Request::LeaseAlloc(request) => (Some(wanted(request)), None),
            Request::LeaseRenew { lease_id, .. }
            | Request::LeaseBind { lease_id, .. }
            | Request::LeaseRotate { lease_id, .. }
            | Request::LeaseFree(lease_id)
            | Request::LeaseQuery(lease_id)
            | Request::LeaseRevoke(lease_id) => (None, Some(*lease_id)),
            _ => (None, None),
        };
        let tenant = String::from(&*asked.tenant);
        self.note(Note::Refused {
            tenant,
            wanted,
            lease_id,
            refusal: refusal.clone(),
        });
        refusal
    }
}

impl Lease {
    /// Over whatever road.
    fn has_key(&self) -> bool {
        self.binding.as_deref().is_some_and(|binding| {
            let rkey = binding.rdma.as_ref().and_then(|rdma| rdma.rkey);
            rkey.is_some() || binding.dp_key.is_some()
        })
    }

    fn bind_order(&self) -> Order {
        Order::Bind(BindOrder {
            tag: self.tag(),
            extent: self.extent,
            transport: self.effective.transport.unwrap_or_default(),
            peers: self.peers.clone(),
        })
    }

    /// A term of `secs` from now.
    pub(crate) fn start_term(&mut self, now: Now, secs: u32) {
        self.term = Duration::from_secs(secs.into());
        self.deadline = now.boot + self.term;
        self.expires_at_unix_ms = now.unix_ms_at(self.deadline);
        // The window of an overlap never reaches past the term.
        if let Some(OldKey::Until(until)) = &mut self.old_key {
            *until = (*until).min(self.deadline);
        }
    }
}
