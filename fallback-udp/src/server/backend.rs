//! The backend: orders of the lease table, carried out on one port and one arena.

use std::{
    net::SocketAddr,
    num::NonZeroUsize,
    sync::{Arc, MutexGuard},
    thread,
};

use fabricbios_arena::{ALIGN, Arena};
use fabricbios_lease::{
    Backend, BindError, BindOrder, BootTime, Extent, Farewell, Offer, StepError, Tag,
};
use fabricbios_wire::{Binding, DpKey, Endpoint, Limits, ResourceId, Transport};

use super::{
    counters::Counters,
    entry::{Bytes, Entry},
    life::{Life, Slot, State},
    serving::Serving,
    socket,
    table::{Known, NotFree, Table},
    worker::Workers,
};
use crate::{DataKey, Keys, Rate, Standing};

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
    /// Requests that a lease is served each second; what is more gets BUSY.
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
    address: SocketAddr,
    rate: Rate,
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
        let workers = Workers::start(sockets, &serving, &counters).map_err(failed)?;
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

    fn check_order(&self, order: &BindOrder) -> Result<(), StepError> {
        let road = matches!(
            order.transport,
            Transport::Udp | Transport::Both | Transport::Auto
        );
        if order.tag.resource_id != self.resource_id || !road {
            let what = (order.transport, order.tag.resource_id);
            let detail = format!("{:?} on {} is not ours", what.0, what.1);
            return Err(StepError::new("check order", detail));
        }
        self.check_extent(order.extent)
    }

    pub(super) fn check_extent(&self, extent: Extent) -> Result<(), StepError> {
        let Extent { offset, length } = extent;
        let end = offset.checked_add(length);
        if length > 0 && end.is_some_and(|end| end <= self.arena.bytes()) {
            return Ok(());
        }
        let arena = self.arena.bytes();
        let detail = format!("{length} bytes at {offset} are not within the {arena} of the arena");
        Err(StepError::new("check extent", detail))
    }

    fn claim(&self, order: &BindOrder) -> Result<Arc<Slot>, BindError> {
        let claimed = self.table.claim(order.tag.lease_id, order.extent);
        let refused = |why: NotFree| {
            // Whose they are is for the log and not for the next tenant.
            tracing::error!(lease = %order.tag, ?why, "bytes were given out twice");
            failed(order.tag, "the bytes are not free on this node yet")
        };
        claimed.map_err(refused)?.ok_or(BindError::Cancelled)
    }

    /// Ends whatever older binding there is.
    fn make_way(&self, life: &mut Life, tag: Tag) -> Result<(), BindError> {
        let generation = Some(tag.generation);
        match &life.state {
            State::Empty | State::Cut { .. } => Ok(()),
            State::Live(_) if life.generation == generation => {
                Err(failed(tag, "this generation is bound already"))
            }
            State::Live(_) => match self.end(life, tag) {
                Ok(_proof) => Ok(()),
                Err(error) => Err(BindError::Stranded(error)),
            },
            State::Failed { error, .. } => Err(BindError::Stranded(error.clone())),
            State::Dirty { error, .. } => Err(failed(tag, &format!("not clean: {error}"))),
            State::Releasing(_) | State::Gone => Err(BindError::Cancelled),
        }
    }

    /// Coordinates of the binding in use.
    fn binding(&self, life: &Life) -> Binding {
        let State::Live(entry) = &life.state else {
            return Binding::default();
        };
        Binding {
            dp_key: life.key.clone(),
            udp_endpoint: Some(Endpoint::from(self.address)),
            limits: Some(Limits {
                offset: 0,
                length: entry.extent().length,
            }),
            rdma: None,
        }
    }

    /// The slot of a lease that is bound here.
    fn bound_slot(&self, tag: Tag, step: &str) -> Result<Arc<Slot>, StepError> {
        match self.table.find(tag.lease_id) {
            Known::Slot(slot) => Ok(slot),
            Known::Released | Known::No => Err(not_bound(step, tag)),
        }
    }
}

impl Backend for FbmuBackend {
    fn probe(&self) -> Result<Vec<Offer>, StepError> {
        Ok(vec![Offer {
            resource_id: self.resource_id,
            capacity: self.arena.bytes(),
            align: ALIGN,
            transports: vec![Transport::Udp],
            outlives_process: self.arena.backing().outlives_process,
        }])
    }

    fn bind(&self, order: &BindOrder) -> Result<Binding, BindError> {
        let tag = order.tag;
        self.check_order(order).map_err(BindError::Refused)?;
        let key = fresh_key(tag).map_err(BindError::Failed)?;
        let slot = self.claim(order)?;
        let mut life = slot.lock();
        if life.is_past(tag.generation) || life.is_cut(tag.generation) {
            return Err(BindError::Cancelled);
        }
        self.make_way(&mut life, tag)?;
        let bytes = Bytes {
            arena: Arc::clone(&self.arena),
            extent: order.extent,
        };
        let keys = Keys::new(DataKey::new(&key));
        let entry = Arc::new(Entry::new(tag, keys, bytes, self.rate));
        self.serving.leases.serve(Arc::clone(&entry));
        life.generation = Some(tag.generation);
        life.key = Some(key);
        life.state = State::Live(entry);
        Ok(self.binding(&life))
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
        let slot = self.bound_slot(tag, "rotate").map_err(BindError::Refused)?;
        let key = fresh_key(tag).map_err(BindError::Failed)?;
        let mut life = slot.lock();
        let entry = live(&life, tag, "rotate").map_err(BindError::Refused)?;
        let mut keys = entry.keys_alone();
        if keys.has_previous() {
            let detail = format!("{tag}: the key before the last rotation is not retired yet");
            return Err(BindError::Refused(StepError::new("rotate", detail)));
        }
        keys.rotate(DataKey::new(&key));
        drop(keys);
        life.generation = life.generation.max(Some(tag.generation));
        life.key = Some(key);
        Ok(self.binding(&life))
    }

    fn retire_key(&self, tag: Tag) -> Result<Binding, StepError> {
        let slot = self.bound_slot(tag, "retire key")?;
        let life = slot.lock();
        let entry = live(&life, tag, "retire key")?;
        self.prove_retired(entry)?;
        Ok(self.binding(&life))
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

fn fresh_key(tag: Tag) -> Result<DpKey, StepError> {
    let mut key = DpKey([0; 32]);
    let filled = getrandom::fill(&mut key.0);
    filled.map_err(|error| StepError::new("make a key", format_args!("{tag}: {error}")))?;
    Ok(key)
}

fn live<'a>(
    life: &'a MutexGuard<'_, Life>,
    tag: Tag,
    step: &str,
) -> Result<&'a Arc<Entry>, StepError> {
    life.live(tag.generation)
        .ok_or_else(|| not_bound(step, tag))
}

fn not_bound(step: &str, tag: Tag) -> StepError {
    StepError::new(step, format_args!("{tag}: not bound here"))
}

fn failed(tag: Tag, why: &str) -> BindError {
    BindError::Failed(StepError::new("bind", format_args!("{tag}: {why}")))
}
