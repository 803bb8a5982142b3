//! The memory that the operator offers, and the road over which it is reached.

use std::{fmt, net::Ipv6Addr, sync::Arc};

use anyhow::bail;
use fabricbios_lease::{Backend, Offer};
use fabricbios_premium::rdma::{RdmaBackend, RdmaConfig, RdmaOpened};
use fabricbios_wire::{NodeId, ResourceType};

use crate::{config::Settings, detect::resource_id, inventory::OfferedArena};

/// Memory on offer.
pub struct OfferedMemory {
    /// What the table may give out.
    pub offer: Offer,
    /// What inventories say of it.
    pub arena: OfferedArena,
    /// What makes its leases real.
    pub backend: Arc<dyn Backend>,
}

impl OfferedMemory {
    /// What `backend` offers. `message_bytes_max`: most bytes in one operation of its data plane.
    pub fn of(backend: Arc<dyn Backend>, message_bytes_max: u32) -> anyhow::Result<Self> {
        let Some(offer) = backend.probe()?.into_iter().next() else {
            bail!("the memory backend offers no memory");
        };
        let arena = OfferedArena {
            resource_id: offer.resource_id,
            name: NAME.into(),
            align_bytes: u32::try_from(offer.align).unwrap_or(u32::MAX),
            message_bytes_max,
            transports: offer.transports.clone(),
        };
        Ok(Self {
            offer,
            arena,
            backend,
        })
    }
}

impl fmt::Debug for OfferedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfferedMemory")
            .field("offer", &self.offer)
            .finish_non_exhaustive()
    }
}

/// Name of the one memory resource of a node, detected or offered.
const NAME: &str = "mem0";

/// Opens what `--mem-bytes` and `--rdma-device` ask for. A node without RDMA is a normal node that
/// offers less; it says so once.
pub(crate) fn open(
    settings: &Settings,
    node_id: NodeId,
) -> anyhow::Result<Option<(OfferedMemory, Arc<RdmaBackend>)>> {
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
        arena_file: None,
    };
    tracing::info!(arena_bytes = arena_bytes.0, "preparing the arena");
    let backend = match RdmaBackend::open(config)? {
        RdmaOpened::Ready(backend) => backend,
        RdmaOpened::Absent(why) => {
            tracing::warn!("memory is not leasable on this node: {why}");
            return Ok(None);
        }
    };
    let facts = backend.inventory();
    tracing::info!(
        device = %facts.device,
        port = facts.port,
        gid = %Ipv6Addr::from(facts.gid),
        mtu_bytes = facts.mtu_bytes,
        atomics = facts.atomics,
        arena_bytes = arena_bytes.0,
        "memory is leased over RDMA"
    );
    let backend: Arc<RdmaBackend> = Arc::from(backend);
    let offered = OfferedMemory::of(backend.clone(), facts.message_bytes)?;
    Ok(Some((offered, backend)))
}

/// Gives the device back, when the node has stopped and nobody else uses it.
pub(crate) fn close(backend: Arc<RdmaBackend>) {
    let Some(backend) = Arc::into_inner(backend) else {
        // A call that is stuck in the kernel still holds it; the end of the process takes it.
        tracing::warn!("the RDMA device is still in use; it is left to the end of the process");
        return;
    };
    if let Err(error) = backend.close() {
        tracing::warn!(%error, "the RDMA device could not be given back");
    }
}
