//! A path to volumes, for the tests of stores of blocks.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Linger, Proof, StepError,
};
use fabricbios_wire::{Binding, LeaseId, ResourceType};

use super::{Calls, Watching};
use crate::{Bindings, DataPath, Part, Revoked, Volume};

/// The kernel of [`Exports`], which outlives its process: the volumes to which it gives access.
#[derive(Debug, Default)]
pub struct Exported {
    volumes: Mutex<BTreeMap<LeaseId, Volume>>,
    /// `export` and `end`.
    pub calls: Calls,
}

/// A path whose kernel gives every client access to the volume of a lease while the lease is bound.
#[derive(Debug)]
pub struct Exports {
    bindings: Bindings,
    kernel: Arc<Exported>,
}

impl Exported {
    /// The volume of a lease that gives access.
    #[must_use]
    pub fn volume(&self, lease: LeaseId) -> Option<Volume> {
        self.volumes.lock().unwrap().get(&lease).cloned()
    }

    /// The leases that give access.
    #[must_use]
    pub fn leases(&self) -> Vec<LeaseId> {
        self.volumes.lock().unwrap().keys().copied().collect()
    }

    fn call(&self, name: &'static str) -> Result<(), StepError> {
        let begun = self.calls.begin(name);
        begun.map_err(|why| StepError::new(name, why))
    }

    fn export(&self, lease: LeaseId, volume: Volume) -> Result<(), StepError> {
        self.call("export")?;
        self.volumes.lock().unwrap().insert(lease, volume);
        Ok(())
    }

    fn end(&self, lease: LeaseId) -> Result<Revoked, StepError> {
        self.call("end")?;
        self.volumes.lock().unwrap().remove(&lease);
        Ok(Revoked::by(Proof::nothing_to_cut("it is not exported")))
    }
}

impl Exports {
    /// A path of a process that starts on this kernel.
    #[must_use]
    pub fn on(kernel: Arc<Exported>, guard: Arc<Watching>) -> Self {
        Self {
            bindings: Bindings::guarded_by(guard),
            kernel,
        }
    }
}

impl DataPath for Exports {
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        let making = self.bindings.begin(order)?;
        making.check()?;
        let (lease, volume) = (order.binding_id.lease_id, part.record::<Volume>()?);
        let export = || self.kernel.export(lease, Volume::clone(&volume));
        let made = making.beside(|| export().map_err(BindError::Failed));
        if made.is_err() {
            self.kernel.end(lease).map_err(BindError::Stranded)?;
        }
        made.map(|()| Binding::plain(ResourceType::Block))
    }

    fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        self.bindings.extend(binding_id, deadline)
    }

    fn revoke(&self, binding_id: BindingId, _linger: Linger) -> Result<Revoked, StepError> {
        let end = |_: &()| self.kernel.end(binding_id.lease_id);
        self.bindings.revoke(binding_id, end)
    }

    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        let lease = binding_id.lease_id;
        let end = |_: &()| self.kernel.end(lease);
        let prove = |_: &(), _: Option<&Revoked>| match self.kernel.volume(lease) {
            None => Ok(Proof::default()),
            Some(_) => Err(StepError::new("verify", "it is exported")),
        };
        self.bindings.verify(binding_id, revoked, end, prove)
    }

    fn remove(&self, binding_id: BindingId, _progress: &dyn Fn()) -> Result<(), StepError> {
        self.bindings.remove(binding_id.lease_id, |()| Ok(()))
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Ok(self.kernel.leases())
    }
}
