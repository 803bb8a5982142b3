//! Pools of block storage: a directory with one preallocated file per lease, or a raw block device that device-mapper
//! divides into linear targets.
//!
//! A [`Pool`] makes, finds and cleans volumes; it gives no access. The lease table places and journals each lease. The
//! name of a volume contains the id of its lease, so that a new process finds the volume.
//!
//! Read first: `device.rs`, a raw device as a pool.

mod device;
mod directory;
mod error;
mod facts;
mod lock;
mod steps;
mod wipe;

/// What a pool on a raw device keeps of itself, for programs that have a device of their own.
pub mod format {
    pub use crate::device::header::{BYTES, Flaw, Header, PLACES};
    pub use crate::device::record::{Put, Record};
}

use std::fmt;
use std::fs::FileType;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fabricbios_contract::{Check, Health, TellCondition, Volume};
use fabricbios_helper::{Handler, Supervisor};
use fabricbios_lease::{Condition, Extent, Proof, StepError};
use fabricbios_wire::{LeaseId, NodeId};

use device::DevicePool;
use directory::DirectoryPool;
pub use directory::nvmet::check_for_nvmet;
use error::At;
pub use error::Error;
pub use facts::Facts;
use steps::passed;
use wipe::PoolCall;

/// Interval of the checks. A directory counts as short of room after two checks in a row, so within a second.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The calls of this crate that may hang, for the helper processes.
#[must_use]
pub fn calls() -> Vec<Handler> {
    vec![Handler::of::<PoolCall>()]
}

/// Settings of a pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// A directory or a raw block device.
    pub path: PathBuf,
    /// The node that owns the pool.
    pub node_id: NodeId,
    /// Whether to take a device that contains a partition table or a file system, or a pool of another node.
    pub force: bool,
    /// Whether a new pool may be made. `false` if the path was a pool before: it may be the mount point of a disk that
    /// is absent now.
    pub may_begin: bool,
    /// Starts the helper processes that make the [`calls`].
    pub supervisor: Supervisor,
}

/// The path without symbolic links, and its type: directory or block device.
fn found(named: &Path) -> Result<(PathBuf, FileType), Error> {
    let remedy = "; make the directory, or mount its disk, before the start";
    let path = named.canonicalize().at(named).advise(remedy)?;
    let kind = path.metadata().at(named)?.file_type();
    if kind.is_dir() || kind.is_block_device() {
        return Ok((path, kind));
    }
    let why =
        "neither a directory nor a block device; of a file, `losetup --find --show` makes a device";
    Err(Error::Setting(why.into())).at(named)
}

/// A pool. Its calls block and may come from several threads. A call for one lease never waits for a call for another
/// lease.
#[derive(Debug)]
pub struct Pool {
    storage: Box<dyn Storage>,
    facts: Facts,
    health: Health,
}

/// The storage of a pool: a directory or a device. [`Pool`] says what each call is for.
trait Storage: fmt::Debug + Send + Sync {
    /// What finds out that the storage is gone or full.
    fn check(&self) -> Check;
    fn make_clean(&self, extent: Extent, progress: &dyn Fn()) -> Result<(), Error>;
    fn create(&self, lease: LeaseId, extent: Extent) -> Result<Volume, Error>;
    fn reopen(&self, lease: LeaseId, extent: Extent) -> Result<Volume, Error>;
    fn lacks_room(&self, bytes: u64) -> Option<String>;
    fn leases(&self) -> Result<Vec<LeaseId>, Error>;
    fn place_of(&self, lease: LeaseId) -> Option<Extent>;
    fn destroy(
        &self,
        lease: LeaseId,
        extent: Option<Extent>,
        progress: &dyn Fn(),
    ) -> Result<Proof, Error>;
    fn grants(&self) -> Option<u64>;
    fn count_grant(&self, number: u64) -> Result<(), Error>;
    fn is_taken_over(&self) -> bool;
    fn distrust(&self) -> Result<(), Error>;
}

impl Pool {
    /// Opens the pool at `config.path` exclusively.
    ///
    /// # Errors
    /// The text says what is wrong and what to do.
    pub fn open(config: PoolConfig) -> Result<Self, StepError> {
        let opened = open(&config).map_err(|error| error.of("open pool"));
        let (storage, facts) = opened?;
        Ok(Self {
            health: Health::watch(Condition::Good, CHECK_INTERVAL, storage.check()),
            storage,
            facts,
        })
    }

    /// Makes the same checks as [`Pool::open`] before it takes the pool. Changes nothing.
    ///
    /// # Errors
    /// The text says what is wrong and what to do.
    pub fn check(path: &Path, node_id: &NodeId, force: bool) -> Result<(), StepError> {
        let checked = found(path).and_then(|(at, kind)| match kind.is_dir() {
            true => directory::check(&at, node_id, force),
            false => device::check(at, node_id, force).at(path),
        });
        checked.map_err(|error| error.of("open pool"))
    }

    /// Properties of the pool.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Cleans the unwritten parts of the extent of a new lease. This takes as long as writing the bytes; `progress` is
    /// called every 16 MiB. Without this call [`Pool::create`] cleans the extent, without progress.
    ///
    /// # Errors
    /// The extent is invalid, or the device cannot be written.
    pub fn prepare(&self, extent: Extent, progress: &dyn Fn()) -> Result<(), StepError> {
        let failed = |error: Error| error.of("clean volume");
        self.facts.admits(extent).map_err(failed)?;
        let cleaned = self.storage.make_clean(extent, progress);
        self.health.note(cleaned.map_err(failed))
    }

    /// Makes the volume of a new lease, filled with zeros (on a read-only device, with the device's data). An error
    /// leaves nothing new behind.
    ///
    /// # Errors
    /// The extent is invalid, the lease has a volume already, or the storage fails.
    pub fn create(&self, lease: LeaseId, extent: Extent) -> Result<Volume, StepError> {
        let failed = |error: Error| error.of_lease("create volume", lease);
        self.facts.admits(extent).map_err(failed)?;
        if self.leases()?.contains(&lease) {
            return Err(failed(Error::Order("there is one already".into())));
        }
        let created = self.storage.create(lease, extent);
        let created = created.inspect(|_| passed("make volume"));
        self.health.note(created.map_err(failed))
    }

    /// Why a directory has no room for a volume of this many bytes: other files fill its file system. `None`: there is
    /// room. Blocks like any call.
    #[must_use]
    pub fn lacks_room(&self, bytes: u64) -> Option<String> {
        self.storage.lacks_room(bytes)
    }

    /// Opens the existing volume of a lease. Makes a device again over the same blocks if a reboot removed it. Never
    /// makes a new volume.
    ///
    /// # Errors
    /// The bytes of the lease no longer exist, the volume is a different one, or the storage fails.
    pub fn reopen(&self, lease: LeaseId, extent: Extent) -> Result<Volume, StepError> {
        let failed = |error: Error| error.of_lease("reopen volume", lease);
        self.facts.admits(extent).map_err(failed)?;
        let reopened = self.storage.reopen(lease, extent);
        self.health.note(reopened.map_err(failed))
    }

    /// All leases with a volume, also a half-made one. Never blocks on a device.
    ///
    /// # Errors
    /// Device-mapper does not list its devices.
    pub fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        let leases = self.storage.leases();
        leases.map_err(|error| error.of("list volumes"))
    }

    /// Where the volume of a lease lies, or data of it that is not wiped yet: no other lease gets a volume there. `None`
    /// for a directory, whose volumes have no place. Never blocks.
    #[must_use]
    pub fn place_of(&self, lease: LeaseId) -> Option<Extent> {
        self.storage.place_of(lease)
    }

    /// Removes the volume of a lease and makes its data unreadable for the next lease. Idempotent, also after an
    /// earlier process did a part. The volume must not be in use. If the storage makes no progress for some seconds,
    /// the error contains the name of the device. Volumes of other leases are never touched.
    ///
    /// # Errors
    /// The volume or its data may still exist.
    pub fn destroy(
        &self,
        lease: LeaseId,
        extent: Option<Extent>,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        let failed = |error: Error| error.of_lease("destroy volume", lease);
        if let Some(extent) = extent {
            self.facts.admits(extent).map_err(failed)?;
        }
        let destroyed = self.storage.destroy(lease, extent, progress);
        let destroyed = destroyed.inspect(|_| passed("destroy volume"));
        self.health.note(destroyed.map_err(failed))
    }

    /// The number of the latest grant in the pool; `None` for a read-only pool. A node whose own number is smaller has
    /// forgotten leases, and must not lease space only because the space looks free.
    #[must_use]
    pub fn grants(&self) -> Option<u64> {
        self.storage.grants()
    }

    /// Records a grant of the node by its number, durably. Call this after the node has journaled the number and before
    /// it answers the grant.
    ///
    /// # Errors
    /// The number may not be on the storage.
    pub fn count_grant(&self, number: u64) -> Result<(), StepError> {
        passed("journal grant");
        let counted = self.storage.count_grant(number);
        let counted = counted.inspect(|()| passed("count grant"));
        self.health
            .note(counted.map_err(|error| error.of("count grant")))
    }

    /// Whether this start took the pool over from another node. Then the pool has no lease of this node.
    #[must_use]
    pub fn is_taken_over(&self) -> bool {
        self.storage.is_taken_over()
    }

    /// Marks all bytes outside of volumes as unwritten, so that they are zeroed before they are leased. For a node that
    /// has forgotten its leases.
    ///
    /// # Errors
    /// The header cannot be written.
    pub fn distrust(&self) -> Result<(), StepError> {
        let distrusted = self.storage.distrust();
        distrusted.map_err(|error| error.of("distrust pool"))
    }

    /// The condition of the pool, from the latest calls and checks. Never blocks.
    #[must_use]
    pub fn condition(&self) -> Condition {
        self.health.condition()
    }

    /// Sets the receiver of the condition. The receiver gets a report at once if the pool has a problem.
    pub fn tell_condition(&self, tell: TellCondition) {
        self.health.tell(tell);
    }
}

fn open(config: &PoolConfig) -> Result<(Box<dyn Storage>, Facts), Error> {
    let (path, kind) = found(&config.path)?;
    if kind.is_dir() {
        let (pool, facts) = DirectoryPool::open(config, path)?;
        return Ok((Box::new(pool), facts));
    }
    let (pool, facts) = DevicePool::open(config, path)?;
    Ok((Box::new(pool), facts))
}

/// A new identity for a pool.
fn new_identity() -> Result<[u8; 16], Error> {
    let mut identity = [0; 16];
    let failed = |error: getrandom::Error| io::Error::other(error.to_string());
    let filled = getrandom::fill(&mut identity).map_err(failed);
    filled.during("no random number").map(|()| identity)
}
