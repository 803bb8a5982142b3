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

use fabricbios_contract::{DataPath, Part, Revoked, Volume};
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Linger, Proof, StepError,
};
use fabricbios_wire::{Binding, LeaseId};

use super::{
    block_server::BlockServer, blocks::Blocks, counters::Counters, fbmu::usual_workers, socket,
    tidying::Tidying, udp_path::UdpPath, worker::Workers,
};
use crate::{Room, Share};

/// Name of the service in logs and errors.
const NAME: &str = "FBBU";

/// Settings of an [`FbbuPath`].
#[derive(Clone, Debug)]
pub struct FbbuConfig {
    /// Address and port of the sockets; port 0: any.
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
#[derive(Debug)]
pub struct FbbuPath {
    path: UdpPath<Blocks>,
    write_verifier: u64,
    look: Look,
    room: Arc<Room>,
    /// For each tenant with leases, the bytes of the half-sent blocks of all its leases.
    tenants: Mutex<HashMap<String, Weak<AtomicUsize>>>,
    _tidying: Tidying,
    counters: Arc<Counters>,
    workers: Workers,
}

impl FbbuPath {
    /// Opens the sockets and starts the threads, without any lease.
    ///
    /// # Errors
    /// The port is taken, or the system gives no io_uring.
    pub fn open(config: &FbbuConfig) -> io::Result<Self> {
        Self::open_held(config, None)
    }

    /// As [`FbbuPath::open`], for tests: no I/O begins before `hold` is readable.
    #[doc(hidden)]
    pub fn open_held(config: &FbbuConfig, hold: Option<Arc<OwnedFd>>) -> io::Result<Self> {
        let count = config.workers.unwrap_or_else(usual_workers).max(1);
        let sockets = socket::open(NAME, config.listen, count).map_err(io::Error::other)?;
        let address = sockets[0].local_addr()?;
        let (path, counters) = (UdpPath::new(address, config.ops_per_second), Arc::default());
        let handler = || BlockServer::new(&path.serving, &counters, hold.clone());
        let workers = Workers::start(NAME, sockets, handler)?;
        let room = Room::new(config.half_sent_max);
        Ok(Self {
            _tidying: Tidying::start(&path.serving, &room)?,
            path,
            write_verifier: config.write_verifier,
            look: Look(Box::new(|_| Ok(()))),
            room,
            tenants: Mutex::default(),
            counters,
            workers,
        })
    }

    /// Sets a check that is made before a volume is opened. It fails for storage that hangs, where the opening thread
    /// would never return.
    #[must_use]
    pub fn looking_first(
        mut self,
        look: impl Fn(&Path) -> Result<(), StepError> + Send + Sync + 'static,
    ) -> Self {
        self.look = Look(Box::new(look));
        self
    }

    /// Address of the sockets.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.path.address
    }

    /// Counters of the datagrams. A reply that is ready after the end of its lease counts as dropped.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Serves a volume as the binding of a lease of this tenant.
    ///
    /// # Errors
    /// See [`DataPath::bind`].
    pub fn serve(
        &self,
        binding_id: BindingId,
        tenant: &str,
        volume: &Volume,
    ) -> Result<Binding, BindError> {
        let cell = self.path.cell(binding_id)?;
        let share = Share::new(&self.room, self.tenant(tenant));
        let blocks = Blocks::open(volume, self.write_verifier, share).map_err(BindError::Failed)?;
        self.path.bind(&cell, binding_id, blocks)
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

    /// Stops the threads and closes the sockets. I/O in flight is waited for, two seconds at most.
    pub fn close(self) {
        drop(self.workers);
    }
}

impl DataPath for FbbuPath {
    /// An older generation of the lease is cut first, and its I/O in flight is waited for.
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        let Some(volume) = &part.volume else {
            let detail = format!("{}: it has no blocks", order.binding_id);
            return Err(BindError::Refused(StepError::new("open blocks", detail)));
        };
        (self.look.0)(&volume.path).map_err(BindError::Stranded)?;
        let read_only = order.terms.block().is_some_and(|it| it.read_only);
        let read_only = volume.read_only || read_only;
        let volume = Volume {
            read_only,
            ..volume.clone()
        };
        self.serve(order.binding_id, &order.tenant, &volume)
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

    /// Never waits for the storage. A write that was given to the storage before may still reach the medium; no bytes
    /// that are read are sent any more.
    fn revoke(&self, binding_id: BindingId, _farewell: Linger) -> Result<Revoked, StepError> {
        self.path.cut(binding_id).map(Revoked::proved)
    }

    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        self.path.verify(binding_id, revoked)
    }

    /// Gives up when no I/O of the lease ends for nine seconds.
    fn remove(&self, binding_id: BindingId, progress: &dyn Fn()) -> Result<(), StepError> {
        self.path.give_back(binding_id, progress)
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Ok(self.path.leases())
    }
}
