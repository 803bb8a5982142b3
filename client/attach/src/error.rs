//! Why a lease is not attached, kept or detached.

use std::{error::Error, fmt, path::PathBuf};

use fabricbios_wire::{LeaseId, LeasePhase, ResourceType, Transport};

/// Why a lease is not attached, kept or detached. The text says what to do.
#[derive(Debug, thiserror::Error)]
#[allow(
    missing_docs,
    reason = "the text of a variant says what its fields are"
)]
pub enum AttachError {
    /// The caller is not root.
    #[error("block devices are attached and detached by root; run this with sudo")]
    NotRoot,
    /// The caller named a directory for the records that cannot be used.
    #[error("--attach-dir {}: {why}; name a directory, or leave it out", .dir.display())]
    Directory { dir: PathBuf, why: String },
    /// The caller's identity is not that of the lease's tenant, or the lease is being bound.
    #[error(
        "the node does not give the lease's address: only the lease's tenant (--identity) gets it, and nobody while the \
         lease is being bound"
    )]
    NoAddress,
    /// The lease has no path over the transport that the caller wants.
    #[error(
        "the lease has no path over {} now: its transport is {}; leave --transport out to take what there is, or ask for \
         a lease with another --transport",
        any_of(.wanted), .has.map_or("none yet", Transport::name)
    )]
    NoPath {
        wanted: Transport,
        has: Option<Transport>,
    },
    /// The caller named a lease of another kind.
    #[error("a lease of {0} is no block storage; `fabricctl lease list` shows the leases of block")]
    NotBlock(ResourceType),
    /// The lease is in its grace time.
    #[error("the lease's term is over; renew the lease, or ask for a new lease")]
    Expired,
    /// The lease is over, and what it had is fenced.
    #[error("the lease is over and fenced; ask for a new lease")]
    Fenced,
    /// The lease is over.
    #[error("the lease is over: {0}; ask for a new lease")]
    Ended(LeasePhase),
    /// Another process attaches or detaches the lease now.
    #[error("lease {0} is being attached or detached by another process; try again")]
    Busy(LeaseId),
    /// The block daemon connects with new keys now.
    #[error("a connection with the lease's new keys is being made; try again")]
    KeysChange,
    /// Somebody on this machine uses the device.
    #[error("{} is {user}; {remedy} first", .device.display())]
    InUse {
        device: PathBuf,
        user: String,
        remedy: String,
    },
    /// The lease is attached over another transport than the caller wants.
    #[error(
        "lease {lease_id} is attached over {transport}{} and not over {wanted}; to change that, `fabricctl block \
         detach {lease_id}` first",
        .device.as_ref().map_or(String::new(), |path| format!(" as {}", path.display()))
    )]
    AttachedOtherwise {
        lease_id: String,
        transport: Transport,
        device: Option<PathBuf>,
        wanted: Transport,
    },
    /// This machine has no driver for a transport of the lease; another transport may do.
    #[error("{0}")]
    NoDriver(String),
    /// No address of the node accepted a connection: the reasons of the kernel.
    #[error("{0}")]
    NotConnected(String),
    /// There is no record of the lease on this machine.
    #[error(
        "the lease is not attached to this machine: {} is not there; was it attached on another machine, or with another \
         --attach-dir?",
        .0.display()
    )]
    NotAttached(PathBuf),
    /// The block daemon did not detach the device, for this reason.
    #[error("{0}")]
    NotDetached(String),
    /// The block daemon ended before the device was attached.
    #[error(
        "cannot keep the device: its process ended; see {}. `fabricctl block attach {lease_id}` tries again, `fabricctl \
         block detach {lease_id}` takes away what it may have connected",
        .log.display()
    )]
    DaemonEnded {
        lease_id: LeaseId,
        log: PathBuf,
        /// What the daemon has printed: its failure, if it could report one.
        report: String,
    },
    /// An operation of this machine failed at a step.
    #[error("cannot {step}: {why}")]
    Local {
        step: String,
        why: Box<dyn Error + Send + Sync>,
    },
    /// A file of the kernel could not be read or written.
    #[error("cannot {0}")]
    Kernel(#[from] fabricbios_kernfs::Error),
    /// The kernel lists no device of the lease's connection, after this many seconds.
    #[error("connected, but no block device came in {0} s; see the kernel's log")]
    NoDevice(u64),
    /// The node serves other blocks than the lease's.
    #[error(
        "{} has {bytes} bytes and the lease {lease_bytes}: the node does not serve the lease's blocks; its operator finds \
         why in its log",
        .device.display()
    )]
    WrongSize {
        device: PathBuf,
        bytes: u64,
        lease_bytes: u64,
    },
    /// The kernel does not end a connection, after this many seconds.
    #[error("the kernel still has a connection to {subnqn} after {secs} s; see the kernel's log")]
    StillConnected { subnqn: String, secs: u64 },
    /// The kernel cannot change the keys of an open connection.
    #[error(
        "without NVMe multipath (nvme_core.multipath=N) another connection would be another device; detach the lease and \
         attach it again"
    )]
    NoMultipath,
    /// The connection whose keys were to change is gone.
    #[error("the connection ended meanwhile")]
    Disconnected,
    /// A connection with the lease's new keys is of no use, after this many seconds.
    #[error("a connection with the new keys led to no namespace in {0} s; see the kernel's log")]
    NoNamespace(u64),
    /// The node, or the way to it.
    #[error(transparent)]
    Client(#[from] fabricbios_client::Error),
    /// An error, and what else went wrong.
    #[error("{error}; {more}")]
    Also {
        error: Box<AttachError>,
        more: String,
    },
}

impl AttachError {
    /// A failed operation of this machine.
    pub(crate) fn local(
        step: impl Into<String>,
        why: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        let (step, why) = (step.into(), why.into());
        Self::Local { step, why }
    }

    /// A driver that this machine lacks: the place where it would be seen, the result of loading its module, and the
    /// alternative.
    pub(crate) fn no_driver(
        kind: &str,
        place: &str,
        module: &str,
        loaded: Result<(), impl fmt::Display>,
        instead: &str,
    ) -> Self {
        let why = match loaded {
            Err(error) => error.to_string(),
            Ok(()) => "without an error".to_owned(),
        };
        Self::NoDriver(format!(
            "this kernel has no {kind}: {place} is not there and `modprobe {module}` did not help ({why}); install the \
             kernel's modules, or {instead}"
        ))
    }

    /// Adds to the text.
    pub(crate) fn also(self, more: impl Into<String>) -> Self {
        let (error, more) = (Box::new(self), more.into());
        Self::Also { error, more }
    }
}

fn any_of(wanted: &Transport) -> String {
    match wanted {
        Transport::Auto => "NVMe-oF or UDP".to_owned(),
        other => other.to_string(),
    }
}
