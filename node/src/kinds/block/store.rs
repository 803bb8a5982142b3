//! A pool as a store of leases: one volume for each lease. Grants are counted in the journal and in the pool.

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

    /// Removes what a volume that could not be made has left: this process has given it to nobody. A node without
    /// descriptors finds nothing.
    fn take_back(&self, lease_id: LeaseId, extent: Extent) -> Result<(), StepError> {
        let found = self.pool.leases();
        match found.is_ok_and(|it| it.contains(&lease_id)) {
            true => self.pool.destroy(lease_id, Some(extent), &|| ()).map(drop),
            false => Ok(()),
        }
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
            // The supervisor may have made a device after the call was given up.
            if is_new && let Err(left) = self.take_back(lease_id, extent) {
                return BindError::Stranded(left);
            }
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

    fn place_of(&self, lease: LeaseId) -> Option<Placement> {
        self.pool.place_of(lease).map(Placement::Stretch)
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
mod tests;
