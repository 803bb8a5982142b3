//! Memory for half-sent blocks, bounded for a node, for each tenant and for each lease.
//!
//! A tenant never holds more than is still free on the node. So the next tenant gets some memory even if many tenants
//! hold as much as they can, like the ports of a switch that share one memory with dynamic thresholds (Choudhury and
//! Hahne, 1998).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A tenant has at most an eighth of the memory of the node, and a lease at most a 128th.
const TENANTS: usize = 8;
const LEASES: usize = 128;

/// The memory of a node for half-sent blocks.
#[derive(Debug)]
pub struct Room {
    bytes_max: usize,
    used: AtomicUsize,
}

/// The memory that the half-sent blocks of one lease hold. It is counted for the tenant and the node too.
#[derive(Debug)]
pub struct Share {
    node: Arc<Room>,
    tenant: Arc<AtomicUsize>,
    used: AtomicUsize,
    /// More bytes were given back than were held.
    is_broken: AtomicBool,
}

/// Reserved bytes; dropping this gives them back.
#[derive(Debug)]
pub(crate) struct Reservation {
    share: Arc<Share>,
    bytes: usize,
}

impl Room {
    /// `bytes_max` is for the whole node.
    #[must_use]
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            used: AtomicUsize::new(0),
        })
    }

    /// Whether any block on the node is half-sent.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) > 0
    }
}

impl Share {
    /// The share of one lease. `tenant` counts the bytes of all leases of its tenant.
    #[must_use]
    pub fn new(node: &Arc<Room>, tenant: Arc<AtomicUsize>) -> Arc<Self> {
        Arc::new(Self {
            node: Arc::clone(node),
            tenant,
            used: AtomicUsize::new(0),
            is_broken: AtomicBool::new(false),
        })
    }

    /// Whether a block of the lease is half-sent.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) > 0
    }

    /// Whether the lease holds exactly `held` bytes, and lease, tenant and node have got back no more bytes than they
    /// held. Exact under the lock of the lease's sessions.
    pub(crate) fn adds_up(&self, held: usize) -> bool {
        self.used.load(Ordering::Relaxed) == held && !self.is_broken()
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }

    /// Reserves `bytes`. `None`: there is no room. Two calls at the same time may both fail although there was room for
    /// one.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        let held = self
            .levels()
            .map(|level| level.fetch_add(bytes, Ordering::Relaxed) + bytes);
        let reservation = Reservation {
            share: Arc::clone(self),
            bytes,
        };
        let [node, tenant, lease] = held;
        let max = self.node.bytes_max;
        let left = max.checked_sub(node)?;
        (tenant <= left.min(max / TENANTS) && lease <= max / LEASES).then_some(reservation)
    }

    fn levels(&self) -> [&AtomicUsize; 3] {
        [&self.node.used, &self.tenant, &self.used]
    }
}

impl Reservation {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives the bytes back twice.
    #[cfg(test)]
    pub(crate) fn forge_another(self) {
        drop(Self {
            share: Arc::clone(&self.share),
            bytes: self.bytes,
        });
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        for level in self.share.levels() {
            if level.fetch_sub(self.bytes, Ordering::Relaxed) < self.bytes {
                level.fetch_add(self.bytes, Ordering::Relaxed);
                self.share.is_broken.store(true, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const BLOCK: usize = 4096;

    /// All that a new tenant can reserve, over as many leases as it needs.
    fn all(room: &Arc<Room>) -> Vec<Reservation> {
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
        // The first tenants give memory back and then get less of it than before.
        held[0].clear();
        assert!(all(&room).len() > held[8].len());
    }
}
