//! A pool as a store of leases: a volume for each, counted in the journal and in the pool.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_contract::{Part, Store, TellCondition, Volume};
use fabricbios_lease::{
    BindError, BindOrder, BindingId, Custody, Extent, Lookup, Placement, StepError,
};
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
    /// Numbers of grants that the journal may not have yet.
    unconfirmed: Mutex<HashMap<LeaseId, u64>>,
}

impl PoolStore {
    pub(super) fn new(resource_id: ResourceId, pool: Pool, ledger: Arc<JournalLedger>) -> Self {
        Self {
            resource_id,
            pool,
            ledger,
            custody: Mutex::default(),
            unconfirmed: Mutex::default(),
        }
    }

    fn custody(&self) -> MutexGuard<'_, Custody<()>> {
        self.custody.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unconfirmed(&self) -> MutexGuard<'_, HashMap<LeaseId, u64>> {
        let unconfirmed = self.unconfirmed.lock();
        unconfirmed.unwrap_or_else(PoisonError::into_inner)
    }

    /// Counted by the journal at once, and by the pool when the journal has it on its disk.
    fn create(&self, lease_id: LeaseId, extent: Extent) -> Result<Volume, StepError> {
        let counts = !self.pool.facts().read_only;
        let number = counts.then(|| self.ledger.next_grant(self.resource_id));
        let number = number.transpose()?;
        let volume = self.pool.create(lease_id, extent)?;
        self.unconfirmed()
            .extend(number.map(|number| (lease_id, number)));
        Ok(volume)
    }
}

impl Store for PoolStore {
    fn prepare(&self, order: &BindOrder, progress: &dyn Fn()) -> Result<(), StepError> {
        self.pool.prepare(order.extent(), progress)
    }

    fn open(&self, order: &BindOrder) -> Result<Part, BindError> {
        let (lease_id, extent) = (order.binding_id.lease_id, order.extent());
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

    fn confirm(&self, binding_id: BindingId) -> Result<(), StepError> {
        let number = self.unconfirmed().remove(&binding_id.lease_id);
        number.map_or(Ok(()), |number| self.pool.count_grant(number))
    }

    fn forget(&self, binding_id: BindingId, placement: &Placement) -> Result<(), StepError> {
        let extent = Some(placement.extent());
        self.pool.destroy(binding_id.lease_id, extent, &|| ())?;
        self.unconfirmed().remove(&binding_id.lease_id);
        self.custody().forget(binding_id.lease_id);
        Ok(())
    }

    fn release(
        &self,
        binding_id: BindingId,
        placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        if self.custody().find(binding_id.lease_id) == Lookup::Released {
            return Ok(());
        }
        let extent = placement.map(Placement::extent);
        self.pool.destroy(binding_id.lease_id, extent, progress)?;
        self.unconfirmed().remove(&binding_id.lease_id);
        self.custody().release(binding_id.lease_id);
        Ok(())
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.pool.leases()
    }

    fn tell_condition(&self, tell: TellCondition) {
        self.pool.tell_condition(tell);
    }
}

/// A pool in an empty directory, as a store, with the bytes that it has.
#[cfg(test)]
pub(crate) fn store_in(
    directory: &std::path::Path,
    resource_id: ResourceId,
    writer: crate::journal::Writer,
) -> (Arc<dyn Store>, u64) {
    let (store, capacity) = tests::in_directory(directory, resource_id, writer);
    (Arc::new(store), capacity)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use fabricbios_helper::Supervisor;
    use fabricbios_pool::PoolConfig;
    use fabricbios_wire::{Generation, NodeId, Transport};

    use super::{super::ledger::PoolRecord, *};
    use crate::journal::{Journal, Writer};

    const POOL: ResourceId = ResourceId(7);

    pub(super) fn in_directory(
        path: &Path,
        resource_id: ResourceId,
        writer: Writer,
    ) -> (PoolStore, u64) {
        let pool = Pool::open(PoolConfig {
            path: path.to_owned(),
            node_id: NodeId([7; 32]),
            force: false,
            may_begin: true,
            supervisor: Supervisor::of_threads(fabricbios_pool::calls()),
        });
        let pool = pool.unwrap();
        let (facts, grants) = (pool.facts(), pool.grants().unwrap());
        let record = PoolRecord::of(facts, path, grants);
        let capacity = facts.capacity;
        let ledger = JournalLedger::new(writer, [(resource_id, record)].into());
        let store = PoolStore::new(resource_id, pool, Arc::new(ledger));
        (store, capacity)
    }

    fn order(lease: u128) -> BindOrder {
        let binding_id = BindingId {
            lease_id: LeaseId(lease),
            generation: Generation(1),
            resource_id: POOL,
        };
        BindOrder::new(binding_id, Placement::Amount(1 << 20), Transport::Udp)
    }

    #[test]
    fn a_pool_has_the_number_of_a_grant_when_the_journal_has_it_and_not_before() {
        let place = tempfile::tempdir().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let open = || {
            let path = place.path().join("journal");
            Journal::open_here(&path, "boot", Box::new(|_| ())).unwrap()
        };
        let (journal, _) = open();
        let (store, _) = in_directory(directory.path(), POOL, journal.writer());
        let grants = |store: &PoolStore| store.pool.grants().unwrap();
        for lease in [1, 2] {
            store.open(&order(lease)).unwrap();
        }
        assert_eq!((grants(&store), journal.counts().commits), (0, 0));
        // The records of the leases.
        let writer = journal.writer();
        writer.wait(writer.submit(Vec::new())).unwrap();
        store.confirm(order(2).binding_id).unwrap();
        store.confirm(order(1).binding_id).unwrap();
        assert_eq!((grants(&store), journal.counts().commits), (2, 1));
        drop((store, journal));
        let (_journal, recovered) = open();
        let [bytes] = Vec::from_iter(recovered.records.values())
            .try_into()
            .unwrap();
        let record: PoolRecord = crate::records::decode(bytes).unwrap();
        assert_eq!(record.grants, 2);
    }

    #[test]
    fn a_grant_that_comes_to_nothing_is_not_counted_by_the_pool() {
        let place = tempfile::tempdir().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = place.path().join("journal");
        let (journal, _) = Journal::open_here(&path, "boot", Box::new(|_| ())).unwrap();
        let (store, _) = in_directory(directory.path(), POOL, journal.writer());
        let BindOrder {
            binding_id,
            placement,
            ..
        } = order(1);
        store.open(&order(1)).unwrap();
        store.release(binding_id, Some(&placement), &|| ()).unwrap();
        store.confirm(binding_id).unwrap();
        assert_eq!(store.pool.grants(), Some(0));
    }
}
