//! The backend: orders of the lease table, carried out on one port and one arena.

use std::{net::SocketAddr, num::NonZeroUsize, sync::Arc, thread};

use fabricbios_arena::{ALIGN, Arena};
use fabricbios_lease::{
    Backend, BindError, BindOrder, BootTime, Extent, Farewell, Layout, Offer, Outlives, StepError,
    Tag,
};
use fabricbios_wire::{Binding, ResourceId, Transport};

use super::{
    counters::Counters,
    serving::Serving,
    socket,
    table::Table,
    worker::{Server, Workers},
};
use crate::{Rate, Standing};

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
    pub(super) serving: Arc<Serving>,
    pub(super) table: Table,
    pub(super) address: SocketAddr,
    pub(super) rate: Rate,
    counters: Arc<Counters>,
    workers: Workers,
}

impl FbmuBackend {
    /// Opens the sockets and starts serving; no lease is known yet. `Err`: the port is taken, or the
    /// system has no room.
    pub fn open(config: FbmuConfig) -> Result<Self, StepError> {
        let failed = |error| StepError::new("start FBMU", format_args!("{error}"));
        let count = config.workers.map_or_else(usual_workers, NonZeroUsize::get);
        let sockets = socket::open(config.listen, count)?;
        let address = sockets[0].local_addr().map_err(failed)?;
        let (serving, counters) = (Arc::default(), Arc::default());
        let workers = Workers::start(sockets, || Server::new(&serving, &counters));
        let workers = workers.map_err(failed)?;
        let at_once = (config.ops_per_second / 10).max(256);
        Ok(Self {
            resource_id: config.resource_id,
            arena: config.arena,
            serving,
            table: Table::default(),
            address,
            rate: Rate::new(config.ops_per_second, at_once),
            counters,
            workers,
        })
    }

    /// Where it is served; the address may be a wildcard.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
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
            outlives: Outlives::arena(self.arena.backing().outlives_process),
            layout: Layout::Stretches,
            read_only: false,
        }])
    }

    fn bind(&self, order: &BindOrder) -> Result<Binding, BindError> {
        self.carry_out(order)
    }

    fn extend(&self, tag: Tag, deadline: BootTime) {
        if let Some(entry) = self.serving.leases.of(tag) {
            entry.extend(deadline);
        }
    }

    fn fenced(&self, tag: Tag) {
        if let Some(entry) = self.serving.leases.of(tag) {
            entry.set(Standing::Fenced);
        }
    }

    fn rotate(&self, tag: Tag) -> Result<Binding, BindError> {
        self.add_key(tag)
    }

    fn retire_key(&self, tag: Tag) -> Result<Binding, StepError> {
        self.drop_old_key(tag)
    }

    /// A farewell costs nothing here: a key that is cut is answered with NO_LEASE anyway.
    fn cut(&self, tag: Tag, _farewell: Farewell) -> Result<String, StepError> {
        let Some(slot) = self.table.find_or_make(tag.lease_id) else {
            return Ok("it was released before".into());
        };
        let mut life = slot.lock();
        life.cut_through = life.cut_through.max(Some(tag.generation));
        if let Some(newer) = life.generation.filter(|it| *it > tag.generation) {
            let newer = newer.0;
            return Ok(format!("the lease has moved on to generation {newer}"));
        }
        self.end(&mut life, tag)
    }

    fn release(&self, tag: Tag, extent: Extent, progress: &dyn Fn()) -> Result<(), StepError> {
        self.check_extent(extent)?;
        self.give_back(tag, Some((extent, progress)))
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

fn usual_workers() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get().min(WORKERS_AT_MOST))
}
