//! FBBU: blocks of a file or device, served by io_uring and O_DIRECT.
//!
//! Without io_uring there is no FBBU: threads that wait for storage one by one would let a few leases whose
//! storage is stuck hold up all others.

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
    AlreadyCut, BindError, BindOrder, BootTime, Farewell, Proof, StepError, Tag,
};
use fabricbios_wire::{Binding, LeaseId};

use super::{
    backend::usual_workers, block_server::BlockServer, blocks::Blocks, counters::Counters,
    road::Road, socket, tidying::Tidying, worker::Workers,
};
use crate::{Room, Share};

/// Of sockets and threads, for people.
const NAME: &str = "FBBU";

/// Where and how blocks are served.
#[derive(Clone, Debug)]
pub struct FbbuConfig {
    /// Address of the socket.
    pub listen: SocketAddr,
    /// Threads; by default as many as there are processors, at most 4.
    pub workers: Option<usize>,
    /// Most new requests a second of one lease.
    pub ops_per_second: u32,
    /// Most bytes that half-sent blocks keep, of all leases: see [`Room`].
    pub half_sent_max: usize,
    /// Another number for each run of this machine, not 0: so clients notice that a power cut may have
    /// taken what they had not flushed. The daemon's own end takes nothing, so it changes nothing here.
    pub write_verifier: u64,
}

impl FbbuConfig {
    /// Enough for a thousand clients that write blocks in parts as fast as they can.
    pub const HALF_SENT_MAX: usize = 64 << 20;
}

type LookAt = dyn Fn(&Path) -> Result<(), StepError> + Send + Sync;

/// See [`FbbuBackend::looking_first`].
struct Look(Box<LookAt>);

impl fmt::Debug for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Look")
    }
}

/// The serving half of FBBU.
#[derive(Debug)]
pub struct FbbuBackend {
    road: Road<Blocks>,
    write_verifier: u64,
    look: Look,
    room: Arc<Room>,
    /// Bytes that half-sent blocks of a tenant's leases keep, as long as it has leases.
    tenants: Mutex<HashMap<String, Weak<AtomicUsize>>>,
    _tidying: Tidying,
    counters: Arc<Counters>,
    workers: Workers,
}

impl FbbuBackend {
    /// Opens the socket and starts its threads. `Err`: the port is taken, or the system has no io_uring for
    /// us, which the error says.
    pub fn open(config: &FbbuConfig) -> io::Result<Self> {
        Self::open_held(config, None)
    }

    /// With storage that begins nothing before `hold` can be read: for tests of what happens meanwhile.
    #[doc(hidden)]
    pub fn open_held(config: &FbbuConfig, hold: Option<Arc<OwnedFd>>) -> io::Result<Self> {
        let count = config.workers.unwrap_or_else(usual_workers).max(1);
        let sockets = socket::open(NAME, config.listen, count).map_err(io::Error::other)?;
        let address = sockets[0].local_addr()?;
        let (road, counters) = (Road::new(address, config.ops_per_second), Arc::default());
        let clerk = || BlockServer::new(&road.serving, &counters, hold.clone());
        let workers = Workers::start(NAME, sockets, clerk)?;
        let room = Room::new(config.half_sent_max);
        Ok(Self {
            _tidying: Tidying::start(&road.serving, &room)?,
            road,
            write_verifier: config.write_verifier,
            look: Look(Box::new(|_| Ok(()))),
            room,
            tenants: Mutex::default(),
            counters,
            workers,
        })
    }

    /// Looks at storage before a thread of this process opens it; an error: it would never come back.
    #[must_use]
    pub fn looking_first(
        mut self,
        look: impl Fn(&Path) -> Result<(), StepError> + Send + Sync + 'static,
    ) -> Self {
        self.look = Look(Box::new(look));
        self
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.road.address
    }

    /// What went through the sockets. An answer that comes after the end of its lease is counted as
    /// dropped.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Serves blocks as a binding of a lease of this tenant.
    ///
    /// # Errors
    /// See [`DataPath::bind`].
    pub fn serve(&self, tag: Tag, tenant: &str, volume: &Volume) -> Result<Binding, BindError> {
        let slot = self.road.slot(tag)?;
        let share = Share::new(&self.room, self.tenant(tenant));
        let blocks = Blocks::open(volume, self.write_verifier, share).map_err(BindError::Failed)?;
        self.road.bind(&slot, tag, blocks)
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

    /// Closes the socket and ends the threads. What they have begun is waited for, two seconds at most.
    pub fn close(self) {
        drop(self.workers);
    }
}

impl DataPath for FbbuBackend {
    /// Whatever the lease still has of an older generation is cut first, and what of it is under way is waited for.
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        let Some(volume) = &part.volume else {
            let detail = format!("{}: it has no blocks", order.tag);
            return Err(BindError::Refused(StepError::new("open blocks", detail)));
        };
        (self.look.0)(&volume.path).map_err(BindError::Stranded)?;
        let read_only = order.terms.block().is_some_and(|it| it.read_only);
        let read_only = volume.read_only || read_only;
        let volume = Volume {
            read_only,
            ..volume.clone()
        };
        self.serve(order.tag, &order.tenant, &volume)
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

    /// Never waits for the storage. What had been handed to it before may still land; nothing that is read leaves any
    /// more.
    fn revoke(&self, tag: Tag, _farewell: Farewell) -> Result<Revoked, StepError> {
        self.road.cut(tag).map(Revoked::proved)
    }

    fn verify(&self, tag: Tag, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        self.road.verify(tag, revoked)
    }

    /// Gives up when the storage ends nothing for nine seconds.
    fn remove(&self, tag: Tag, progress: &dyn Fn()) -> Result<(), StepError> {
        self.road
            .give_back(tag, progress, |entry| entry.content.close())
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Ok(self.road.leases())
    }
}
