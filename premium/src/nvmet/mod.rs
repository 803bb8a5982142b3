//! Block storage over NVMe-oF: the kernel's own target, through configfs.
//!
//! Per lease one subsystem with one namespace and one host that may connect, linked to shared ports. The
//! kernel serves; this room makes, proves and unmakes. What it makes carries the lease's id in its name,
//! so that a new process finds it; objects of others are never touched.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use fabricbios_lease::{BindError, StepError, Tag};
use fabricbios_wire::{BlockTerms, LeaseId, NodeId, NvmeofBinding, NvmeofTransport, Transport};

/// A port that all leases share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortSetting {
    /// Over what.
    pub transport: NvmeofTransport,
    /// Where the kernel listens.
    pub address: SocketAddr,
}

/// What the operator says, and where things are.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// `/sys/kernel/config/nvmet`.
    pub configfs: PathBuf,
    /// `--nvmet`, at least one.
    pub ports: Vec<PortSetting>,
    /// A directory of the node's own: names and keys of hosts, which outlive process and boot.
    pub credentials: PathBuf,
    /// Whose objects these are.
    pub node_id: NodeId,
}

/// What is to be connected to.
#[derive(Clone, Debug)]
pub struct Export {
    /// Which binding of which lease.
    pub tag: Tag,
    /// Keys of a host NQN belong to one tenant.
    pub tenant: Arc<str>,
    /// What was asked for.
    pub terms: BlockTerms,
    /// The lease's blocks: a file or a block device.
    pub volume: PathBuf,
    /// Bytes of a block, for the binding.
    pub block_bytes: u32,
    /// [`Transport::NvmeTcp`], [`Transport::NvmeRdma`], or [`Transport::Both`] for every port.
    pub transport: Transport,
    /// Of the lease: what a client's kernel may wait for is counted from it.
    pub grace: Duration,
}

/// The kernel's target. Blocking; called from several threads at once; a call for one lease waits for a
/// call for another only where the kernel itself does.
#[derive(Debug)]
pub struct Target {}

impl Target {
    /// Takes the ports, with an anchor that keeps them listening. Errors say what is missing and what to
    /// do about it: configfs to mount, a module to load, an address that is taken.
    pub fn open(config: TargetConfig) -> Result<Self, StepError> {
        Err(StepError::new("open nvmet", config.configfs.display()))
    }

    /// Roads that its ports are.
    #[must_use]
    pub fn transports(&self) -> Vec<Transport> {
        Vec::new()
    }

    /// Makes the export, or as much of it as is not there yet; what is there and as it should be stays as
    /// it is, also under a connected client. Same names and keys as before for a lease that had some. Never
    /// links to a port after a [`Target::cut`] of the same or a newer generation has begun.
    pub fn publish(&self, export: &Export) -> Result<NvmeofBinding, BindError> {
        Err(BindError::Failed(StepError::new("publish", export.tag)))
    }

    /// New keys for the next connection; a live one goes on. Where another lease of the tenant has the same
    /// host NQN, that is refused: it would lose its key.
    pub fn rekey(&self, tag: Tag) -> Result<NvmeofBinding, BindError> {
        Err(BindError::Failed(StepError::new("rekey", tag)))
    }

    /// Ends access, by unlinking from every port; `Ok` is the proof. Idempotent; also for a lease of an
    /// earlier process. Depends on no storage.
    pub fn cut(&self, tag: Tag) -> Result<String, StepError> {
        Err(StepError::new("cut", tag))
    }

    /// After a cut: takes everything of the lease away. `Ok`: no I/O of it is under way any more and its
    /// volume is not open. Idempotent. Gives up, with the device's name, when the kernel makes no progress
    /// for some seconds.
    pub fn remove(&self, lease: LeaseId, _progress: &dyn Fn()) -> Result<(), StepError> {
        Err(StepError::new("remove", lease))
    }

    /// Every lease of this node of which there is something, whole or half made.
    pub fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Ok(Vec::new())
    }

    /// Gives the ports back, if no lease is linked to them.
    pub fn close(self) -> Result<(), StepError> {
        Ok(())
    }
}
