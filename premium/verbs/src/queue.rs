//! Completion queues, and the results of posted work.

use std::{
    ffi::CStr,
    fmt,
    mem::MaybeUninit,
    ptr::null_mut,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::errno::Errno;
use rdma_mummy_sys as ffi;

use super::{Context, Refused, handle::Handle};

/// A device does local work in less. A longer wait leaves the processor to threads of the kernel, which do the work of an
/// emulated device.
const AT_ONCE: Duration = Duration::from_micros(50);
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);

/// Receives completions. Only one thread may poll it at a time.
#[derive(Debug)]
pub struct CompletionQueue {
    raw: Handle<ffi::ibv_cq>,
    _context: Arc<Context>,
}

/// The result of one work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The id of the work request.
    pub id: u64,
    status: ffi::ibv_wc_status::Type,
}

/// Why a work request did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkError {
    /// The request could not be posted.
    #[error("could not be posted: {0}")]
    Post(Errno),
    /// The completion queue could not be read.
    #[error("completion queue could not be read: {0}")]
    Poll(Errno),
    /// The request completed with a failure.
    #[error("completed with {0}")]
    Failed(Completion),
    /// The request did not complete in time.
    #[error("no completion within {} ms", .0.as_millis())]
    Silent(Duration),
}

impl CompletionQueue {
    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_cq {
        self.raw.as_ptr()
    }

    /// Makes a completion queue.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn create(context: &Arc<Context>, entries: u8) -> Result<Self, Errno> {
        let entries = entries.into();
        // SAFETY: the context is open; no channel and no user pointer are given.
        let make =
            || unsafe { ffi::ibv_create_cq(context.as_ptr(), entries, null_mut(), null_mut(), 0) };
        Ok(Self {
            raw: Handle::make("completion queue", context.name(), make)?,
            _context: Arc::clone(context),
        })
    }

    /// The next completion, if there is one.
    fn poll(&self) -> Result<Option<Completion>, Errno> {
        let mut entry = MaybeUninit::<ffi::ibv_wc>::zeroed();
        // SAFETY: the queue exists, and `entry` has room for one completion.
        match unsafe { ffi::ibv_poll_cq(self.as_ptr(), 1, entry.as_mut_ptr()) } {
            0 => Ok(None),
            count if count < 0 => Err(Errno::EIO),
            _ => {
                // SAFETY: zeroed before, filled by the call.
                let entry = unsafe { entry.assume_init() };
                Ok(Some(Completion {
                    id: entry.wr_id,
                    status: entry.status,
                }))
            }
        }
    }

    /// Waits for the completion with this id. Drops completions of older work.
    ///
    /// # Errors
    /// The work failed or did not complete in time, or the queue cannot be read.
    pub fn wait(&self, id: u64, limit: Duration) -> Result<(), WorkError> {
        let started = Instant::now();
        loop {
            match self.poll().map_err(WorkError::Poll)? {
                Some(done) if done.id == id => {
                    return match done.status {
                        ffi::ibv_wc_status::IBV_WC_SUCCESS => Ok(()),
                        _ => Err(WorkError::Failed(done)),
                    };
                }
                Some(_) => {}
                None if started.elapsed() >= limit => return Err(WorkError::Silent(limit)),
                None if started.elapsed() < AT_ONCE => std::thread::yield_now(),
                None => std::thread::sleep(BETWEEN_LOOKS),
            }
        }
    }

    /// Destroys the queue.
    ///
    /// # Errors
    /// The kernel refuses, as long as a queue pair uses the queue.
    pub fn destroy(mut self) -> Result<(), Refused<Self>> {
        // SAFETY: the queue exists.
        let taken = self
            .raw
            .take_down(|raw| unsafe { ffi::ibv_destroy_cq(raw) });
        taken.map_err(|errno| (self, errno))
    }
}

impl Completion {
    /// Whether the peer refused the key, the address or the kind of access.
    pub fn is_remote_access_error(self) -> bool {
        self.status == ffi::ibv_wc_status::IBV_WC_REM_ACCESS_ERR
    }

    /// Whether the work was flushed, because the queue pair had failed before.
    pub fn is_flushed(self) -> bool {
        self.status == ffi::ibv_wc_status::IBV_WC_WR_FLUSH_ERR
    }
}

impl fmt::Display for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the library returns a constant string for every value.
        let text = unsafe { ffi::ibv_wc_status_str(self.status).as_ref() };
        // SAFETY: as above, and the string ends in NUL.
        let text = text.map(|text| unsafe { CStr::from_ptr(text) }.to_string_lossy());
        write!(
            f,
            "{} ({})",
            text.as_deref().unwrap_or("unknown status"),
            self.status
        )
    }
}
