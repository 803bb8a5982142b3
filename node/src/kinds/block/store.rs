//! A pool as a store of leases: one volume for each lease. Grants are counted in the journal and in the pool.

#[cfg(test)]
mod suite;

#[cfg(test)]
use std::sync::Arc;
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use fabricbios_contract::{Part, Store, TellCondition, Volume};
use fabricbios_lease::{BindError, BindOrder, BindingId, Extent, Placement, Proof, StepError};
use fabricbios_pool::Pool;
use fabricbios_wire::LeaseId;

use super::record::PoolRecord;
use crate::journal::Writer;

/// See the module.
#[derive(Debug)]
pub(super) struct PoolStore {
    pool: Pool,
    writer: Writer,
    record: Mutex<PoolRecord>,
    /// The leases to which this process has given a volume. The pool knows where each volume lies.
    given: Mutex<BTreeSet<LeaseId>>,
    /// Grant numbers that may not be in the journal yet.
    unconfirmed: Mutex<HashMap<LeaseId, u64>>,
}

impl PoolStore {
    pub(super) fn new(pool: Pool, record: PoolRecord, writer: Writer) -> Self {
        Self {
            pool,
            writer,
            record: Mutex::new(record),
            given: Mutex::default(),
            unconfirmed: Mutex::default(),
        }
    }

    fn given(&self) -> MutexGuard<'_, BTreeSet<LeaseId>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unconfirmed(&self) -> MutexGuard<'_, HashMap<LeaseId, u64>> {
        let unconfirmed = self.unconfirmed.lock();
        unconfirmed.unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a volume. The journal counts the grant now, the pool when the journal is durable.
    fn create(&self, lease_id: LeaseId, extent: Extent) -> Result<Volume, StepError> {
        let counts = !self.pool.facts().read_only;
        let number = counts.then(|| self.next_grant()).transpose()?;
        let volume = self.pool.create(lease_id, extent)?;
        self.unconfirmed()
            .extend(number.map(|number| (lease_id, number)));
        Ok(volume)
    }

    /// The number of the next grant, greater than any before. It is committed together with the lease.
    fn next_grant(&self) -> Result<u64, StepError> {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.grants += 1;
        let put = record.put();
        let put = put.map_err(|error| StepError::new("count grant", error))?;
        self.writer.add(vec![put]);
        Ok(record.grants)
    }
}

impl Store for PoolStore {
    fn prepare(&self, order: &BindOrder, progress: &dyn Fn()) -> Result<(), StepError> {
        self.pool.prepare(order.extent(), progress)
    }

    fn open(&self, order: &BindOrder) -> Result<Part, BindError> {
        let (lease_id, extent) = (order.binding_id.lease_id, order.extent());
        let is_new = !order.adopts && !self.given().contains(&lease_id);
        let volume = match is_new {
            true => self.create(lease_id, extent),
            false => self.pool.reopen(lease_id, extent),
        };
        let volume = volume.map_err(|error| {
            let lacks = || self.pool.lacks_room(extent.length);
            match is_new.then(lacks).flatten() {
                Some(detail) => BindError::Unavailable(StepError { detail, ..error }),
                None => BindError::Failed(error),
            }
        })?;
        self.given().insert(lease_id);
        Ok(Part::with(order.placement.clone(), volume))
    }

    fn confirm(&self, binding_id: BindingId) -> Result<(), StepError> {
        let number = self.unconfirmed().remove(&binding_id.lease_id);
        number.map_or(Ok(()), |number| self.pool.count_grant(number))
    }

    fn forget(&self, binding_id: BindingId, placement: &Placement) -> Result<(), StepError> {
        let extent = Some(placement.extent());
        self.pool.destroy(binding_id.lease_id, extent, &|| ())?;
        self.unconfirmed().remove(&binding_id.lease_id);
        self.given().remove(&binding_id.lease_id);
        Ok(())
    }

    fn release(
        &self,
        binding_id: BindingId,
        placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        let extent = placement.map(Placement::extent);
        let cleaned = self.pool.destroy(binding_id.lease_id, extent, progress)?;
        self.unconfirmed().remove(&binding_id.lease_id);
        self.given().remove(&binding_id.lease_id);
        Ok(cleaned)
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.pool.leases()
    }

    fn tell_condition(&self, tell: TellCondition) {
        self.pool.tell_condition(tell);
    }
}

/// A pool in an empty directory, as a store, and its capacity.
#[cfg(test)]
pub(crate) fn store_in(directory: &std::path::Path, writer: Writer) -> (Arc<dyn Store>, u64) {
    let (store, capacity) = tests::in_directory(directory, writer);
    (Arc::new(store), capacity)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use fabricbios_helper::Supervisor;
    use fabricbios_pool::PoolConfig;
    use fabricbios_wire::{Generation, NodeId, ResourceId, Transport};

    use super::*;
    use crate::journal::Journal;

    const POOL: ResourceId = ResourceId(7);

    pub(super) fn in_directory(path: &Path, writer: Writer) -> (PoolStore, u64) {
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
        (PoolStore::new(pool, record, writer), capacity)
    }

    fn order(lease: u128) -> BindOrder {
        let binding_id = BindingId {
            lease_id: LeaseId(lease),
            generation: Generation(1),
            resource_id: POOL,
        };
        BindOrder::new(binding_id, Placement::Amount(1 << 20), Transport::Udp)
    }

    /// The table counts the free space that the directory had at the start.
    #[test]
    fn a_lease_that_the_file_system_has_no_room_for_is_refused_with_what_is_free() {
        let place = tempfile::tempdir().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = place.path().join("journal");
        let (journal, _) = Journal::open_here(&path, "boot", Box::new(|_| ())).unwrap();
        let (store, _) = in_directory(directory.path(), journal.writer());
        let too_much = BindOrder {
            placement: Placement::Amount(1 << 60),
            ..order(1)
        };
        let Err(BindError::Unavailable(why)) = store.open(&too_much) else {
            panic!("not refused for lack of room");
        };
        assert!(why.detail.contains("are free"), "{why}");
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
        let (store, _) = in_directory(directory.path(), journal.writer());
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
        let record: PoolRecord = crate::journal::records::decode(bytes).unwrap();
        assert_eq!(record.grants, 2);
    }

    #[test]
    fn a_grant_that_comes_to_nothing_is_not_counted_by_the_pool() {
        let place = tempfile::tempdir().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = place.path().join("journal");
        let (journal, _) = Journal::open_here(&path, "boot", Box::new(|_| ())).unwrap();
        let (store, _) = in_directory(directory.path(), journal.writer());
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
