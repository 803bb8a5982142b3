//! The roads to a volume, opened for a lease.

use std::sync::Arc;

use fabricbios_fallback_udp::BlockFile;
use fabricbios_lease::{BindError, BindOrder, BlockOrder, StepError, Tag};
use fabricbios_nvmet::Export;
use fabricbios_pool::Volume;
use fabricbios_wire::{Binding, Limits, NvmeofBinding, Transport};

use super::BlockBackend;
use crate::{nvme_host::refuse_taken, roads::stranded_unless};

impl BlockBackend {
    /// Opens the roads to a volume; whatever one of them left is closed when the other does not open.
    pub(super) fn open_roads(
        &self,
        order: &BindOrder,
        volume: &Volume,
    ) -> Result<Binding, BindError> {
        let nvmeof = match order.transport {
            Transport::Udp => None,
            _ => Some(Box::new(self.publish(order, volume)?)),
        };
        let udp = match order.transport {
            Transport::Udp | Transport::Both => self.serve(order, volume),
            _ => Ok(Binding::default()),
        };
        match udp {
            Ok(udp) => Ok(Binding {
                nvmeof,
                limits: Some(limits(volume)),
                ..udp
            }),
            Err(error) if nvmeof.is_some() => Err(self.unpublish(order.tag, error)),
            Err(error) => Err(error),
        }
    }

    fn publish(&self, order: &BindOrder, volume: &Volume) -> Result<NvmeofBinding, BindError> {
        let (Some(exports), Some(block)) = (&self.exports, &order.block) else {
            return Err(no_road("NVMe-oF"));
        };
        self.check_host(order.tag, block)?;
        exports.publish(&export(order, block, volume))
    }

    fn serve(&self, order: &BindOrder, volume: &Volume) -> Result<Binding, BindError> {
        let Some(datagrams) = &self.datagrams else {
            return Err(no_road("UDP"));
        };
        let read_only =
            volume.read_only || order.block.as_ref().is_some_and(|it| it.terms.read_only);
        let file = BlockFile {
            path: volume.path.clone(),
            bytes: volume.bytes,
            block_bytes: volume.block_bytes,
            read_only,
        };
        let tenant = order.block.as_ref().map(|it| &*it.tenant);
        datagrams.bind(order.tag, tenant.unwrap_or_default(), &file)
    }

    fn unpublish(&self, tag: Tag, error: BindError) -> BindError {
        let closed = self.exports.as_ref().map_or(Ok(()), |exports| {
            exports.cut(tag)?;
            exports.remove(tag.lease_id, &|| ())
        });
        stranded_unless(closed, error)
    }

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

fn export(order: &BindOrder, block: &BlockOrder, volume: &Volume) -> Export {
    Export {
        tag: order.tag,
        tenant: Arc::clone(&block.tenant),
        terms: block.terms.clone(),
        volume: volume.path.clone(),
        block_bytes: volume.block_bytes,
        transport: order.transport,
        grace: block.grace,
    }
}

fn limits(volume: &Volume) -> Limits {
    Limits {
        offset: 0,
        length: volume.bytes / u64::from(volume.block_bytes.max(1)),
    }
}

fn no_road(name: &str) -> BindError {
    BindError::Refused(StepError::new(
        "open road",
        format!("{name} is not served here"),
    ))
}
