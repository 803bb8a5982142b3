//! Room for half-sent blocks: of a node, of each tenant in it, of each lease.
//!
//! A tenant never holds more than the node has left besides. So however many tenants hold as much as they
//! can, there is as much again for the next one, as in a switch whose ports share one memory with dynamic
//! thresholds (Choudhury and Hahne, 1998).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Of a node, tenants have at most this part of the whole, and leases that.
const TENANTS: usize = 8;
const LEASES: usize = 128;

/// Of a node.
#[derive(Debug)]
pub struct Room {
    bytes_max: usize,
    used: AtomicUsize,
}

/// A lease's, of its tenant's, of the node's.
#[derive(Debug)]
pub struct Share {
    node: Arc<Room>,
    tenant: Arc<AtomicUsize>,
    used: AtomicUsize,
}

/// Bytes of a share, until dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    share: Arc<Share>,
    bytes: usize,
}

impl Room {
    /// Of `bytes_max` one tenant gets an eighth and one lease a 128th, at most.
    #[must_use]
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            used: AtomicUsize::new(0),
        })
    }

    /// Whether there is anything half-sent.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) > 0
    }
}

impl Share {
    /// For one lease. `tenant`: what all leases of its tenant hold, in bytes.
    #[must_use]
    pub fn new(node: &Arc<Room>, tenant: Arc<AtomicUsize>) -> Arc<Self> {
        Arc::new(Self {
            node: Arc::clone(node),
            tenant,
            used: AtomicUsize::new(0),
        })
    }

    /// Whether the lease has anything half-sent.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) > 0
    }

    /// `None`: there is no room. Two that ask at the same time may both be refused where there was room for one.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<Taken> {
        let held = self
            .levels()
            .map(|level| level.fetch_add(bytes, Ordering::Relaxed) + bytes);
        let taken = Taken {
            share: Arc::clone(self),
            bytes,
        };
        let [node, tenant, lease] = held;
        let max = self.node.bytes_max;
        let left = max.checked_sub(node)?;
        (tenant <= left.min(max / TENANTS) && lease <= max / LEASES).then_some(taken)
    }

    fn levels(&self) -> [&AtomicUsize; 3] {
        [&self.node.used, &self.tenant, &self.used]
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        for level in self.share.levels() {
            level.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const BLOCK: usize = 4096;

    /// Of a tenant of its own, with as many leases as it needs.
    fn all(room: &Arc<Room>) -> Vec<Taken> {
        let tenant = Arc::default();
        let leases = (0..LEASES).map(|_| Share::new(room, Arc::clone(&tenant)));
        leases
            .flat_map(|lease| core::iter::from_fn(move || lease.take(BLOCK)))
            .collect()
    }

    #[test]
    fn a_lease_and_a_tenant_have_their_bounds_and_what_is_dropped_is_free() {
        let room = Room::new(1024 * BLOCK);
        let tenant = Arc::default();
        let lease = Share::new(&room, Arc::clone(&tenant));
        let held: Vec<_> = core::iter::from_fn(|| lease.take(BLOCK)).collect();
        assert_eq!(held.len(), 8, "a 128th");
        let mut others = all(&room);
        assert_eq!(others.len(), 128, "an eighth");
        others.clear();
        drop(held);
        assert!(!room.is_used() && !lease.is_used());
        assert_eq!(tenant.load(Ordering::Relaxed), 0);
        assert!(lease.take(9 * BLOCK).is_none() && !lease.is_used());
    }

    #[test]
    fn however_many_tenants_take_what_they_can_there_is_room_for_the_next() {
        let room = Room::new(1024 * BLOCK);
        let mut held = Vec::new();
        for number in 0..9 {
            let of_one = all(&room);
            assert!(!of_one.is_empty(), "tenant {number}");
            held.push(of_one);
        }
        let used = room.used.load(Ordering::Relaxed);
        assert!(used < 1024 * BLOCK, "{used}");
        // Those who came first give back some, and get less of it.
        held[0].clear();
        assert!(all(&room).len() > held[8].len());
    }
}
