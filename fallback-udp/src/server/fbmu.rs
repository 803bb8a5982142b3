//! FBMU: the data path for memory over UDP, on one port for all arenas of a node.

use std::{net::SocketAddr, num::NonZeroUsize, sync::Arc, thread};

use fabricbios_arena::{Arena, Arenas};
use fabricbios_contract::{Inline, Part};
use fabricbios_lease::{BindError, BindOrder, Extent, StepError};
use fabricbios_wire::{Binding, DataService, ResourceId};

use super::{
    bytes::Bytes, entry::Content, memory_server::MemoryServer, socket, udp_path::UdpPath,
    worker::Workers,
};

/// Name of the service in logs and errors.
const NAME: &str = "FBMU";

/// Default number of threads, at most: a few fast links need no more, and further threads would take processors from
/// the machine's own work.
const WORKERS_AT_MOST: usize = 4;

/// Settings of an [`FbmuPath`].
#[derive(Clone, Debug)]
pub struct FbmuConfig {
    /// Address and port. The node's default port is 5702; 0: the system chooses one.
    pub listen: SocketAddr,
    /// Number of threads, each with a socket; by default one per processor, four at most.
    pub workers: Option<NonZeroUsize>,
    /// The memory that leases are parts of.
    pub arenas: Arenas,
    /// Most new requests of one lease per second; further ones are answered with BUSY.
    pub ops_per_second: u32,
}

impl FbmuConfig {
    /// The default limit: more requests per second than one client can send.
    pub const OPS_PER_SECOND: u32 = 1_000_000;
}

/// The data path for memory over UDP.
pub type FbmuPath = UdpPath<Bytes>;

impl FbmuPath {
    /// Opens the sockets and starts the threads, without any lease.
    ///
    /// # Errors
    /// The port is taken by another program, or the system refuses a socket or a thread.
    pub fn open(config: FbmuConfig) -> Result<Self, StepError> {
        let failed = |error| StepError::new("start FBMU", format_args!("{error}"));
        let count = config.workers.map_or_else(usual_workers, NonZeroUsize::get);
        let sockets = socket::open(NAME, config.listen, count)?;
        let address = sockets[0].local_addr().map_err(failed)?;
        let (leases, counters) = (Arc::default(), Arc::default());
        let workers = Workers::start(NAME, sockets, || MemoryServer::new(&leases, &counters));
        let workers = workers.map_err(failed)?;
        let rate = config.ops_per_second;
        Ok(UdpPath::new(
            address,
            rate,
            config.arenas,
            (leases, counters),
            workers,
        ))
    }
}

impl Content for Bytes {
    const SERVICE: DataService = DataService::Memory;
    type Source = Arenas;

    /// A cut waits for a request that copies bytes, and so for the disk of an arena on a disk.
    fn inline(arenas: &Arenas, resource_id: ResourceId) -> Inline {
        match arenas.get(&resource_id) {
            Some(arena) if arena.backing().in_memory => Inline::Everything,
            _ => Inline::Nothing,
        }
    }

    fn bind(path: &UdpPath<Self>, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        let (resource_id, extent) = (order.binding_id.resource_id, part.extent());
        let arena = path.source.get(&resource_id).ok_or_else(|| {
            let why = format_args!("resource {resource_id} is no memory that is served here");
            BindError::Refused(StepError::new("find arena", why))
        })?;
        check_extent(arena, extent).map_err(BindError::Refused)?;
        let cell = path.cell(order.binding_id)?;
        let bytes = Bytes {
            arena: Arc::clone(arena),
            extent,
        };
        path.open_binding(&cell, order.binding_id, bytes)
    }
}

fn check_extent(arena: &Arena, extent: Extent) -> Result<(), StepError> {
    let Extent { offset, length } = extent;
    let end = offset.checked_add(length);
    let arena = arena.bytes();
    if length > 0 && end.is_some_and(|end| end <= arena) {
        return Ok(());
    }
    let detail = format!("{length} bytes at {offset} are not within the {arena} of the arena");
    Err(StepError::new("check extent", detail))
}

pub(super) fn usual_workers() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get().min(WORKERS_AT_MOST))
}
