//! The kernel's target as a data path for blocks.

use std::{fmt, sync::Arc};

use fabricbios_contract::{DataPath, Part, Revoked};
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Linger, Proof, StepError,
};
use fabricbios_wire::{
    Binding, BlockTerms, Generation, KindBinding, LeaseId, Limits, NvmeofBinding, ResourceType,
};

use super::{Export, Target};

/// Duties that the kernel does not have: it looks at no clock and knows no owner of a host. No method waits.
pub trait Guard: fmt::Debug + Send + Sync {
    /// Whether the watchdog is there to end access if this process cannot.
    fn watches(&self) -> bool;
    /// Sets the deadline of the lease; the newest one counts.
    fn extend(&self, binding_id: BindingId, deadline: BootTime);
    /// The end of the lease was proved.
    fn over(&self, binding_id: BindingId);
    /// Whether the tenant may use the host that its terms name.
    ///
    /// # Errors
    /// The reason why it may not.
    fn admits(&self, binding_id: BindingId, tenant: &str, terms: &BlockTerms)
    -> Result<(), String>;
}

impl Target {
    /// Sets the guard. For a target without leases.
    #[must_use]
    pub fn guarded_by(mut self, guard: Arc<dyn Guard>) -> Self {
        self.guard = Some(guard);
        self
    }
}

impl DataPath for Target {
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        let refused = |step: &'static str, why| BindError::Refused(StepError::new(step, why));
        let (Some(terms), Some(volume)) = (order.terms.block(), &part.volume) else {
            return Err(refused(
                "publish",
                format!("{}: it has no blocks", order.binding_id),
            ));
        };
        if let Some(guard) = &self.guard {
            check_watched(guard.watches(), order)?;
            let admitted = guard.admits(order.binding_id, &order.tenant, terms);
            admitted.map_err(|why| refused("host", why))?;
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
        if self
            .states
            .get_or_make(binding_id.lease_id)
            .is_closed(binding_id.generation)
        {
            return Err(AlreadyCut);
        }
        if let Some(guard) = &self.guard {
            guard.extend(binding_id, deadline);
        }
        Ok(())
    }

    /// Nothing to do: the kernel itself answers the client.
    fn fenced(&self, _binding_id: BindingId) {}

    fn extends_at_once(&self) -> bool {
        true
    }

    fn rotate(&self, binding_id: BindingId) -> Result<Binding, BindError> {
        self.rekey(binding_id).map(binding)
    }

    /// The old secret ended with the rotation.
    fn retire_key(&self, binding_id: BindingId) -> Result<Binding, StepError> {
        self.binding_of(binding_id).map(binding)
    }

    fn revoke(&self, binding_id: BindingId, _linger: Linger) -> Result<Revoked, StepError> {
        Self::revoke(self, binding_id)
    }

    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        let proof = Self::verify(self, binding_id, revoked)?;
        if let Some(guard) = &self.guard {
            guard.over(binding_id);
        }
        Ok(proof)
    }

    fn remove(&self, binding_id: BindingId, progress: &dyn Fn()) -> Result<(), StepError> {
        Self::remove(self, binding_id.lease_id, progress)
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Self::leases(self)
    }
}

/// Refuses a new lease while the watchdog is absent, since nobody else would end it if this process hangs. A lease
/// that is served already goes on.
fn check_watched(is_watched: bool, order: &BindOrder) -> Result<(), BindError> {
    let is_new = !order.adopts && order.binding_id.generation == Generation(1);
    if is_watched || !is_new {
        return Ok(());
    }
    Err(BindError::Failed(StepError::new(
        "reach the watchdog",
        format_args!(
            "{}: there is none; it is being started again",
            order.binding_id
        ),
    )))
}

fn binding(nvmeof: NvmeofBinding) -> Binding {
    Binding {
        kind: KindBinding::Block(Some(Box::new(nvmeof))),
        ..Binding::plain(ResourceType::Block)
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_lease::Placement;
    use fabricbios_wire::{ResourceId, Transport};

    use super::*;

    fn order(generation: u32, adopts: bool) -> BindOrder {
        BindOrder {
            adopts,
            ..BindOrder::new(
                BindingId {
                    lease_id: LeaseId(1),
                    generation: Generation(generation),
                    resource_id: ResourceId(7),
                },
                Placement::Amount(1 << 20),
                Transport::NvmeTcp,
            )
        }
    }

    #[test]
    fn without_a_watchdog_nothing_new_goes_over_nvmeof_and_what_is_there_goes_on() {
        check_watched(true, &order(1, false)).unwrap();
        let Err(BindError::Failed(error)) = check_watched(false, &order(1, false)) else {
            panic!("nobody would end it");
        };
        assert_eq!(error.step, "reach the watchdog".into());
        check_watched(false, &order(2, false)).unwrap();
        check_watched(false, &order(1, true)).unwrap();
    }
}
