//! One path to all interfaces on offer, as each kind of resource has the same paths for all its stores.

use std::{collections::BTreeMap, sync::Arc};

use fabricbios_contract::{
    Caller, DataPath, Entered, Given, LocalAccess, LocalRefusal, Part, Revoked,
};
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Linger, Proof, StepError,
};
use fabricbios_wire::{Binding, LeaseId, ResourceId};

/// The path of each interface, by its resource.
#[derive(Default)]
pub(super) struct NetPaths {
    paths: BTreeMap<ResourceId, Arc<dyn DataPath>>,
    local: Vec<Arc<dyn LocalAccess>>,
}

impl NetPaths {
    pub(super) fn add(
        &mut self,
        id: ResourceId,
        path: Arc<dyn DataPath>,
        local: Arc<dyn LocalAccess>,
    ) {
        self.paths.insert(id, path);
        self.local.push(local);
    }

    fn of(&self, binding_id: BindingId) -> Result<&dyn DataPath, StepError> {
        let path = self.paths.get(&binding_id.resource_id);
        path.map(|it| &**it).ok_or_else(|| {
            let why = format!("{binding_id}: its interface is not on offer");
            StepError::new("find path", why)
        })
    }
}

impl DataPath for NetPaths {
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        let path = self.of(order.binding_id).map_err(BindError::Failed)?;
        path.bind(order, part)
    }

    fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        // A lease without a path has no access to extend.
        let path = self.of(binding_id).map_err(|_not_offered| AlreadyCut)?;
        path.extend(binding_id, deadline)
    }

    fn revoke(&self, binding_id: BindingId, linger: Linger) -> Result<Revoked, StepError> {
        self.of(binding_id)?.revoke(binding_id, linger)
    }

    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        self.of(binding_id)?.verify(binding_id, revoked)
    }

    fn remove(&self, binding_id: BindingId, progress: &dyn Fn()) -> Result<(), StepError> {
        self.of(binding_id)?.remove(binding_id, progress)
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        let mut all = Vec::new();
        for path in self.paths.values() {
            all.extend(path.leases()?);
        }
        Ok(all)
    }
}

impl LocalAccess for NetPaths {
    fn enter(
        &self,
        lease: LeaseId,
        caller: &Caller,
        mut given: Given,
    ) -> Result<Entered, LocalRefusal> {
        for local in &self.local {
            let copy = match &given {
                Given::Process(fd) => fd.try_clone().map(Given::Process),
                Given::NetworkNamespace(fd) => fd.try_clone().map(Given::NetworkNamespace),
            };
            let copy = copy.map_err(|error| {
                let error = StepError::new("copy descriptor", error);
                LocalRefusal::Failed(error)
            })?;
            match local.enter(lease, caller, std::mem::replace(&mut given, copy)) {
                Err(LocalRefusal::NotFound) => {}
                outcome => return outcome,
            }
        }
        Err(LocalRefusal::NotFound)
    }
}
