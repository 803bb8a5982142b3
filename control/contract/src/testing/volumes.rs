//! A store of volumes, for the tests of paths to blocks.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use fabricbios_lease::{BindError, BindOrder, BindingId, Placement, Proof, StepError};
use fabricbios_wire::LeaseId;

use crate::{Part, Store, TellCondition, Volume};

/// A store whose volumes exist already: the offset of a lease's extent is the number of its volume. It cleans nothing.
#[derive(Debug, Default)]
pub struct Volumes {
    volumes: Vec<Volume>,
    /// The leases on record, also those of an earlier process.
    leases: Arc<Mutex<BTreeSet<LeaseId>>>,
}

impl Volumes {
    /// A store of these volumes, with the leases that another process has on record.
    #[must_use]
    pub fn new(volumes: Vec<Volume>, leases: Arc<Mutex<BTreeSet<LeaseId>>>) -> Self {
        Self { volumes, leases }
    }
}

impl Store for Volumes {
    fn prepare(&self, _: &BindOrder, _: &dyn Fn()) -> Result<(), StepError> {
        Ok(())
    }

    fn open(&self, order: &BindOrder) -> Result<Part, BindError> {
        let lease = order.binding_id.lease_id;
        let is_new = self.leases.lock().unwrap().insert(lease);
        if is_new && order.adopts {
            self.leases.lock().unwrap().remove(&lease);
            return Err(BindError::Failed(StepError::new("open", "no such lease")));
        }
        let number = usize::try_from(order.extent().offset).unwrap();
        let volume = self.volumes[number].clone();
        Ok(Part::with(order.placement.clone(), volume))
    }

    fn confirm(&self, _: BindingId) -> Result<(), StepError> {
        Ok(())
    }

    fn forget(&self, binding_id: BindingId, _: &Placement) -> Result<(), StepError> {
        self.leases.lock().unwrap().remove(&binding_id.lease_id);
        Ok(())
    }

    fn release(
        &self,
        binding_id: BindingId,
        _: Option<&Placement>,
        _: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        self.leases.lock().unwrap().remove(&binding_id.lease_id);
        Ok(Proof::nothing_to_clean("the volume is the test's"))
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Ok(self.leases.lock().unwrap().iter().copied().collect())
    }

    fn tell_condition(&self, _: TellCondition) {}
}
