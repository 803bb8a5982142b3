//! The backend: orders of the lease table, carried out on one port and one arena.

use std::{net::SocketAddr, num::NonZeroUsize, sync::Arc, thread};

use fabricbios_arena::{ALIGN, Arena};
use fabricbios_lease::{
    Backend, BindError, BindOrder, BootTime, Extent, Farewell, FenceScope, Layout, Offer, Outlives,
    Proof, StepError, Tag,
};
use fabricbios_wire::{Binding, ResourceId, Transport};

use super::{
    bytes::Bytes, counters::Counters, memory_server::MemoryServer, road::Road, socket,
    worker::Workers,
};

/// Of sockets and threads, for people.
const NAME: &str = "FBMU";

/// Threads where none are configured: more than a few fast links need is taken from the machine's
/// own work.
const WORKERS_AT_MOST: usize = 4;

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct FbmuConfig {
    /// Address and port; the port is 5702 by default of the node. 0: any.
    pub listen: SocketAddr,
    /// Threads, each with a socket; without a number one per processor, four at most.
    pub workers: Option<NonZeroUsize>,
    /// The resource that the arena is.
    pub resource_id: ResourceId,
    /// The bytes.
    pub arena: Arc<Arena>,
    /// New requests in sessions that a lease is served each second; what is more gets BUSY.
    pub ops_per_second: u32,
}

impl FbmuConfig {
    /// More than one client can ask.
    pub const OPS_PER_SECOND: u32 = 1_000_000;
}

/// Leases of memory over UDP.
#[derive(Debug)]
pub struct FbmuBackend {
    pub(super) resource_id: ResourceId,
    pub(super) arena: Arc<Arena>,
    pub(super) road: Road<Bytes>,
    counters: Arc<Counters>,
    workers: Workers,
}

impl FbmuBackend {
    /// Opens the sockets and starts serving; no lease is known yet. `Err`: the port is taken, or the
    /// system has no room.
    pub fn open(config: FbmuConfig) -> Result<Self, StepError> {
        let failed = |error| StepError::new("start FBMU", format_args!("{error}"));
        let count = config.workers.map_or_else(usual_workers, NonZeroUsize::get);
        let sockets = socket::open(NAME, config.listen, count)?;
        let address = sockets[0].local_addr().map_err(failed)?;
        let (road, counters) = (Road::new(address, config.ops_per_second), Arc::default());
        let workers = Workers::start(NAME, sockets, || {
            MemoryServer::new(&road.serving, &counters)
        });
        let workers = workers.map_err(failed)?;
        Ok(Self {
            resource_id: config.resource_id,
            arena: config.arena,
            road,
            counters,
            workers,
        })
    }

    /// Where it is served; the address may be a wildcard.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.road.address
    }

    /// What went through the sockets.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Stops serving and gives the port back. What the threads have taken in is answered first.
    pub fn close(self) {
        drop(self.workers);
    }
}

impl Backend for FbmuBackend {
    fn probe(&self) -> Result<Vec<Offer>, StepError> {
        Ok(vec![Offer {
            resource_id: self.resource_id,
            capacity: self.arena.bytes(),
            align: ALIGN,
            transports: vec![Transport::Udp],
            ends: vec![Transport::Udp],
            outlives: Outlives::arena(self.arena.backing().outlives_process),
            fence_scope: FenceScope::Whole,
            layout: Layout::Stretches,
            read_only: false,
        }])
    }

    fn bind(&self, order: &BindOrder) -> Result<Binding, BindError> {
        self.carry_out(order)
    }

    fn extend(&self, tag: Tag, deadline: BootTime) {
        self.road.extend(tag, deadline);
    }

    fn fenced(&self, tag: Tag) {
        self.road.fenced(tag);
    }

    fn rotate(&self, tag: Tag) -> Result<Binding, BindError> {
        self.road.add_key(tag)
    }

    fn retire_key(&self, tag: Tag) -> Result<Binding, StepError> {
        self.road.drop_old_key(tag)
    }

    fn cut(&self, tag: Tag, _farewell: Farewell) -> Result<Proof, StepError> {
        self.road.cut(tag)
    }

    fn release(&self, tag: Tag, extent: Extent, progress: &dyn Fn()) -> Result<(), StepError> {
        self.check_extent(extent)?;
        self.road
            .give_back(tag, progress, |_| self.scrub(tag, extent, progress))
    }

    fn reset(&self, resource_id: ResourceId, leases: &[(Tag, Extent)]) -> Result<(), StepError> {
        if resource_id != self.resource_id {
            let detail = format!("{resource_id} is not ours");
            return Err(StepError::new("reset", detail));
        }
        leases
            .iter()
            .try_for_each(|(tag, extent)| self.remedy(*tag, *extent))
    }
}

pub(super) fn usual_workers() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get().min(WORKERS_AT_MOST))
}
