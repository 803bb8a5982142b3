//! Ways to open a session, and to end one.

use std::{path::Path, sync::Arc};

use fabricbios_local::SharedMemory;
use fabricbios_wire::LeaseId;

use super::{
    GpuSession, Wiped,
    queue::Queue,
    session::{self, Origin, Session},
};
use crate::{Error, GpuLease, runtime::wait};

/// How a session is opened at the local socket of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it is given to `GpuSession::local_with`"]
pub struct LocalOptions {
    session: u64,
    shared_bytes: usize,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self {
            session: 0,
            shared_bytes: 16 << 20,
        }
    }
}

impl LocalOptions {
    /// Opens exactly this session; by default the lease's, which is started if there is none.
    pub fn session(mut self, session: u64) -> Self {
        self.session = session;
        self
    }

    /// Sets the size of the memory that is shared with the session's worker for copies; 16 MiB by default. With 0, copies go
    /// through the socket.
    pub fn shared_bytes(mut self, bytes: usize) -> Self {
        self.shared_bytes = bytes;
        self
    }
}

impl GpuSession {
    /// Opens the session of a lease, blocking; starts it if there is none.
    pub fn new(lease: &GpuLease) -> Result<Self, Error> {
        wait(Self::new_async(lease))
    }

    /// Opens the session of a lease; starts it if there is none.
    pub async fn new_async(lease: &GpuLease) -> Result<Self, Error> {
        Self::attach_async(lease, 0).await
    }

    /// Opens exactly this session of a lease, blocking: another program or an earlier run has started it.
    ///
    /// # Errors
    /// [`Error::Refused`] with NotFound if the session is over.
    pub fn attach(lease: &GpuLease, session: u64) -> Result<Self, Error> {
        wait(Self::attach_async(lease, session))
    }

    /// Opens exactly this session of a lease; see [`GpuSession::attach`].
    ///
    /// # Errors
    /// [`Error::Refused`] with NotFound if the session is over.
    pub async fn attach_async(lease: &GpuLease, session: u64) -> Result<Self, Error> {
        let origin = Origin::Lease(Arc::clone(&lease.shared));
        Self::open(origin, session, None).await
    }

    /// Opens the session of a lease at the local socket of the node on this machine, blocking; starts it if there is none.
    /// Copies go through memory that is shared with the worker of the session.
    pub fn local(lease_id: &LeaseId, socket: impl AsRef<Path>) -> Result<Self, Error> {
        Self::local_with(lease_id, socket, LocalOptions::default())
    }

    /// Opens a session at the local socket of the node on this machine, blocking.
    pub fn local_with(
        lease_id: &LeaseId,
        socket: impl AsRef<Path>,
        options: LocalOptions,
    ) -> Result<Self, Error> {
        wait(Self::local_async(lease_id, socket, options))
    }

    /// Opens a session at the local socket of the node on this machine.
    pub async fn local_async(
        lease_id: &LeaseId,
        socket: impl AsRef<Path>,
        options: LocalOptions,
    ) -> Result<Self, Error> {
        let origin = Origin::Socket {
            lease_id: *lease_id,
            path: socket.as_ref().to_owned(),
        };
        let shared = share(options.shared_bytes)?;
        Self::open(origin, options.session, shared).await
    }

    async fn open(
        origin: Origin,
        session: u64,
        shared: Option<Arc<SharedMemory>>,
    ) -> Result<Self, Error> {
        let origin = Arc::new(origin);
        let (stream, info) = session::open(&origin, session, shared.clone()).await?;
        let session = Session::new(origin, info);
        let queue = Queue::new(session, stream, shared);
        Ok(Self { queue })
    }

    /// Opens another queue of this session, blocking. Operations on one queue do not wait for those on the other.
    pub fn queue(&self) -> Result<Self, Error> {
        wait(self.queue_async())
    }

    /// Opens another queue of this session; see [`GpuSession::queue`].
    pub async fn queue_async(&self) -> Result<Self, Error> {
        let session = Arc::clone(&self.queue.session);
        session.check()?;
        let shared = share(self.queue.shared.as_ref().map_or(0, |it| it.bytes()))?;
        let stream = session.open(shared.clone()).await?;
        let queue = Queue::new(session, stream, shared);
        Ok(Self { queue })
    }

    /// Ends the session of a lease, blocking, even if other programs use all its queues; see [`GpuSession::close`].
    pub fn end(lease: &GpuLease) -> Result<Wiped, Error> {
        wait(Self::end_async(lease))
    }

    /// Ends the session of a lease; see [`GpuSession::end`].
    pub async fn end_async(lease: &GpuLease) -> Result<Wiped, Error> {
        session::close(Origin::Lease(Arc::clone(&lease.shared)), 0).await
    }

    /// Ends the session of a lease at the local socket of the node on this machine, blocking; see [`GpuSession::end`].
    pub fn end_local(lease_id: &LeaseId, socket: impl AsRef<Path>) -> Result<Wiped, Error> {
        let origin = Origin::Socket {
            lease_id: *lease_id,
            path: socket.as_ref().to_owned(),
        };
        wait(session::close(origin, 0))
    }
}

fn share(bytes: usize) -> Result<Option<Arc<SharedMemory>>, Error> {
    if bytes == 0 {
        return Ok(None);
    }
    let memory = SharedMemory::new(bytes).map_err(|error| Error::Local {
        what: "make shared memory",
        why: format!("{bytes} bytes: {error}"),
    })?;
    Ok(Some(Arc::new(memory)))
}
