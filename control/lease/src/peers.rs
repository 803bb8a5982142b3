//! Queue pairs that join a live binding, or leave it, while the others go on: LEASE_BIND with 0x0211 or 0x0212.
//!
//! The generation stays. The path connects the queue pairs that join without rights and opens them only if no cut has come
//! meanwhile. Those that leave are proved gone before the client is answered. A renewal in the grace time connects to the
//! queue pairs that the last binding named, without those that have left, and to none that joined.

use alloc::{boxed::Box, format, vec::Vec};

use fabricbios_wire::{Binding, LeaseId, PeerChange, RDMA_QUEUE_PAIRS_MAX, Refusal};

use crate::{
    Asked, BindingId, LeaseTable, Now, Order, State,
    kinds::check_peers,
    lease::{Bound, Lease, Remaking, Waiting},
    requests::Decision,
    standing::{busy, invalid},
};

impl LeaseTable {
    pub(crate) fn change_peers(
        &mut self,
        now: Now,
        asked: &Asked,
        id: LeaseId,
        change: &PeerChange,
    ) -> Decision {
        let lease = self.check_takes_peers(asked, id)?;
        match change {
            // A queue pair beside none: the first binding.
            PeerChange::Add(peers) if !lease.is_connected() => {
                return self.bind(now, asked, id, peers);
            }
            PeerChange::Add(peers) => {
                check_peers(peers)?;
                lease.check_room_for(peers.len())?;
                self.check_queue_pairs(&asked.tenant, peers.len())?;
            }
            PeerChange::Remove(_) if lease.in_use().is_none() => return Err(lease.busy()),
            PeerChange::Remove(numbers) => {
                lease.check_has(numbers)?;
                lease.check_keeps_its_keys(numbers)?;
            }
        }
        let lease = self.begin_peers(asked, id, Waiting::Peers)?;
        lease.since = Some(now.boot);
        lease.remakes(Remaking::Peers);
        let order = Order::ChangePeers(lease.binding_id(), change.clone());
        if let PeerChange::Add(peers) = change {
            let has = lease.queue_pairs;
            self.has_queue_pairs(id, has + peers.len());
        }
        self.order(order);
        self.arm(id);
        Ok(None)
    }

    /// The queue pairs have changed. As after a bind, the client is answered when the deadline is acknowledged.
    pub(crate) fn peers_changed(&mut self, now: Now, binding_id: BindingId, binding: Binding) {
        let expected = [State::Rebinding];
        let Some(lease) = self.waiting_for(binding_id, "peers changed", &expected) else {
            return;
        };
        lease.forget_peers_that_left(&binding);
        let pairs = numbers(&binding).len();
        // A bind that failed has raised the generation of the lease. The binding in use keeps its own.
        let in_use = lease.binding().map(|it| it.generation);
        let generation = in_use.unwrap_or(lease.generation);
        lease.is_made(Box::new(Bound {
            generation,
            binding,
        }));
        self.has_queue_pairs(binding_id.lease_id, pairs);
        self.extend(now, binding_id.lease_id);
    }

    /// What was asked for was not made: the lease has the queue pairs of its binding in use.
    pub(crate) fn recount_queue_pairs(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.get(&id) else {
            return;
        };
        let pairs = match lease.binding() {
            Some(bound) => numbers(&bound.binding).len(),
            // The next binding is for the peers on record.
            None => lease.queue_pairs_at_first(),
        };
        self.has_queue_pairs(id, pairs);
    }

    /// Counts the queue pairs of a lease to its tenant. One that takes them counts one at least.
    pub(crate) fn has_queue_pairs(&mut self, id: LeaseId, pairs: usize) {
        let Some(lease) = self.leases.get_mut(&id).filter(|it| it.queue_pairs > 0) else {
            return;
        };
        let had = core::mem::replace(&mut lease.queue_pairs, pairs.max(1));
        if let Some(tenant) = self.tenants.get_mut(&lease.tenant) {
            tenant.queue_pairs = tenant.queue_pairs.saturating_sub(had) + lease.queue_pairs;
        }
    }
}

impl Lease {
    /// The queue pairs of a lease that is not bound yet: none if it takes none.
    pub(crate) fn queue_pairs_at_first(&self) -> usize {
        match self.takes_peers() {
            true => self.peers.len().max(1),
            false => 0,
        }
    }

    /// Whether queue pairs of a client are connected, or were and have all left.
    fn is_connected(&self) -> bool {
        let rdma = self.binding().and_then(|it| it.binding.rdma());
        rdma.is_some_and(|rdma| rdma.rkey.is_some() || rdma.qp_num == 0)
    }

    fn check_room_for(&self, joining: usize) -> Result<(), Refusal> {
        let has = self.binding().map_or(0, |it| numbers(&it.binding).len());
        if has + joining <= RDMA_QUEUE_PAIRS_MAX {
            return Ok(());
        }
        Err(invalid(format!(
            "lease {} has {has} queue pairs, and {joining} more are over {RDMA_QUEUE_PAIRS_MAX}; let some leave",
            self.id
        )))
    }

    fn check_has(&self, leaving: &[u32]) -> Result<(), Refusal> {
        let has = self.binding().map(|it| numbers(&it.binding));
        let has = has.unwrap_or_default();
        match leaving.iter().find(|number| !has.contains(number)) {
            None if self.is_connected() => Ok(()),
            None => Err(invalid(format!(
                "lease {} has no connected queue pair that could leave",
                self.id
            ))),
            Some(number) => Err(invalid(format!(
                "the node has no queue pair {number} of lease {}",
                self.id
            ))),
        }
    }

    /// An old key is retired where the current one is, so a queue pair must stay as long as there is one.
    fn check_keeps_its_keys(&self, leaving: &[u32]) -> Result<(), Refusal> {
        let stays = |it: &Bound| {
            let mut has = numbers(&it.binding).into_iter();
            has.any(|number| !leaving.contains(&number))
        };
        if self.old_key().is_none() || self.binding().is_some_and(stays) {
            return Ok(());
        }
        Err(busy(format!(
            "lease {}: the key before the last rotation still works, and its last queue pair leaves after that",
            self.id
        )))
    }

    /// The peers on record are those of the first queue pairs, in the same order.
    fn forget_peers_that_left(&mut self, now_bound: &Binding) {
        let stay = numbers(now_bound);
        let before = self.binding().map(|it| numbers(&it.binding));
        let mut before = before.unwrap_or_default().into_iter();
        self.peers
            .retain(|_| before.next().is_none_or(|number| stay.contains(&number)));
    }
}

/// The numbers of the node's queue pairs, in order.
pub(crate) fn numbers(binding: &Binding) -> Vec<u32> {
    let of = |rdma: &fabricbios_wire::RdmaBinding| {
        let further = rdma.further.iter().map(|pair| pair.qp_num);
        let all = core::iter::once(rdma.qp_num).chain(further);
        all.filter(|number| *number != 0).collect()
    };
    binding.rdma().map(of).unwrap_or_default()
}
