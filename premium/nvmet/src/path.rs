//! The kernel's target as a data path for blocks.

use std::{fmt, sync::Arc};

use fabricbios_contract::{Bindings, DataPath, Guard, Part, Revoked, Volume};
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Linger, Proof, StepError,
};
use fabricbios_wire::{
    Binding, BlockTerms, KindBinding, LeaseId, Limits, NvmeofBinding, ResourceType,
};

use super::{Export, Target};

/// Knows the owner of each host, which the kernel does not. Its calls do not wait.
pub trait HostOwners: fmt::Debug + Send + Sync {
    /// Checks that the tenant may use the host that the terms name.
    ///
    /// # Errors
    /// The tenant may not use it, for this reason.
    fn admits(
        &self,
        binding_id: BindingId,
        tenant: &str,
        terms: &BlockTerms,
    ) -> Result<(), StepError>;
}

impl Target {
    /// Sets the guard, since the kernel ends no access by time, and the owners of hosts. For a target that has no
    /// leases yet.
    #[must_use]
    pub fn guarded_by(mut self, guard: Arc<dyn Guard>, owners: Arc<dyn HostOwners>) -> Self {
        self.bindings = Bindings::guarded_by(guard);
        self.owners = Some(owners);
        self
    }
}

impl DataPath for Target {
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        let Some(terms) = order.terms.block() else {
            let why = format_args!("{}: its terms are not those of blocks", order.binding_id);
            return Err(BindError::Refused(StepError::new("publish", why)));
        };
        let volume = part.record::<Volume>()?;
        self.bindings.check_guard(order)?;
        if let Some(owners) = &self.owners {
            let admitted = owners.admits(order.binding_id, &order.tenant, terms);
            admitted.map_err(BindError::Refused)?;
        }
        let nvmeof = self.publish(&Export {
            binding_id: order.binding_id,
            tenant: Arc::clone(&order.tenant),
            terms: terms.clone(),
            volume: volume.path.clone(),
            block_bytes: volume.block_bytes,
            transport: order.transport,
            grace: order.grace,
        })?;
        let block_bytes = u64::from(volume.block_bytes.max(1));
        let limits = Limits {
            offset: 0,
            length: volume.bytes / block_bytes,
        };
        Ok(Binding {
            limits: Some(limits),
            ..binding(nvmeof)
        })
    }

    fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        self.bindings.extend(binding_id, deadline)
    }

    /// Does nothing: the kernel itself answers the client.
    fn fenced(&self, _binding_id: BindingId) {}

    fn rotate(&self, binding_id: BindingId) -> Result<Binding, BindError> {
        self.rekey(binding_id).map(binding)
    }

    /// Returns the present binding: the old secret ended with the rotation.
    fn retire_key(&self, binding_id: BindingId) -> Result<Binding, StepError> {
        self.binding_of(binding_id).map(binding)
    }

    fn revoke(&self, binding_id: BindingId, _linger: Linger) -> Result<Revoked, StepError> {
        Self::revoke(self, binding_id)
    }

    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        Self::verify(self, binding_id, revoked)
    }

    fn remove(&self, binding_id: BindingId, progress: &dyn Fn()) -> Result<(), StepError> {
        Self::remove(self, binding_id.lease_id, progress)
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Self::leases(self)
    }
}

fn binding(nvmeof: NvmeofBinding) -> Binding {
    Binding {
        kind: KindBinding::Block(Some(Box::new(nvmeof))),
        ..Binding::plain(ResourceType::Block)
    }
}
