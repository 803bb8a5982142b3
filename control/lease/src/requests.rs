//! Requests to the table.

use alloc::{boxed::Box, format, string::String, sync::Arc};
use core::time::Duration;

use fabricbios_wire::{
    EndCause, LeaseAllocRequest, LeaseError, LeaseId, LeaseInfo, LeasePhase, Refusal, RefusalClass,
    Reply, Request, RevokeOutcome, Role,
};

use crate::{
    After, Asked, BootTime, Change, Event, LeaseTable, Note, Now, Requested, State, Ticket,
    admission::{Admitted, wanted},
    lease::{Lease, OldKey, Renewal, Waiting, whole_secs},
    standing::{busy, check_operator},
};

/// `Ok(Some)`: answer at once. `Ok(None)`: the answer comes when the work is done.
pub(crate) type Decision = Result<Option<Reply>, Refusal>;

impl LeaseTable {
    /// Decides a request. A due deadline of its lease is handled first.
    pub fn on_request(&mut self, now: Now, asked: &Asked) {
        self.now = now.boot;
        if let Some(id) = lease_of(&asked.request) {
            self.catch_up(now, id);
        }
        let decision = self.decide(now, asked);
        self.fence_broken(now);
        let answer = match decision {
            Ok(None) => return,
            Ok(Some(reply)) => Ok(reply),
            Err(refusal) => {
                self.note(Note::Refused {
                    tenant: String::from(&*asked.tenant),
                    wanted: match &asked.request {
                        Request::LeaseAlloc(request) => Some(wanted(request)),
                        _ => None,
                    },
                    lease_id: lease_of(&asked.request),
                    refusal: refusal.clone(),
                });
                Err(refusal)
            }
        };
        let after = match asked.request {
            // A refusal changes no record.
            _ if answer.is_err() => After::Nothing,
            // Only a repeat is answered at once.
            Request::LeaseAlloc(_) => match &answer {
                Ok(Reply::Lease(info)) => After::Repeat(info.lease_id),
                _ => After::Journal,
            },
            Request::LeaseQuery(_)
            | Request::LeaseList { .. }
            | Request::LeaseAttach(_)
            | Request::FenceList => After::Nothing,
            _ => After::Journal,
        };
        self.answer_after(after, asked.ticket, answer);
    }

    fn decide(&mut self, now: Now, asked: &Asked) -> Decision {
        match &asked.request {
            Request::LeaseAlloc(request) => self.alloc(now, asked, request),
            Request::LeaseRenew {
                lease_id,
                lease_secs,
            } => self.renew(now, asked, *lease_id, *lease_secs),
            Request::LeaseQuery(id) => {
                let is_holder = self.visible(asked, *id)?;
                Ok(self.told(now, asked.role, is_holder, *id).map(Reply::Lease))
            }
            Request::LeaseFree(id) => self.free(now, asked, *id),
            Request::LeaseList { after, ended } => Ok(Some(self.list(now, asked, *after, *ended))),
            Request::LeaseBind { lease_id, peers } => self.bind(now, asked, *lease_id, peers),
            Request::LeasePeers { lease_id, change } => {
                self.change_peers(now, asked, *lease_id, change)
            }
            Request::LeaseAttach(id) => self.tell_attach_code(now, asked, *id),
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
        let requested = Requested::by(request);
        if let Some(requested) = requested
            && let Some(id) = self.lease_of_request(now, &asked.tenant, requested.token)
        {
            return self.repeat(now, asked, id, requested);
        }
        if self.leases.contains_key(&asked.fresh_id) || self.ended.contains_key(&asked.fresh_id) {
            return Err(busy("the fresh lease id is taken; ask again"));
        }
        self.check_leases(now, &asked.tenant)?;
        let kind = request.resource_type();
        self.check_capacity(now, &asked.tenant, kind, request.capacity)?;
        self.check_binds(&asked.tenant)?;
        let admitted = self.admit(now, &asked.tenant, request)?;
        let mut lease = self.new_lease(now, asked, request, &admitted);
        lease.requested = requested;
        let order = lease.bind_order();
        self.lives(lease);
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
        let mut lease = Lease::new(
            now,
            asked.fresh_id,
            self.tenant_name(&asked.tenant),
            admitted.resource_id,
            request.resource_type(),
            admitted.placement.clone(),
        );
        lease.term = Duration::from_secs(request.lease_secs.into());
        lease.grace = Duration::from_secs(request.grace_secs.into());
        lease.cut_within = self.cut_within(admitted.resource_id);
        lease.effective = admitted.effective;
        let terms = Some(&admitted.terms).filter(|terms| !terms.is_plain());
        lease.terms = terms.cloned().map(Box::new);
        let intent = Some(&request.intent).filter(|intent| !intent.is_empty());
        lease.intent = intent.cloned().map(Box::new);
        lease.peers = request.terms.rdma_peers().to_vec();
        lease.queue_pairs = lease.queue_pairs_at_first();
        lease.waiting.push((Waiting::Grant, asked.ticket));
        lease.wanted = Some(Box::new((wanted(request), admitted.policy)));
        let _begins = lease.step(Event::Asked);
        lease
    }

    fn renew(&mut self, now: Now, asked: &Asked, id: LeaseId, secs: u32) -> Decision {
        self.check_holder(asked, id)?;
        let lease = self.live(id)?;
        let secs = match secs {
            0 => whole_secs(lease.term),
            given => given,
        };
        if lease.state() == State::Active && now.boot < lease.renewable_at() {
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
        self.limits().check_term::<Refusal>(secs)?;
        self.check_still_allowed(lease)?;
        // No rotation while the old key still works: the key is new already.
        let rotates =
            lease.effective.rotate_on_renew && lease.has_key() && lease.old_key().is_none();
        if lease.state() == State::Grace || rotates {
            self.check_binds(&asked.tenant)?;
        }
        let lease = self.live_mut(id)?;
        let waiting = (Waiting::Renew, asked.ticket);
        if let Some(active) = lease.active_mut()
            && active.renewal.is_none()
        {
            let to = now.boot + Duration::from_secs(secs.into());
            active.renewal = Some(Box::new(Renewal {
                to,
                secs,
                expires_at_unix_ms: now.unix_ms_at(to),
                rotates,
            }));
            lease.waiting.push(waiting);
            self.extend(now, id);
            return Ok(None);
        }
        // A lease in its grace time is cut, so its new deadline needs no acknowledgement.
        if lease.state() != State::Grace || lease.is_on_its_way() || !lease.step(Event::Renew) {
            return Err(lease.busy());
        }
        lease.end = None;
        lease.start_term(now, secs);
        lease.waiting.push(waiting);
        self.bind_anew(now, id);
        Ok(None)
    }

    fn free(&mut self, now: Now, asked: &Asked, id: LeaseId) -> Decision {
        self.check_holder(asked, id)?;
        if let Some(ended) = self.ended.get(&id).filter(|e| e.phase == LeasePhase::Freed) {
            return Ok(Some(Reply::Lease(ended.info())));
        }
        let live = self.leases.get(&id);
        if let Some(lease) = live.filter(|it| it.phase() == LeasePhase::Freed) {
            return Ok(Some(Reply::Lease(lease.info(now, false))));
        }
        let waiting = (Waiting::Free, asked.ticket);
        self.end_by_request(now, id, Event::Free, EndCause::Freed, None, waiting)
    }

    fn revoke(&mut self, now: Now, asked: &Asked, id: LeaseId) -> Decision {
        check_operator(asked, "revoke a lease")?;
        let waiting = (Waiting::Revoke, asked.ticket);
        let (cause, by) = (EndCause::Revoked, Some(String::from(&*asked.tenant)));
        match self.end_by_request(now, id, Event::Revoke, cause, by, waiting) {
            Err(refusal) => Ok(Some(Reply::Revoked(match refusal.error {
                LeaseError::Fenced => RevokeOutcome::Fenced,
                LeaseError::NotFound => RevokeOutcome::NotFound,
                _already_over => RevokeOutcome::TornDown,
            }))),
            decision => decision,
        }
    }

    /// Ends a lease for a request that waits for the proof.
    fn end_by_request(
        &mut self,
        now: Now,
        id: LeaseId,
        event: Event,
        cause: EndCause,
        by: Option<String>,
        waiting: (Waiting, Ticket),
    ) -> Decision {
        let lease = self.live_mut(id)?;
        if lease.is_over() {
            return Err(lease.over());
        }
        lease.waiting.push(waiting);
        self.end(now, id, event, cause, by);
        Ok(None)
    }
}

/// The existing lease that a request is about.
fn lease_of(request: &Request) -> Option<LeaseId> {
    match request {
        Request::LeaseRenew { lease_id, .. }
        | Request::LeaseBind { lease_id, .. }
        | Request::LeasePeers { lease_id, .. }
        | Request::LeaseRotate { lease_id, .. }
        | Request::LeaseFree(lease_id)
        | Request::LeaseAttach(lease_id)
        | Request::LeaseQuery(lease_id)
        | Request::LeaseRevoke(lease_id) => Some(*lease_id),
        _ => None,
    }
}

impl LeaseTable {
    /// A lease, alive or ended. Only operators see its tenant and the operator who revoked it.
    pub(crate) fn told(
        &self,
        now: Now,
        role: Role,
        with_keys: bool,
        id: LeaseId,
    ) -> Option<LeaseInfo> {
        let (tenant, end, mut info) = if let Some(live) = self.leases.get(&id) {
            (&live.tenant, &live.end, live.info(now, with_keys))
        } else {
            let ended = self.ended.get(&id)?;
            (&ended.record.tenant, &ended.record.end, ended.info())
        };
        if role == Role::Operator {
            info.tenant = Some(String::from(&**tenant));
            if let (Some(told), Some(end)) = (&mut info.end, end)
                && end.by.is_some()
            {
                Arc::make_mut(told).by.clone_from(&end.by);
            }
        }
        Some(info)
    }

    /// Writes the record of a live lease to the journal.
    pub(crate) fn put(&mut self, id: LeaseId) {
        if let Some(lease) = self.leases.get(&id) {
            let record = lease.record();
            self.journal(Change::PutLease(record));
        }
    }
}

impl Lease {
    /// A term of `secs` from now.
    pub(crate) fn start_term(&mut self, now: Now, secs: u32) {
        let deadline = now.boot + Duration::from_secs(secs.into());
        self.set_term(secs, deadline, now.unix_ms_at(deadline));
    }

    pub(crate) fn set_term(&mut self, secs: u32, deadline: BootTime, expires_at_unix_ms: u64) {
        self.term = Duration::from_secs(secs.into());
        self.deadline = deadline;
        self.expires_at_unix_ms = expires_at_unix_ms;
        // An overlap ends with the term at the latest.
        if let Some(in_use) = self.in_use_mut()
            && let Some(OldKey::Until(until)) = &mut in_use.old_key
        {
            *until = (*until).min(deadline);
        }
    }
}
