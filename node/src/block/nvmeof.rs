//! NVMe-oF as a path: the kernel's target, with a watchdog, since the kernel looks at no clock.

use std::sync::Arc;

use fabricbios_contract::{DataPath, Part, Revoked};
use fabricbios_lease::{
    BindError, BindOrder, BlockOrder, BootTime, Farewell, Proof, StepError, Tag,
};
use fabricbios_nvmet::{Export, Target};
use fabricbios_wire::{Binding, Generation, LeaseId, Limits, NvmeofBinding};

use crate::{
    nvme_host::{NvmeHost, refuse_taken},
    watchdog::Watchdog,
};

/// See the module.
#[derive(Debug)]
pub(super) struct NvmeofPath {
    pub(super) target: Arc<Target>,
    pub(super) watchdog: Watchdog,
    /// Hosts that only one tenant may name.
    pub(super) hosts: Vec<NvmeHost>,
}

impl DataPath for NvmeofPath {
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        let (Some(block), Some(volume)) = (&order.block, &part.volume) else {
            let detail = format!("{}: it has no blocks", order.tag);
            return Err(BindError::Refused(StepError::new("publish", detail)));
        };
        check_watchdog(self.watchdog.watches(), order)?;
        self.check_host(order.tag, block)?;
        let nvmeof = self.target.publish(&Export {
            tag: order.tag,
            tenant: Arc::clone(&block.tenant),
            terms: block.terms.clone(),
            volume: volume.path.clone(),
            block_bytes: volume.block_bytes,
            transport: order.transport,
            grace: block.grace,
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

    fn extend(&self, tag: Tag, deadline: BootTime) {
        self.watchdog.extend(tag, deadline);
    }

    /// Whoever still asks is answered by the kernel.
    fn fenced(&self, _tag: Tag) {}

    fn rotate(&self, tag: Tag) -> Result<Binding, BindError> {
        self.target.rekey(tag).map(binding)
    }

    /// The old secret was dead at once.
    fn retire_key(&self, tag: Tag) -> Result<Binding, StepError> {
        self.target.binding_of(tag).map(binding)
    }

    fn revoke(&self, tag: Tag, _farewell: Farewell) -> Result<Revoked, StepError> {
        self.target.revoke(tag)
    }

    fn verify(&self, tag: Tag, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        let proof = self.target.verify(tag, revoked)?;
        self.watchdog.over(tag);
        Ok(proof)
    }

    fn remove(&self, tag: Tag, progress: &dyn Fn()) -> Result<(), StepError> {
        self.target.remove(tag.lease_id, progress)
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.target.leases()
    }
}

impl NvmeofPath {
    /// Whether the tenant may name the host that it names. Who has which is in the log, so that an operator
    /// can end what should not be.
    fn check_host(&self, tag: Tag, block: &BlockOrder) -> Result<(), BindError> {
        let (tenant, terms) = (&*block.tenant, &block.terms);
        let refused = |why| BindError::Refused(StepError::new("host", why));
        refuse_taken(&self.hosts, tenant, terms).map_err(refused)?;
        if let Some(host_nqn) = &terms.host_nqn {
            tracing::info!(lease_id = %tag.lease_id, %tenant, %host_nqn, "a tenant named its host");
        }
        Ok(())
    }
}

/// The kernel would serve a new lease without anybody who ends that in this process's stead. One that it serves
/// already goes on.
fn check_watchdog(is_watched: bool, order: &BindOrder) -> Result<(), BindError> {
    let is_new = !order.adopts && order.tag.generation == Generation(1);
    if is_watched || !is_new {
        return Ok(());
    }
    Err(BindError::Failed(StepError::new(
        "reach the watchdog",
        format_args!("{}: there is none; it is being started again", order.tag),
    )))
}

fn binding(nvmeof: NvmeofBinding) -> Binding {
    Binding {
        nvmeof: Some(Box::new(nvmeof)),
        ..Binding::default()
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_lease::Extent;
    use fabricbios_wire::{ResourceId, Transport};

    use super::*;

    fn order(generation: u32, adopts: bool) -> BindOrder {
        BindOrder {
            tag: Tag {
                lease_id: LeaseId(1),
                generation: Generation(generation),
                resource_id: ResourceId(7),
            },
            extent: Extent {
                offset: 0,
                length: 1 << 20,
            },
            transport: Transport::NvmeTcp,
            peers: Vec::new(),
            block: None,
            adopts,
        }
    }

    #[test]
    fn without_a_watchdog_nothing_new_goes_over_nvmeof_and_what_is_there_goes_on() {
        check_watchdog(true, &order(1, false)).unwrap();
        let Err(BindError::Failed(error)) = check_watchdog(false, &order(1, false)) else {
            panic!("nobody would end it");
        };
        assert_eq!(error.step, "reach the watchdog");
        check_watchdog(false, &order(2, false)).unwrap();
        check_watchdog(false, &order(1, true)).unwrap();
    }
}
