//! Handles of memory and modules of a session. The last one frees.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use fabricbios_wire::GpuRequest;

use super::queue::Queue;
use crate::Error;

/// Memory of a session. Cheap to clone; dropping the last clone wipes and frees the memory, soon and without waiting. If
/// that fails, it is freed with the session, which ends with the lease at the latest.
#[derive(Clone, Debug)]
pub struct GpuMemory(Arc<Allocation>);

#[derive(Debug)]
struct Allocation {
    queue: Arc<Queue>,
    handle: MemoryHandle,
    is_kept: AtomicBool,
}

/// The name of memory in a session, for another program or a later run of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryHandle {
    /// The session.
    pub session: u64,
    /// The number of the memory.
    pub memory: u64,
    /// The address on the device.
    pub address: u64,
    /// The length in bytes.
    pub bytes: u64,
}

/// A module of a session. Cheap to clone; dropping the last clone unloads the module, soon and without waiting.
#[derive(Clone, Debug)]
pub struct GpuModule(Arc<Loaded>);

#[derive(Debug)]
struct Loaded {
    queue: Arc<Queue>,
    module: u64,
}

impl GpuMemory {
    pub(super) fn new(queue: &Arc<Queue>, handle: MemoryHandle) -> Self {
        Self(Arc::new(Allocation {
            queue: Arc::clone(queue),
            handle,
            is_kept: AtomicBool::new(false),
        }))
    }

    /// The length in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.handle.bytes
    }

    /// The address on the device, which an argument of a kernel can contain.
    pub fn address(&self) -> u64 {
        self.0.handle.address
    }

    /// Keeps the memory until the session ends: it is not freed with its last handle. [`crate::GpuSession::memory`] makes
    /// another handle of the name.
    pub fn keep(self) -> MemoryHandle {
        self.0.is_kept.store(true, Ordering::Relaxed);
        self.0.handle
    }

    /// The number of the memory, for an operation on this range of it in this session.
    pub(super) fn range(&self, queue: &Queue, offset: u64, length: u64) -> Result<u64, Error> {
        self.check_session(queue)?;
        let bytes = self.bytes();
        match offset.checked_add(length) {
            Some(end) if end <= bytes => Ok(self.0.handle.memory),
            _ => Err(Error::Usage(format!(
                "{length} bytes at {offset} are not within the {bytes} bytes of this memory"
            ))),
        }
    }

    pub(super) fn check_session(&self, queue: &Queue) -> Result<(), Error> {
        check_session("memory", &self.0.queue, queue)
    }
}

impl GpuModule {
    pub(super) fn new(queue: &Arc<Queue>, module: u64) -> Self {
        let queue = Arc::clone(queue);
        Self(Arc::new(Loaded { queue, module }))
    }

    /// The number of the module, for an operation in this session.
    pub(super) fn number(&self, queue: &Queue) -> Result<u64, Error> {
        check_session("module", &self.0.queue, queue)?;
        Ok(self.0.module)
    }
}

fn check_session(what: &str, its: &Queue, used: &Queue) -> Result<(), Error> {
    let place = |queue: &Queue| {
        let session = &queue.session;
        (session.origin.lease_id(), session.info.session)
    };
    let ((its_lease, its), (lease, used)) = (place(its), place(used));
    if (its_lease, its) == (lease, used) {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "a {what} of session {its} of lease {its_lease} is none of session {used} of lease {lease}"
    )))
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let memory = self.handle.memory;
        if !*self.is_kept.get_mut() {
            self.queue.release(GpuRequest::MemFree { memory });
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let module = self.module;
        self.queue.release(GpuRequest::ModuleUnload { module });
    }
}
