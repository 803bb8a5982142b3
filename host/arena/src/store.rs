//! The arena as a store of leases: knows the extent of each lease, and scrubs the extent for the next lease.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fabricbios_contract::{Part, Store, TellCondition};
use fabricbios_lease::{
    AllocationMode, BindError, BindOrder, BindingId, Custody, Durability, FenceScope, Offer,
    Placement, Proof, StepError,
};
use fabricbios_wire::{LeaseId, ResourceId, Transport};

use crate::{ALIGN, Arena};

/// Most bytes that a release overwrites at once, on the thread that has the order: some microseconds.
const INLINE_SCRUB_BYTES: u64 = 64 << 10;

/// The store of the bytes of an arena. Data paths use the arena itself, each within the extents of its orders.
#[derive(Debug)]
pub struct ArenaStore {
    arena: Arc<Arena>,
    custody: Mutex<Custody<()>>,
}

impl ArenaStore {
    /// A store without leases.
    #[must_use]
    pub fn new(arena: Arc<Arena>) -> Self {
        Self {
            arena,
            custody: Mutex::default(),
        }
    }

    /// The offer for the lease table. `transports`: those of the paths to this arena, the best first.
    #[must_use]
    pub fn offer(&self, resource_id: ResourceId, transports: Vec<Transport>) -> Offer {
        Offer {
            resource_id,
            capacity: self.arena.bytes(),
            align: ALIGN,
            transports,
            durability: Durability::arena(self.arena.backing().outlives_process),
            fence_scope: FenceScope::Whole,
            cut_within: None,
            allocation_mode: AllocationMode::Stretches,
            read_only: false,
            classes: None,
            rate: None,
            needs_vlan: None,
        }
    }

    fn custody(&self) -> MutexGuard<'_, Custody<()>> {
        self.custody.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for ArenaStore {
    /// Does nothing: a release scrubs the bytes.
    fn prepare(&self, _order: &BindOrder, _progress: &dyn Fn()) -> Result<(), StepError> {
        Ok(())
    }

    fn open(&self, order: &BindOrder) -> Result<Part, BindError> {
        let extent = order.extent();
        self.arena
            .check_extent(extent)
            .map_err(BindError::Refused)?;
        let claimed = self.custody().claim(order.binding_id.lease_id, extent);
        claimed.map_err(|why| {
            // Only the log names the holder: the next tenant must not learn it.
            tracing::error!(lease = %order.binding_id, %why, "bytes were given out twice");
            let detail = format_args!(
                "{}: the bytes are not free on this node yet",
                order.binding_id
            );
            BindError::Failed(StepError::new("bind", detail))
        })?;
        Ok(Part::at(extent))
    }

    /// Does nothing: the number of journal commits is in the file of the arena, see [`Arena::set_commits`].
    fn confirm(&self, _binding_id: BindingId) -> Result<(), StepError> {
        Ok(())
    }

    fn forget(&self, binding_id: BindingId, _placement: &Placement) -> Result<(), StepError> {
        self.custody().forget(binding_id.lease_id);
        Ok(())
    }

    /// Refuses an extent that is not the lease's: scrubbing another extent would leave the bytes of the tenant.
    fn release(
        &self,
        binding_id: BindingId,
        placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        let Some(extent) = placement.map(Placement::extent) else {
            return Ok(Proof::default());
        };
        self.arena.check_extent(extent)?;
        let failed =
            |detail: String| StepError::new("release", format_args!("{binding_id}: {detail}"));
        let checked = self.custody().check(binding_id.lease_id, extent);
        checked.map_err(|why| failed(format!("asked to release {extent:?}, but {why}")))?;
        let began = Instant::now();
        let scrubbed = self.arena.scrub(extent.offset, extent.length, progress);
        scrubbed.map_err(|outside| {
            StepError::new("zero arena", format_args!("{binding_id}: {outside}"))
        })?;
        self.custody().forget(binding_id.lease_id);
        let found = format_args!("{} bytes overwritten with zeroes", extent.length);
        Ok(Proof::of("zero memory", began.elapsed(), found))
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Ok(self
            .custody()
            .all()
            .into_iter()
            .map(|(id, ())| id)
            .collect())
    }

    fn is_inline(&self, placement: &Placement) -> bool {
        self.arena.backing().in_memory && placement.extent().length <= INLINE_SCRUB_BYTES
    }

    /// Never calls `tell`: memory is always in good condition.
    fn tell_condition(&self, _tell: TellCondition) {}
}

#[cfg(test)]
mod tests {
    use fabricbios_lease::Extent;
    use fabricbios_wire::{Generation, Transport};

    use super::*;
    use crate::Source;

    const FIRST: Extent = Extent {
        offset: 0,
        length: 2 * ALIGN,
    };

    fn store() -> ArenaStore {
        let arena = Arena::open(&Source::default(), 4 * ALIGN).unwrap();
        arena.write(0, &[7; 16]).unwrap();
        ArenaStore::new(Arc::new(arena))
    }

    fn order(lease: u128, extent: Extent) -> BindOrder {
        BindOrder::new(
            BindingId {
                lease_id: LeaseId(lease),
                generation: Generation(1),
                resource_id: ResourceId(1),
            },
            extent,
            Transport::Udp,
        )
    }

    fn begins_with(store: &ArenaStore) -> u8 {
        let mut first = [0];
        store.arena.read(0, &mut first).unwrap();
        first[0]
    }

    #[test]
    fn bytes_are_nobody_elses_until_they_are_clean() {
        let store = store();
        let (first, second) = (order(1, FIRST), order(2, FIRST));
        store.open(&first).unwrap();
        assert!(matches!(store.open(&second), Err(BindError::Failed(_))));
        let other = store.release(second.binding_id, Some(&FIRST.into()), &|| ());
        assert!(other.unwrap_err().detail.contains("of lease"));
        assert_eq!(begins_with(&store), 7);
        let released = store.release(first.binding_id, Some(&FIRST.into()), &|| ());
        let cleaned = released.unwrap().to_string();
        let bytes = format!("zero memory {} bytes overwritten", FIRST.length);
        assert!(cleaned.contains(&bytes), "{cleaned}");
        assert_eq!(begins_with(&store), 0);
        store.open(&second).unwrap();
    }

    #[test]
    fn only_whole_pages_of_the_arena_are_given_out() {
        let store = store();
        for (offset, length) in [
            (0, 0),
            (1, ALIGN),
            (0, 1),
            (3 * ALIGN, 2 * ALIGN),
            (u64::MAX - ALIGN + 1, ALIGN),
        ] {
            let extent = Extent { offset, length };
            let refused = store.open(&order(1, extent));
            assert!(matches!(refused, Err(BindError::Refused(_))), "{extent:?}");
            assert!(
                store
                    .release(order(1, extent).binding_id, Some(&extent.into()), &|| ())
                    .is_err()
            );
        }
    }
}
