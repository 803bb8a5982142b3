//! The memory that the operator offers, and the road over which it is reached.

use std::sync::Arc;

use anyhow::bail;
use fabricbios_lease::{Backend, Offer};
use fabricbios_premium::rdma::{Opened, RdmaBackend, RdmaConfig};
use fabricbios_wire::{NodeId, ResourceType};

use crate::{config::Settings, detect::resource_id, inventory::OfferedArena};

/// Memory on offer.
pub(crate) struct OfferedMemory {
    pub(crate) offer: Offer,
    pub(crate) arena: OfferedArena,
    pub(crate) backend: Arc<dyn Backend>,
}

/// Name of the one memory resource of a node, detected or offered.
const NAME: &str = "mem0";

/// Opens what `--mem-bytes` and `--rdma-device` ask for. A node without RDMA is a normal node that
/// offers less; it says so once.
pub(crate) fn open(settings: &Settings, node_id: NodeId) -> anyhow::Result<Option<OfferedMemory>> {
    let Some(arena_bytes) = settings.mem_bytes else {
        tracing::info!("no memory is offered for lease; --mem-bytes SIZE offers some");
        return Ok(None);
    };
    let Some(device) = settings.rdma_device() else {
        tracing::warn!("--mem-bytes without an RDMA device: memory is not leasable on this node");
        return Ok(None);
    };
    let resource_id = resource_id(&node_id, ResourceType::Mem, NAME);
    let config = RdmaConfig {
        device,
        arena_bytes: arena_bytes.0,
        resource_id,
    };
    let backend = match RdmaBackend::open(config)? {
        Opened::Ready(backend) => backend,
        Opened::Absent(why) => {
            tracing::warn!("memory is not leasable on this node: {why}");
            return Ok(None);
        }
    };
    let Some(offer) = backend.probe()?.into_iter().next() else {
        bail!("the RDMA device offers no memory");
    };
    let arena = OfferedArena {
        resource_id,
        name: NAME.into(),
        align_bytes: u32::try_from(offer.align).unwrap_or(u32::MAX),
        message_bytes_max: backend.message_bytes_max(),
        transports: offer.transports.clone(),
    };
    Ok(Some(OfferedMemory {
        offer,
        arena,
        backend: Arc::new(backend),
    }))
}
