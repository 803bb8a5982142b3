//! FBMU: the data path for memory over UDP, on one port and one arena.

use std::{net::SocketAddr, num::NonZeroUsize, sync::Arc, thread};

use fabricbios_arena::Arena;
use fabricbios_contract::{DataPath, Part, Revoked};
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Extent, Linger, Proof, StepError,
};
use fabricbios_wire::{Binding, LeaseId};

use super::{
    bytes::Bytes, counters::Counters, memory_server::MemoryServer, socket, udp_path::UdpPath,
    worker::Workers,
};

/// Name of the service in logs and errors.
const NAME: &str = "FBMU";

/// Threads where none are configured: more than a few fast links need is taken from the machine's
/// own work.
const WORKERS_AT_MOST: usize = 4;

/// Settings of an [`FbmuPath`].
#[derive(Clone, Debug)]
pub struct FbmuConfig {
    /// Address and port; the port is 5702 by default of the node. 0: any.
    pub listen: SocketAddr,
    /// Number of threads, each with a socket; by default one per processor, four at most.
    pub workers: Option<NonZeroUsize>,
    /// The memory that leases are parts of.
    pub arena: Arc<Arena>,
    /// Most new requests of one lease per second; further ones are answered with BUSY.
    pub ops_per_second: u32,
}

impl FbmuConfig {
    /// More than one client can send.
    pub const OPS_PER_SECOND: u32 = 1_000_000;
}

/// The data path for memory over UDP.
#[derive(Debug)]
pub struct FbmuPath {
    pub(super) arena: Arc<Arena>,
    pub(super) path: UdpPath<Bytes>,
    counters: Arc<Counters>,
    workers: Workers,
}

impl FbmuPath {
    /// Opens the sockets and starts the threads, without any lease.
    ///
    /// # Errors
    /// The port is taken, or the system refuses a socket or a thread.
    pub fn open(config: FbmuConfig) -> Result<Self, StepError> {
        let failed = |error| StepError::new("start FBMU", format_args!("{error}"));
        let count = config.workers.map_or_else(usual_workers, NonZeroUsize::get);
        let sockets = socket::open(NAME, config.listen, count)?;
        let address = sockets[0].local_addr().map_err(failed)?;
        let (path, counters) = (UdpPath::new(address, config.ops_per_second), Arc::default());
        let workers = Workers::start(NAME, sockets, || {
            MemoryServer::new(&path.serving, &counters)
        });
        let workers = workers.map_err(failed)?;
        Ok(Self {
            arena: config.arena,
            path,
            counters,
            workers,
        })
    }

    /// Address of the sockets; it may be a wildcard.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.path.address
    }

    /// Counters of the datagrams.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Stops the threads and closes the sockets. Datagrams that a thread has received are answered first.
    pub fn close(self) {
        drop(self.workers);
    }
}

impl FbmuPath {
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

impl DataPath for FbmuPath {
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        self.check_extent(part.extent())
            .map_err(BindError::Refused)?;
        let cell = self.path.cell(order.binding_id)?;
        let bytes = Bytes {
            arena: Arc::clone(&self.arena),
            extent: part.extent(),
        };
        self.path.bind(&cell, order.binding_id, bytes)
    }

    fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        self.path.extend(binding_id, deadline)
    }

    fn fenced(&self, binding_id: BindingId) {
        self.path.fenced(binding_id);
    }

    fn extends_at_once(&self) -> bool {
        true
    }

    fn rotate(&self, binding_id: BindingId) -> Result<Binding, BindError> {
        self.path.add_key(binding_id)
    }

    fn retire_key(&self, binding_id: BindingId) -> Result<Binding, StepError> {
        self.path.drop_old_key(binding_id)
    }

    fn revoke(&self, binding_id: BindingId, _farewell: Linger) -> Result<Revoked, StepError> {
        self.path.cut(binding_id).map(Revoked::proved)
    }

    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        self.path.verify(binding_id, revoked)
    }

    fn remove(&self, binding_id: BindingId, progress: &dyn Fn()) -> Result<(), StepError> {
        self.path.give_back(binding_id, progress)
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Ok(self.path.leases())
    }
}

pub(super) fn usual_workers() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get().min(WORKERS_AT_MOST))
}
