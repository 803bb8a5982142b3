//! The client: a queue pair connected to a lease.
//!
//! Makes one request at a time and waits for it, which is enough for a command line or a test. Programs that need full
//! speed make and connect their own queue pair.

use std::{fmt, sync::Arc, time::Duration};

use fabricbios_arena::{ALIGN, Arena, Source};
use fabricbios_lease::StepError;
use fabricbios_verbs::{
    Access, Completion, CompletionQueue, Connection, Local, MemoryRegion, ProtectionDomain,
    QueuePair, QueueSizes, Refused, Remote, Rights, WorkError,
};
use fabricbios_wire::{RdmaBinding, RdmaPeer};
use nix::errno::Errno;

use super::{
    device::{Device, Found, close},
    keys::random_psn,
};

const SIZES: QueueSizes = QueueSizes {
    send: 16,
    receive: 1,
};
const COMPLETIONS: u8 = 32;

/// Time limit of a request. A device gives up after some seconds; this is for a device that does not.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// A client's queue pair and buffer.
#[derive(Debug)]
pub struct RdmaRequester {
    device: Device,
    domain: Arc<ProtectionDomain>,
    region: MemoryRegion,
    completions: CompletionQueue,
    queue_pair: QueuePair,
    buffer: Arc<Arena>,
    psn: u32,
    next_id: u64,
}

/// Why a request did not succeed. Except after `Local`, the queue pair cannot be used any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The node refused the access: the lease has ended, or the key or the range is not the lease's.
    #[error("the node refused access: the lease has ended, or key or range are not the lease's")]
    RemoteAccess,
    /// An earlier request failed. Nothing was sent.
    #[error("the queue pair has failed before: bind again")]
    Disconnected,
    /// The device reports another failure; mostly, the peer does not answer.
    #[error("{0}")]
    Failed(String),
    /// The request could not be made: the buffer is too small, or a call failed.
    #[error("{0}")]
    Local(String),
}

impl RdmaRequester {
    /// Makes a queue pair in INIT, with a buffer for requests of up to `buffer_bytes`.
    ///
    /// # Errors
    /// There is no device, or the kernel refuses to make an object.
    pub fn open(device: Option<&str>, buffer_bytes: usize) -> Result<Self, StepError> {
        let device = match Device::find(device, false)? {
            Found::Device(device) => *device,
            Found::Nothing(reason) => return Err(StepError::new("open RDMA device", reason)),
        };
        let domain = ProtectionDomain::alloc(&device.context).map_err(refused("alloc_pd"))?;
        let (buffer, region) = buffer(&domain, buffer_bytes)?;
        let completions =
            CompletionQueue::create(&device.context, COMPLETIONS).map_err(refused("create_cq"))?;
        let queue_pair =
            QueuePair::create(&domain, &completions, SIZES).map_err(refused("create_qp"))?;
        queue_pair
            .init(device.port, Rights::Nothing)
            .map_err(refused("modify_qp INIT"))?;
        let psn = random_psn()?;
        Ok(Self {
            device,
            domain,
            region,
            completions,
            queue_pair,
            buffer,
            psn,
            next_id: 1,
        })
    }

    /// The `RdmaPeer` for an allocation or a bind.
    pub fn peer(&self) -> RdmaPeer {
        RdmaPeer {
            qpn: self.queue_pair.number(),
            psn: self.psn,
            gid: self.device.gid.bytes,
            path_mtu: self.device.state.mtu_bytes,
        }
    }

    /// Connects to a lease.
    ///
    /// # Errors
    /// The kernel refuses, in most cases because the address cannot be reached.
    pub fn connect(&self, to: &RdmaBinding) -> Result<(), StepError> {
        let connection = Connection {
            local: Local {
                port: self.device.port,
                gid_index: self.device.gid.index,
                psn: self.psn,
            },
            remote: Remote {
                qp_num: to.qp_num,
                psn: to.psn,
                gid: to.gid,
            },
            mtu_bytes: to.path_mtu,
            responder_reads: 1,
            initiator_reads: to.max_rd_atomic.clamp(1, 16),
        };
        self.queue_pair
            .ready_to_receive(&connection)
            .map_err(refused("modify_qp RTR"))?;
        self.queue_pair
            .ready_to_send(&connection)
            .map_err(refused("modify_qp RTS"))
    }

    /// Writes `bytes` at `address` of the node under `rkey`.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn write(&mut self, rkey: u32, address: u64, bytes: &[u8]) -> Result<(), RequestError> {
        let length = u32::try_from(bytes.len()).map_err(local)?;
        self.buffer.write(0, bytes).map_err(local)?;
        let id = self.next_id();
        self.queue_pair
            .post_write(id, (&self.region, 0, length), (rkey, address))
            .map_err(local)?;
        self.finish(id)
    }

    /// Fills `bytes` from `address` of the node under `rkey`.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn read(&mut self, rkey: u32, address: u64, bytes: &mut [u8]) -> Result<(), RequestError> {
        let length = u32::try_from(bytes.len()).map_err(local)?;
        let id = self.next_id();
        self.queue_pair
            .post_read(id, (&self.region, 0, length), (rkey, address))
            .map_err(local)?;
        self.finish(id)?;
        self.buffer.read(0, bytes).map_err(local)
    }

    /// Destroys all objects.
    ///
    /// # Errors
    /// The kernel refuses to destroy an object.
    pub fn close(self) -> Result<(), StepError> {
        let Self {
            device,
            domain,
            region,
            completions,
            queue_pair,
            ..
        } = self;
        queue_pair.destroy().map_err(not_destroyed("destroy_qp"))?;
        completions.destroy().map_err(not_destroyed("destroy_cq"))?;
        region.dereg().map_err(not_destroyed("dereg_mr"))?;
        if let Some(domain) = Arc::into_inner(domain) {
            domain.dealloc().map_err(not_destroyed("dealloc_pd"))?;
        }
        close(device.context)
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn finish(&self, id: u64) -> Result<(), RequestError> {
        self.completions
            .wait(id, REQUEST_LIMIT)
            .map_err(RequestError::from)
    }
}

impl From<WorkError> for RequestError {
    fn from(error: WorkError) -> Self {
        match error {
            WorkError::Failed(completion) if completion.is_remote_access_error() => {
                Self::RemoteAccess
            }
            WorkError::Failed(completion) if Completion::is_flushed(completion) => {
                Self::Disconnected
            }
            other => Self::Failed(other.to_string()),
        }
    }
}

fn local(error: impl fmt::Display) -> RequestError {
    RequestError::Local(error.to_string())
}

/// Makes a buffer of whole pages, at least `bytes` long.
fn buffer(
    domain: &Arc<ProtectionDomain>,
    bytes: usize,
) -> Result<(Arc<Arena>, MemoryRegion), StepError> {
    let failed = |detail: String| StepError::new("make buffer", format!("{bytes} bytes: {detail}"));
    let whole = (bytes as u64).next_multiple_of(ALIGN);
    let arena =
        Arena::open(&Source::default(), whole).map_err(|error| failed(error.to_string()))?;
    let arena = Arc::new(arena);
    let region = MemoryRegion::register(domain, &arena, (0, whole), Access::LocalBuffer)
        .map_err(|errno| failed(format!("reg_mr: {errno}")))?;
    Ok((arena, region))
}

fn refused(step: &'static str) -> impl Fn(Errno) -> StepError {
    move |errno| StepError::new(step, errno).with_errno(errno as i32)
}

fn not_destroyed<T>(step: &'static str) -> impl Fn(Refused<T>) -> StepError {
    move |(_, errno)| refused(step)(errno)
}
