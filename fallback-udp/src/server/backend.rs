//! The backend: orders of the lease table, carried out on one port and one arena.

use std::{net::SocketAddr, num::NonZeroUsize, sync::Arc, thread};

use fabricbios_arena::Arena;
use fabricbios_contract::{DataPath, Part, Revoked};
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BootTime, Extent, Farewell, Proof, StepError, Tag,
};
use fabricbios_wire::{Binding, LeaseId};

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

impl FbmuBackend {
    fn check_extent(&self, extent: Extent) -> Result<(), StepError> {
        let Extent { offset, length } = extent;
        let end = offset.checked_add(length);
        if length > 0 && end.is_some_and(|end| end <= self.arena.bytes()) {
            return Ok(());
        }
        let arena = self.arena.bytes();
        let detail = format!("{length} bytes at {offset} are not within the {arena} of the arena");
        Err(StepError::new("check extent", detail))
    }
}

impl DataPath for FbmuBackend {
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        self.check_extent(part.extent())
            .map_err(BindError::Refused)?;
        let slot = self.road.slot(order.tag)?;
        let bytes = Bytes {
            arena: Arc::clone(&self.arena),
            extent: part.extent(),
        };
        self.road.bind(&slot, order.tag, bytes)
    }

    fn extend(&self, tag: Tag, deadline: BootTime) -> Result<(), AlreadyCut> {
        self.road.extend(tag, deadline)
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

    fn revoke(&self, tag: Tag, _farewell: Farewell) -> Result<Revoked, StepError> {
        self.road.cut(tag).map(Revoked::proved)
    }

    fn verify(&self, tag: Tag, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        self.road.verify(tag, revoked)
    }

    fn remove(&self, tag: Tag, progress: &dyn Fn()) -> Result<(), StepError> {
        self.road.give_back(tag, progress, |_| ())
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Ok(self.road.leases())
    }
}

pub(super) fn usual_workers() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get().min(WORKERS_AT_MOST))
}
