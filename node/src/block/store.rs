//! A pool as a store of leases: a volume for each, counted in the journal and in the pool.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabricbios_contract::{Part, Store, TellCondition, Volume};
use fabricbios_lease::{BindError, BindOrder, Custody, Extent, Lookup, Placement, StepError, Tag};
use fabricbios_pool::Pool;
use fabricbios_wire::{LeaseId, ResourceId};

use super::ledger::JournalLedger;

/// See the module.
#[derive(Debug)]
pub(super) struct PoolStore {
    resource_id: ResourceId,
    pool: Pool,
    ledger: Arc<JournalLedger>,
    /// Which leases have a volume, and which were released. Where each lies is the pool's.
    custody: Mutex<Custody<()>>,
}

impl PoolStore {
    pub(super) fn new(resource_id: ResourceId, pool: Pool, ledger: Arc<JournalLedger>) -> Self {
        Self {
            resource_id,
            pool,
            ledger,
            custody: Mutex::default(),
        }
    }

    fn custody(&self) -> MutexGuard<'_, Custody<()>> {
        self.custody.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counted before it is made: a journal of before can be told by that.
    fn create(&self, lease_id: LeaseId, extent: Extent) -> Result<Volume, StepError> {
        if !self.pool.facts().read_only {
            let number = self.ledger.next_grant(self.resource_id)?;
            self.pool.count_grant(number)?;
        }
        self.pool.create(lease_id, extent)
    }
}

impl Store for PoolStore {
    fn prepare(&self, order: &BindOrder, progress: &dyn Fn()) -> Result<(), StepError> {
        self.pool.prepare(order.extent(), progress)
    }

    fn open(&self, order: &BindOrder) -> Result<Part, BindError> {
        let (lease_id, extent) = (order.tag.lease_id, order.extent());
        let found = self.custody().find(lease_id);
        let volume = match found {
            Lookup::Released => return Err(BindError::Cancelled),
            Lookup::Unknown if !order.adopts => self.create(lease_id, extent),
            Lookup::Here(()) | Lookup::Unknown => self.pool.reopen(lease_id, extent),
        };
        let volume = volume.map_err(BindError::Failed)?;
        self.custody().find_or_make(lease_id);
        Ok(Part {
            volume: Some(volume),
            ..Part::at(order.placement.clone())
        })
    }

    fn forget(&self, tag: Tag, placement: &Placement) -> Result<(), StepError> {
        let extent = Some(placement.extent());
        self.pool.destroy(tag.lease_id, extent, &|| ())?;
        self.custody().forget(tag.lease_id);
        Ok(())
    }

    fn release(
        &self,
        tag: Tag,
        placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        if self.custody().find(tag.lease_id) == Lookup::Released {
            return Ok(());
        }
        let extent = placement.map(Placement::extent);
        self.pool.destroy(tag.lease_id, extent, progress)?;
        self.custody().release(tag.lease_id);
        Ok(())
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.pool.leases()
    }

    fn tell_condition(&self, tell: TellCondition) {
        self.pool.tell_condition(tell);
    }
}
