//! FBBU: the data path for blocks over UDP, from a file or device, by io_uring and O_DIRECT.
//!
//! FBBU needs io_uring: with threads that wait for one I/O each, a few leases whose storage hangs would block all
//! others.

use std::{
    collections::HashMap,
    fmt, io,
    net::SocketAddr,
    os::fd::OwnedFd,
    path::Path,
    sync::{Arc, Mutex, PoisonError, Weak, atomic::AtomicUsize},
};

use fabricbios_contract::Volume;
use fabricbios_lease::{BindError, BindingId, StepError};
use fabricbios_wire::Binding;

use super::{
    block_server::BlockServer, blocks::Blocks, fbmu::usual_workers, socket, tidying::Tidying,
    udp_path::UdpPath, worker::Workers,
};
use crate::{Room, Share};

/// Name of the service in logs and errors.
const NAME: &str = "FBBU";

/// Settings of an [`FbbuPath`].
#[derive(Clone, Debug)]
pub struct FbbuConfig {
    /// Address and port of the sockets; port 0: the system chooses one.
    pub listen: SocketAddr,
    /// Number of threads; by default one per processor, four at most.
    pub workers: Option<usize>,
    /// Most new requests of one lease per second; further ones are answered with BUSY.
    pub ops_per_second: u32,
    /// Most bytes for half-sent blocks, of all leases together: see [`Room`].
    pub half_sent_max: usize,
    /// A number that differs between boots of this machine, not 0. It tells clients that a power cut may have lost
    /// their unflushed writes. A restart of the daemon loses none, so the number stays.
    pub write_verifier: u64,
}

impl FbbuConfig {
    /// Enough for a thousand clients that write blocks in parts as fast as they can.
    pub const HALF_SENT_MAX: usize = 64 << 20;
}

type LookAt = dyn Fn(&Path) -> Result<(), StepError> + Send + Sync;

/// See [`FbbuPath::looking_first`].
struct Look(Box<LookAt>);

impl fmt::Debug for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Look")
    }
}

/// The data path for blocks over UDP.
pub type FbbuPath = UdpPath<Blocks>;

/// The state that all leases of blocks share.
#[derive(Debug)]
pub struct BlockSource {
    write_verifier: u64,
    look: Look,
    room: Arc<Room>,
    /// For each tenant with leases, the bytes of the half-sent blocks of all its leases.
    tenants: Mutex<HashMap<String, Weak<AtomicUsize>>>,
    _tidying: Tidying,
}

impl FbbuPath {
    /// Opens the sockets and starts the threads, without any lease.
    ///
    /// # Errors
    /// The port is taken by another program, or the kernel provides no io_uring.
    pub fn open(config: &FbbuConfig) -> io::Result<Self> {
        Self::open_held(config, None)
    }

    /// As [`FbbuPath::open`], for tests: no I/O begins before `hold` is readable.
    #[doc(hidden)]
    pub fn open_held(config: &FbbuConfig, hold: Option<Arc<OwnedFd>>) -> io::Result<Self> {
        let count = config.workers.unwrap_or_else(usual_workers).max(1);
        let sockets = socket::open(NAME, config.listen, count).map_err(io::Error::other)?;
        let address = sockets[0].local_addr()?;
        let (leases, counters) = (Arc::default(), Arc::default());
        let handler = || BlockServer::new(&leases, &counters, hold.clone());
        let workers = Workers::start(NAME, sockets, handler)?;
        let room = Room::new(config.half_sent_max);
        let source = BlockSource {
            _tidying: Tidying::start(&leases, &room)?,
            write_verifier: config.write_verifier,
            look: Look(Box::new(|_| Ok(()))),
            room,
            tenants: Mutex::default(),
        };
        let rate = config.ops_per_second;
        Ok(UdpPath::new(
            address,
            rate,
            source,
            (leases, counters),
            workers,
        ))
    }

    /// Sets a check that runs before a volume is opened. The check fails for storage that hangs, where the opening
    /// thread would never return.
    #[must_use]
    pub fn looking_first(
        mut self,
        look: impl Fn(&Path) -> Result<(), StepError> + Send + Sync + 'static,
    ) -> Self {
        self.source.look = Look(Box::new(look));
        self
    }

    /// Serves a volume as the binding of a lease of this tenant.
    ///
    /// # Errors
    /// See [`DataPath::bind`](fabricbios_contract::DataPath::bind).
    pub fn serve(
        &self,
        binding_id: BindingId,
        tenant: &str,
        volume: &Volume,
    ) -> Result<Binding, BindError> {
        let cell = self.cell(binding_id)?;
        let share = Share::new(&self.source.room, self.source.tenant(tenant));
        let blocks = Blocks::open(volume, self.source.write_verifier, share);
        self.open_binding(&cell, binding_id, blocks.map_err(BindError::Failed)?)
    }
}

impl BlockSource {
    /// See [`FbbuPath::looking_first`].
    pub(super) fn look(&self, path: &Path) -> Result<(), StepError> {
        (self.look.0)(path)
    }

    fn tenant(&self, name: &str) -> Arc<AtomicUsize> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = tenants.get(name).and_then(Weak::upgrade) {
            return known;
        }
        tenants.retain(|_, tenant| tenant.strong_count() > 0);
        let new = Arc::default();
        tenants.insert(name.to_owned(), Arc::downgrade(&new));
        new
    }
}
