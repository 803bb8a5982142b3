//! Block storage on offer: a directory, with one preallocated file per lease, or a raw block device,
//! carved with device-mapper linear targets.
//!
//! A [`Pool`] knows where things are and how they are cleaned; it gives nobody access. Where a lease lies
//! is the lease table's decision and is on record in its journal; what a pool makes of that carries the
//! lease's id in its name, so that a new process finds it.

use std::path::PathBuf;

use fabricbios_lease::{Condition, Extent, Layout, StepError};
use fabricbios_wire::{LeaseId, NodeId};

/// What the operator offers.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// A directory or a raw block device.
    pub path: PathBuf,
    /// Who takes it: a pool belongs to one node.
    pub node_id: NodeId,
    /// Take a device although it has a partition table or a file system, or a pool of another node.
    pub force: bool,
    /// The program, and its first arguments, that does [`wipe_main`] with the arguments that follow.
    pub wiper: Vec<std::ffi::OsString>,
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

/// A lease's blocks, as a file or device of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Where.
    pub path: PathBuf,
    /// How much.
    pub bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Nothing can be written.
    pub read_only: bool,
}

/// A pool. Blocking; called from several threads at once; a call for one lease never waits for a call for
/// another.
#[derive(Debug)]
pub struct Pool {}

impl Pool {
    /// Takes the pool at `config.path`, exclusively. Errors say what is in the way and what to do.
    pub fn open(config: PoolConfig) -> Result<Self, StepError> {
        Err(StepError::new("open pool", config.path.display()))
    }

    /// What it is.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        unimplemented!("the pool")
    }

    /// Makes the volume of a new lease: all zeros (what is there, of a read-only device). An error, also
    /// where there is one of that lease already, leaves nothing behind that was not there before.
    pub fn create(&self, lease: LeaseId, extent: Extent) -> Result<Volume, StepError> {
        Err(StepError::new("create volume", format!("{lease} {extent:?}")))
    }

    /// The volume that a lease has already, as it is; a device that a reboot took away is made again over
    /// the same blocks. An error where the lease's bytes are not there any more: never new ones.
    pub fn reopen(&self, lease: LeaseId, extent: Extent) -> Result<Volume, StepError> {
        Err(StepError::new("reopen volume", format!("{lease} {extent:?}")))
    }

    /// Every lease of which there is something, whole or half made. Never blocks on a device.
    pub fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Ok(Vec::new())
    }

    /// Takes a lease's volume away and makes sure that nothing of what was in it can be read by the next.
    /// Idempotent, also where an earlier process did part of it or all. Nobody uses the volume any more.
    /// Gives up, with the device's name, when the storage makes no progress for some seconds.
    pub fn destroy(
        &self,
        lease: LeaseId,
        extent: Option<Extent>,
        _progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        Err(StepError::new("destroy", format!("{lease} {extent:?}")))
    }

    /// How it does. Never blocks: it says what the latest calls and a watcher found out.
    #[must_use]
    pub fn condition(&self) -> Condition {
        Condition::Good
    }
}

/// The process that wipes: a call that can wait for ever for a device must not be the daemon's.
pub fn wipe_main(_args: &[std::ffi::OsString]) -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}
