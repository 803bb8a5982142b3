//! Block storage on offer: a directory, with one preallocated file per lease, or a raw block device,
//! carved with device-mapper linear targets.
//!
//! A [`Pool`] knows where things are and how they are cleaned; it gives nobody access. Where a lease lies
//! is the lease table's decision and is on record in its journal; what a pool makes of that carries the
//! lease's id in its name, so that a new process finds it.

mod device;
mod directory;
mod health;
mod lock;
mod steps;
mod wipe;

use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use fabricbios_contract::Volume;
use fabricbios_helper::{Handler, Supervisor};
use fabricbios_lease::{Condition, Extent, Layout, StepError};
use fabricbios_wire::{LeaseId, NodeId};

use device::Device;
use directory::Directory;
use health::Health;
pub use health::TellCondition;
use steps::passed;
use wipe::Verb;

/// Calls of this room that may hang, for the process that makes them.
#[must_use]
pub fn calls() -> Vec<Handler> {
    vec![Handler::of::<Verb>()]
}

/// What the operator offers.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// A directory or a raw block device.
    pub path: PathBuf,
    /// Who takes it: a pool belongs to one node.
    pub node_id: NodeId,
    /// Take a device although it has a partition table or a file system, or a pool of another node.
    pub force: bool,
    /// Make a pool of what is none. Where a pool is known to have been, such as at the mount point of a disk
    /// that is away now, nothing is made of what is there instead.
    pub may_begin: bool,
    /// Who makes [`calls`].
    pub supervisor: Supervisor,
}

/// What a pool is, from the truth of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its own number: it is the same pool wherever it is attached.
    pub identity: [u8; 16],
    /// For people: the path as it was given.
    pub name: String,
    /// The kernel's name of the device, such as `nvme0n1`.
    pub device: Option<String>,
    /// Bytes that leases can have, those included that they have already.
    pub capacity: u64,
    /// Granularity of leases, bytes.
    pub align: u64,
    /// Bytes of a block: 512 to 4,096.
    pub block_bytes: u32,
    /// Stretches of a device, amounts of a directory.
    pub layout: Layout,
    /// Nothing of it can be written.
    pub read_only: bool,
    /// It can be pulled out.
    pub removable: bool,
}

/// A pool. Blocking; called from several threads at once; a call for one lease never waits for a call for
/// another.
#[derive(Debug)]
pub struct Pool {
    kind: Kind,
    facts: Facts,
    health: Health,
}

#[derive(Debug)]
enum Kind {
    Directory(Directory),
    Device(Box<Device>),
}

impl Pool {
    /// Takes the pool at `config.path`, exclusively. Errors say what is in the way and what to do.
    pub fn open(config: PoolConfig) -> Result<Self, StepError> {
        let failed = |why: String| StepError::new("open pool", why);
        let shown = config.path.display();
        let path = config.path.canonicalize();
        let path = path.map_err(|error| {
            failed(format!(
                "{shown}: {error}; make the directory, or mount its disk, before the start"
            ))
        })?;
        let kind = path.metadata().map(|metadata| metadata.file_type());
        let kind = kind.map_err(|error| failed(format!("{shown}: {error}")))?;
        if kind.is_dir() {
            let (pool, facts) = Directory::open(&config, path).map_err(failed)?;
            let health = Health::watch(pool.check());
            return Ok(Self::new(Kind::Directory(pool), facts, health));
        }
        if kind.is_block_device() {
            let (pool, facts) = Device::open(&config, path).map_err(failed)?;
            let health = Health::watch(pool.check());
            return Ok(Self::new(Kind::Device(Box::new(pool)), facts, health));
        }
        Err(failed(format!(
            "{shown}: neither a directory nor a block device; of a file, `losetup --find --show` makes a device"
        )))
    }

    fn new(kind: Kind, facts: Facts, health: Health) -> Self {
        Self {
            kind,
            facts,
            health,
        }
    }

    /// What it is.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Makes bytes clean that a new lease will have, where nobody has done so yet; without it [`Pool::create`] does,
    /// and says nothing of its progress. It takes as long as writing them. `progress` is called every 16 MiB.
    pub fn prepare(&self, extent: Extent, progress: &dyn Fn()) -> Result<(), StepError> {
        let failed = |why| StepError::new("clean volume", why);
        self.facts.admits(extent).map_err(failed)?;
        let result = match &self.kind {
            Kind::Directory(_) => Ok(()),
            Kind::Device(pool) => pool.make_clean(extent, progress),
        };
        self.health.note(result.map_err(failed))
    }

    /// Makes the volume of a new lease: all zeros (what is there, of a read-only device). An error, also
    /// where there is one of that lease already, leaves nothing behind that was not there before.
    pub fn create(&self, lease: LeaseId, extent: Extent) -> Result<Volume, StepError> {
        let failed = |why| StepError::new("create volume", format!("lease {lease}: {why}"));
        self.facts.admits(extent).map_err(failed)?;
        if self.leases()?.contains(&lease) {
            return Err(failed("there is one already".to_owned()));
        }
        let result = match &self.kind {
            Kind::Directory(pool) => pool.create(lease, extent.length),
            Kind::Device(pool) => pool.create(lease, extent),
        };
        let result = result.inspect(|_| passed("make volume"));
        self.health.note(result.map_err(failed))
    }

    /// The volume that a lease has already, as it is; a device that a reboot took away is made again over
    /// the same blocks. An error where the lease's bytes are not there any more: never new ones.
    pub fn reopen(&self, lease: LeaseId, extent: Extent) -> Result<Volume, StepError> {
        let failed = |why| StepError::new("reopen volume", format!("lease {lease}: {why}"));
        self.facts.admits(extent).map_err(failed)?;
        let result = match &self.kind {
            Kind::Directory(pool) => pool.reopen(lease, extent.length),
            Kind::Device(pool) => pool.reopen(lease, extent),
        };
        self.health.note(result.map_err(failed))
    }

    /// Every lease of which there is something, whole or half made. Never blocks on a device.
    pub fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        match &self.kind {
            Kind::Directory(pool) => Ok(pool.leases()),
            Kind::Device(pool) => pool
                .leases()
                .map_err(|why| StepError::new("list volumes", why)),
        }
    }

    /// Takes a lease's volume away and makes sure that nothing of what was in it can be read by the next.
    /// Idempotent, also where an earlier process did part of it or all. Nobody uses the volume any more.
    /// Gives up, with the device's name, when the storage makes no progress for some seconds. What lies in
    /// the volume of another lease is never touched.
    pub fn destroy(
        &self,
        lease: LeaseId,
        extent: Option<Extent>,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        let failed = |why| StepError::new("destroy volume", format!("lease {lease}: {why}"));
        if let Some(extent) = extent {
            self.facts.admits(extent).map_err(failed)?;
        }
        let result = match &self.kind {
            Kind::Directory(pool) => pool.destroy(lease, progress),
            Kind::Device(pool) => pool.destroy(lease, extent, progress),
        };
        let result = result.inspect(|()| passed("destroy volume"));
        self.health.note(result.map_err(failed))
    }

    /// The number of the latest grant that it was told of: a node whose own number is smaller has forgotten
    /// leases, and must not give out what it takes for free. None for a pool that nothing is written on.
    #[must_use]
    pub fn grants(&self) -> Option<u64> {
        match &self.kind {
            Kind::Directory(pool) => Some(pool.grants()),
            Kind::Device(pool) => pool.grants(),
        }
    }

    /// Grant `number` of its node is made: to be told after the node has written the number down, and before anybody is
    /// told of the grant. Durable when it returns.
    pub fn count_grant(&self, number: u64) -> Result<(), StepError> {
        passed("journal grant");
        let counted = match &self.kind {
            Kind::Directory(pool) => pool.count_grant(number),
            Kind::Device(pool) => pool.count_grant(number),
        };
        let counted = counted.inspect(|()| passed("count grant"));
        let failed = |why| StepError::new("count grant", why);
        self.health.note(counted.map_err(failed))
    }

    /// It was another node's until now: no lease that its new node has on record can be of it.
    #[must_use]
    pub fn is_taken_over(&self) -> bool {
        match &self.kind {
            Kind::Directory(pool) => pool.is_taken_over(),
            Kind::Device(pool) => pool.is_taken_over(),
        }
    }

    /// What no volume holds now may be anything from here on, and is zeroed before it is given out: for
    /// a node that does not know any more which leases there were.
    pub fn distrust(&self) -> Result<(), StepError> {
        match &self.kind {
            Kind::Directory(_) => Ok(()),
            Kind::Device(pool) => {
                let result = pool.distrust();
                result.map_err(|why| StepError::new("distrust pool", why))
            }
        }
    }

    /// How it does. Never blocks: it says what the latest calls and a watcher found out.
    #[must_use]
    pub fn condition(&self) -> Condition {
        self.health.condition()
    }

    /// Has `tell` told whenever that changes; at once, if the pool does not do well.
    pub fn tell_condition(&self, tell: TellCondition) {
        self.health.tell(tell);
    }
}

impl Facts {
    /// Whether a lease could lie there: whole blocks, within the pool.
    fn admits(&self, extent: Extent) -> Result<(), String> {
        let block = u64::from(self.block_bytes);
        let whole = extent.offset.is_multiple_of(block) && extent.length.is_multiple_of(block);
        if extent.length == 0 || !whole {
            return Err(format!(
                "{extent:?} of {}: not whole blocks of {block} bytes",
                self.name
            ));
        }
        let end = extent.offset.checked_add(extent.length);
        let within = self.layout == Layout::Amounts || end.is_some_and(|end| end <= self.capacity);
        if !within {
            let (name, capacity) = (&self.name, self.capacity);
            return Err(format!("{extent:?}: {name} ends at {capacity}"));
        }
        Ok(())
    }
}
