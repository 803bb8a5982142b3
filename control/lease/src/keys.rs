//! New bindings and new keys: LEASE_BIND, LEASE_ROTATE and the results of rotations.

use alloc::{format, vec::Vec};
use core::time::Duration;

use fabricbios_wire::{Binding, EndCause, LeaseId, RdmaPeer, Refusal, Transport};

use crate::{
    Asked, BindError, BindOrder, BindingId, Event, LeaseTable, Note, Now, Order, State, StepError,
    config::OVERLAP_MS_MAX,
    kinds::{check_peers, rules},
    lease::{Lease, OldKey, Remaking, Stage, Waiting},
    paths::takes_datagrams,
    requests::Decision,
    standing::{busy, invalid},
};

impl LeaseTable {
    pub(crate) fn bind(
        &mut self,
        now: Now,
        asked: &Asked,
        id: LeaseId,
        peers: &[RdmaPeer],
    ) -> Decision {
        let has = self.check_takes_peers(asked, id)?.queue_pairs;
        check_peers(peers)?;
        self.check_queue_pairs(&asked.tenant, peers.len().saturating_sub(has))?;
        let lease = self.begin_peers(asked, id, Waiting::Rebind)?;
        lease.asks_for(peers.to_vec());
        self.has_queue_pairs(id, peers.len().max(has));
        self.bind_anew(now, id);
        Ok(None)
    }

    pub(crate) fn check_takes_peers(&self, asked: &Asked, id: LeaseId) -> Result<&Lease, Refusal> {
        self.check_holder(asked, id)?;
        let lease = self.live(id)?;
        if lease.takes_peers() {
            return Ok(lease);
        }
        let transport = lease.effective.transport.map_or("nothing", Transport::name);
        Err(invalid(format!(
            "lease {id} of {} goes over {transport}; only leases of memory over RDMA take a queue pair",
            lease.kind
        )))
    }

    /// Moves the lease to `Rebinding` for a request about its queue pairs.
    pub(crate) fn begin_peers(
        &mut self,
        asked: &Asked,
        id: LeaseId,
        waiting: Waiting,
    ) -> Result<&mut Lease, Refusal> {
        self.check_binds(&asked.tenant)?;
        let lease = self.live_mut(id)?;
        if matches!(
            lease.old_key(),
            Some(OldKey::Retiring { .. } | OldKey::Gone)
        ) {
            // The order that retires the old key names the current binding.
            return Err(busy(format!(
                "lease {id}: the key before is being ended; ask again"
            )));
        }
        if !lease.may_rebind() || !lease.step(Event::Rebind) {
            return Err(lease.busy());
        }
        lease.waiting.push((waiting, asked.ticket));
        Ok(lease)
    }

    /// Makes a new binding for the peers on record, once its deadline is acknowledged. The old binding works
    /// meanwhile. The state is `Rebinding` already.
    pub(crate) fn bind_anew(&mut self, now: Now, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.generation = lease.generation.next();
        // A renewal has its term already, and may be answered before the binding is made.
        self.put(id);
        self.extend(now, id);
    }

    /// Orders the bind. Its deadline is acknowledged.
    pub(crate) fn order_bind(&mut self, now: Now, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.since = Some(now.boot);
        let peers_before = lease.peers_before();
        lease.remakes(Remaking::Bind(peers_before));
        let order = lease.bind_order();
        self.order(order);
        self.arm(id);
    }

    pub(crate) fn rotate(
        &mut self,
        now: Now,
        asked: &Asked,
        id: LeaseId,
        overlap_ms: u32,
    ) -> Decision {
        self.check_holder(asked, id)?;
        let lease = self.live_mut(id)?;
        if overlap_ms > OVERLAP_MS_MAX {
            return Err(invalid(format!(
                "overlap_ms={overlap_ms}; at most {OVERLAP_MS_MAX}"
            )));
        }
        if let Some(old_key) = lease.old_key() {
            let when = match old_key {
                OldKey::Until(until) => format!("in {} ms", now.boot.until(until).as_millis()),
                _ => "when it has ended, in a moment".into(),
            };
            return Err(busy(format!(
                "lease {id}: the key before still works; rotate again {when}"
            )));
        }
        if lease.effective.transport.is_none() {
            return Err(invalid(format!(
                "lease {id} of {} has no transport, and so no key to rotate",
                lease.kind
            )));
        }
        let by_bind_alone = lease.takes_peers() && !lease.takes_datagrams();
        if lease.state() == State::Active && !lease.has_key() && by_bind_alone {
            return Err(invalid(format!(
                "lease {id} has no key yet: LEASE_BIND gives it one"
            )));
        }
        self.check_binds(&asked.tenant)?;
        let lease = self.live_mut(id)?;
        if !lease.may_rebind() || !lease.step(Event::Rebind) {
            return Err(lease.busy());
        }
        lease.waiting.push((Waiting::Rebind, asked.ticket));
        let binding_id = lease.binding_id();
        if !lease.has_key() {
            // A rotation names no queue pair, and the old one may be the reason why there is no key.
            lease.asks_for(Vec::new());
            self.bind_anew(now, id);
        } else {
            self.rotate_now(now, binding_id, Duration::from_millis(overlap_ms.into()));
        }
        Ok(None)
    }

    /// Orders a rotation. The state is `Rebinding` already.
    pub(crate) fn rotate_now(&mut self, now: Now, binding_id: BindingId, overlap: Duration) {
        let Some(lease) = self.leases.get_mut(&binding_id.lease_id) else {
            return;
        };
        lease.since = Some(now.boot);
        lease.remakes(Remaking::Rotation(overlap));
        self.put(binding_id.lease_id);
        self.order(Order::Rotate(binding_id));
        self.arm(binding_id.lease_id);
    }
}

/// Results of rotations.
impl LeaseTable {
    /// The rotation failed; the old key works as before.
    pub(crate) fn not_rotated(&mut self, now: Now, binding_id: BindingId, error: &BindError) {
        let Some(lease) = self.waiting_for(binding_id, "not rotated", &[State::Rebinding]) else {
            return;
        };
        if lease.step(Event::NotBound) {
            self.recount_queue_pairs(binding_id.lease_id);
            self.refuse_binding(now, binding_id, error);
            self.arm(binding_id.lease_id);
        }
    }

    pub(crate) fn rotated(&mut self, now: Now, binding_id: BindingId, binding: Binding) {
        let Some(lease) = self.waiting_for(binding_id, "rotated", &[State::Rebinding]) else {
            return;
        };
        let Stage::Rebinding(_, Remaking::Rotation(overlap)) = *lease.stage() else {
            return;
        };
        let until = (now.boot + overlap).min(lease.deadline);
        lease.has_another_key(binding, Some(OldKey::Until(until)));
        if overlap.is_zero() {
            // The client is answered when the old key is dead, not before.
            lease.remakes(Remaking::Retirement);
            self.retire_key(now, binding_id.lease_id);
        } else if lease.step(Event::Bound) {
            self.settle(now, binding_id.lease_id);
        }
        let overlap = now.boot.until(until);
        self.note(Note::Rotated {
            binding_id,
            overlap,
        });
    }

    pub(crate) fn retire_reported(
        &mut self,
        now: Now,
        binding_id: BindingId,
        outcome: Result<Binding, StepError>,
    ) {
        let outcome = outcome.and_then(|it| self.of_its_kind(binding_id.lease_id, it));
        let expected = [State::Active, State::Rebinding];
        let Some(lease) = self.waiting_for(binding_id, "key retired", &expected) else {
            return;
        };
        let is_gone = lease.old_key() == Some(OldKey::Gone);
        if !is_gone && !matches!(lease.old_key(), Some(OldKey::Retiring { .. })) {
            self.note(Note::Stale(binding_id, "key retired"));
            return;
        }
        match outcome {
            // The report of the bind says which binding is in use.
            outcome if is_gone || outcome.is_ok() && lease.is_on_its_way() => {
                lease.in_use_mut().map(|it| it.old_key.take());
                self.arm(binding_id.lease_id);
            }
            // The binding stays as the last change has reported it: queue pairs may have joined since the retirement.
            Ok(_) => {
                lease.in_use_mut().map(|it| it.old_key.take());
                let waits = matches!(lease.stage(), Stage::Rebinding(_, Remaking::Retirement));
                if waits && !lease.step(Event::Bound) {
                    return;
                }
                match lease.state() {
                    State::Rebinding => self.arm(binding_id.lease_id),
                    _ => self.settle(now, binding_id.lease_id),
                }
            }
            // A key that cannot be retired ends the lease: a cut has more ways to end access.
            Err(error) => {
                self.note(Note::KeyNotRetired(binding_id, error));
                let cause = EndCause::KeyNotRetired;
                self.end(now, binding_id.lease_id, Event::Revoke, cause, None);
            }
        }
    }
}

impl Lease {
    /// Sets the peers of the next binding.
    fn asks_for(&mut self, peers: Vec<RdmaPeer>) {
        let before = core::mem::replace(&mut self.peers, peers);
        self.remakes(Remaking::Term(Some(before)));
    }

    /// Whether the lease has a key, over any transport.
    pub(crate) fn has_key(&self) -> bool {
        self.binding().is_some_and(|it| it.binding.has_key())
    }

    pub(crate) fn bind_order(&self) -> Order {
        Order::Bind(BindOrder {
            binding_id: self.binding_id(),
            placement: self.placement.clone(),
            transport: self.effective.transport.unwrap_or_default(),
            tenant: self.tenant.clone(),
            terms: self.terms().into_owned().with_rdma_peers(&self.peers),
            grace: self.grace,
            adopts: self.adoptions_failed.is_some(),
        })
    }

    /// The request that gives the lease a key when it has none.
    pub(crate) fn asks_for_a_key_by(&self) -> &'static str {
        match (self.takes_peers(), self.takes_datagrams()) {
            (true, true) => "LEASE_BIND, or over UDP alone LEASE_ROTATE,",
            (true, false) => "LEASE_BIND",
            (false, _) => "LEASE_ROTATE",
        }
    }

    fn takes_datagrams(&self) -> bool {
        self.effective.transport.is_some_and(takes_datagrams)
    }

    pub(crate) fn takes_peers(&self) -> bool {
        let transport = self.effective.transport;
        transport.is_some_and(|transport| rules(&self.terms()).takes_peers(transport))
    }
}
