//! FBBU: blocks of a file or device, served by io_uring and O_DIRECT.

use std::{io, net::SocketAddr, path::PathBuf};

use fabricbios_lease::{BindError, BootTime, StepError, Tag};
use fabricbios_wire::Binding;

/// Where and how blocks are served.
#[derive(Clone, Debug)]
pub struct FbbuConfig {
    /// Address of the socket.
    pub listen: SocketAddr,
    /// Threads; by default as many as there are processors, at most 4.
    pub workers: Option<usize>,
    /// Most new requests a second of one lease.
    pub ops_per_second: u32,
}

/// A lease's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockFile {
    /// A file or block device.
    pub path: PathBuf,
    /// How much of it, from its start.
    pub bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Nothing is written.
    pub read_only: bool,
}

/// The serving half of FBBU. As [`fabricbios_lease::Backend`], but that it owns no resource: whoever
/// composes it brings the file.
#[derive(Debug)]
pub struct FbbuBackend {}

impl FbbuBackend {
    /// Opens the socket and starts its threads.
    pub fn open(config: &FbbuConfig) -> io::Result<Self> {
        Err(io::Error::other(format!("{config:?}")))
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        unimplemented!("FBBU")
    }

    /// A new binding; whatever the lease still has of an older generation is cut first. Never opens access
    /// after a cut of the same or a newer generation has begun.
    pub fn bind(&self, tag: Tag, _file: &BlockFile) -> Result<Binding, BindError> {
        Err(BindError::Failed(StepError::new("bind", tag)))
    }

    /// [`fabricbios_lease::Backend::extend`].
    pub fn extend(&self, _tag: Tag, _deadline: BootTime) {}

    /// [`fabricbios_lease::Backend::fenced`].
    pub fn fenced(&self, _tag: Tag) {}

    /// [`fabricbios_lease::Backend::rotate`].
    pub fn rotate(&self, tag: Tag) -> Result<Binding, BindError> {
        Err(BindError::Failed(StepError::new("rotate", tag)))
    }

    /// [`fabricbios_lease::Backend::retire_key`].
    pub fn retire_key(&self, tag: Tag) -> Result<Binding, StepError> {
        Err(StepError::new("retire key", tag))
    }

    /// [`fabricbios_lease::Backend::cut`]: never waits for the storage. What had been handed to it before
    /// may still land; nothing that is read leaves any more.
    pub fn cut(&self, tag: Tag) -> Result<String, StepError> {
        Err(StepError::new("cut", tag))
    }

    /// After a cut. `Ok`: no I/O of the lease is under way any more and its file is closed. Gives up when the
    /// storage makes no progress for some seconds. Idempotent.
    pub fn retire(&self, tag: Tag, _progress: &dyn Fn()) -> Result<(), StepError> {
        Err(StepError::new("retire", tag))
    }

    /// Closes the socket and ends the threads.
    pub fn close(self) {}
}
