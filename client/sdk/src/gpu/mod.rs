//! Sessions of a GPU: memory, modules and kernels of a lease.

mod ahead;
mod copy;
mod launch;
mod memory;
mod opening;
mod queue;
mod session;
mod stream;
mod submit;
mod transfers;

use std::sync::Arc;

use fabricbios_local::SharedMemory;
use fabricbios_wire::{GPU_MODULE_BYTES_MAX, GpuOpened, GpuReply, GpuRequest};

use self::{ahead::What, queue::Queue};
pub use self::{
    launch::Argument,
    memory::{GpuMemory, GpuModule, MemoryHandle},
    opening::LocalOptions,
    submit::{Submission, Submitted},
};
use crate::{Error, runtime::wait};

/// A session of a lease of a GPU. Operations on one `GpuSession` are done in order. [`GpuSession::queue`] opens another
/// queue of the same session; operations on one queue do not wait for those on the other.
///
/// A session goes on when its handles are dropped, and when the connection or the daemon of the node is lost, until it is closed
/// or the lease ends (a lease with the execution mode `one_shot`: until its stream is closed). After the end of the lease every
/// call fails.
#[derive(Debug)]
pub struct GpuSession {
    queue: Arc<Queue>,
}

/// The end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wiped {
    /// Bytes of the device that were overwritten with zeros.
    pub bytes: u64,
    /// Bytes that the session could have allocated.
    pub free_bytes: u64,
}

impl Wiped {
    fn of(reply: &GpuReply) -> Result<Self, Error> {
        match *reply {
            GpuReply::Closed {
                wiped_bytes: bytes,
                free_bytes,
            } => Ok(Self { bytes, free_bytes }),
            ref other => Err(unexpected("the end of the session", other)),
        }
    }
}

impl GpuSession {
    /// The number of the session, for [`GpuSession::attach`].
    pub fn id(&self) -> u64 {
        self.info().session
    }

    /// The worker's description of session and device from when this handle was made.
    pub fn info(&self) -> &GpuOpened {
        &self.queue.session.info
    }

    /// The memory that is shared with the worker; `None` for a session at a remote node. [`GpuSession::mem_write`] and
    /// [`GpuSession::mem_read`] overwrite it.
    pub fn shared_memory(&self) -> Option<&SharedMemory> {
        self.queue.shared.as_deref()
    }

    /// Allocates memory of the device, blocking.
    ///
    /// # Errors
    /// [`Error::Refused`] with CapacityExceeded if the lease has no more memory, or the device has none at the moment.
    pub fn mem_alloc(&self, bytes: u64) -> Result<GpuMemory, Error> {
        wait(self.mem_alloc_async(bytes))
    }

    /// Allocates memory of the device; see [`GpuSession::mem_alloc`].
    ///
    /// # Errors
    /// See [`GpuSession::mem_alloc`].
    pub async fn mem_alloc_async(&self, bytes: u64) -> Result<GpuMemory, Error> {
        if bytes == 0 {
            return Err(Error::Usage("memory has at least 1 byte".to_owned()));
        }
        match self.queue.ask(&GpuRequest::MemAlloc { bytes }).await? {
            GpuReply::Memory { memory, address } => Ok(self.memory(MemoryHandle {
                session: self.id(),
                memory,
                address,
                bytes,
            })),
            other => Err(unexpected("memory", &other)),
        }
    }

    /// A handle of memory that was [kept](GpuMemory::keep). Dropping the handle frees the memory.
    pub fn memory(&self, handle: MemoryHandle) -> GpuMemory {
        GpuMemory::new(&self.queue, handle)
    }

    /// Loads a module, blocking: PTX, or a binary for this very device.
    ///
    /// # Errors
    /// [`Error::Refused`] with InvalidArgs if the vendor's library does not accept the module; the text has the library's
    /// reason.
    pub fn module_load(&self, module: &[u8]) -> Result<GpuModule, Error> {
        wait(self.module_load_async(module))
    }

    /// Loads a module; see [`GpuSession::module_load`].
    ///
    /// # Errors
    /// See [`GpuSession::module_load`].
    pub async fn module_load_async(&self, module: &[u8]) -> Result<GpuModule, Error> {
        let length = u32::try_from(module.len()).unwrap_or(u32::MAX);
        if !(1..=GPU_MODULE_BYTES_MAX).contains(&length) {
            return Err(Error::Usage(format!(
                "a module has 1 to {GPU_MODULE_BYTES_MAX} bytes, and this one {}",
                module.len()
            )));
        }
        let mut held = self.queue.hold().await?;
        let request = GpuRequest::ModuleLoad { length };
        let answered = held.stream.ask(&request, module).await;
        match held.done(answered).await? {
            GpuReply::Module { module } => Ok(GpuModule::new(&self.queue, module)),
            other => Err(unexpected("a module", &other)),
        }
    }

    /// Sends a kernel to the queue and does not wait: up to 128 launches and [copies ahead](GpuSession::mem_write_ahead) are on
    /// their way at once. [`GpuSession::sync`] waits for the kernel's end. Later operations on this queue see the memory that
    /// the kernel has written. The first of several launches is sent at once; others may wait for more of them, 2 ms at most. A
    /// program that ends without a call that waits may lose launches.
    ///
    /// # Errors
    /// If the arguments fit no kernel, or the session is over. If the node refuses the launch, [`GpuSession::sync`] says so, or the
    /// next other call on this queue that waits: the text names kernel and launch. Launches behind a refused one run nevertheless.
    pub fn launch(
        &self,
        module: &GpuModule,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        arguments: &[Argument<'_>],
    ) -> Result<(), Error> {
        wait(self.launch_async(module, kernel, grid, block, shared_bytes, arguments))
    }

    /// Sends a kernel to the queue; see [`GpuSession::launch`].
    ///
    /// # Errors
    /// See [`GpuSession::launch`].
    pub async fn launch_async(
        &self,
        module: &GpuModule,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        arguments: &[Argument<'_>],
    ) -> Result<(), Error> {
        let shape = (grid, block, shared_bytes);
        let launch = launch::launch(&self.queue, module, kernel, shape, arguments)?;
        let kernel = kernel.to_owned();
        let request = GpuRequest::Launch(launch);
        let what = What::Launch { kernel };
        self.queue.ask_ahead(&request, &[], what).await
    }

    /// Waits for the kernels and copies of this queue, blocking.
    ///
    /// # Errors
    /// If a kernel has failed, which also ends the session. The first failure of a launch or a copy ahead since the last
    /// call that waited, once: the session goes on.
    pub fn sync(&self) -> Result<(), Error> {
        wait(self.sync_async())
    }

    /// Waits for the kernels of this queue; see [`GpuSession::sync`].
    ///
    /// # Errors
    /// See [`GpuSession::sync`].
    pub async fn sync_async(&self) -> Result<(), Error> {
        self.wait_for(false).await
    }

    /// Waits for the kernels of all queues of the session, blocking.
    ///
    /// # Errors
    /// See [`GpuSession::sync`].
    pub fn sync_all(&self) -> Result<(), Error> {
        wait(self.sync_all_async())
    }

    /// Waits for the kernels of all queues of the session.
    ///
    /// # Errors
    /// See [`GpuSession::sync`].
    pub async fn sync_all_async(&self) -> Result<(), Error> {
        self.wait_for(true).await
    }

    /// Waits for the kernels of this queue, or of all queues. Kernels that this queue launched over an earlier stream
    /// can only be waited for together with those of all queues.
    async fn wait_for(&self, all: bool) -> Result<(), Error> {
        if all {
            self.queue.settle_others().await;
        }
        let mut may_repeat = true;
        loop {
            let held = self.queue.hold_ahead().await?;
            let whole_session = all || self.queue.is_reopened();
            let outcome = held.ask(&GpuRequest::Sync { whole_session }).await;
            let is_over = |error: &Error| error.refusal().is_none() && !error.may_have_happened();
            match (outcome, self.queue.failure()) {
                (Err(error), _) if is_over(&error) => return Err(error),
                (_, Some(failure)) => return Err(failure),
                (Err(error), None) if may_repeat && error.may_have_happened() => may_repeat = false,
                (outcome, None) => return done(&outcome?),
            }
        }
    }

    /// Ends the session with all its queues, blocking: memory is wiped and freed, modules are unloaded. Failures of launches and
    /// copies that nothing has waited for are not told.
    pub fn close(self) -> Result<Wiped, Error> {
        wait(self.close_async())
    }

    /// Ends the session with all its queues; see [`GpuSession::close`].
    pub async fn close_async(self) -> Result<Wiped, Error> {
        let held = self.queue.hold_ahead().await?;
        let wiped = Wiped::of(&held.ask(&GpuRequest::Close).await?)?;
        self.queue.session.end("it was closed".to_owned());
        Ok(wiped)
    }
}

fn done(reply: &GpuReply) -> Result<(), Error> {
    match reply {
        GpuReply::Done => Ok(()),
        other => Err(unexpected("nothing", other)),
    }
}

fn unexpected(wanted: &str, got: &GpuReply) -> Error {
    Error::Protocol {
        node: "of this session".to_owned(),
        why: format!("expected {wanted}, got {got:?}"),
    }
}
