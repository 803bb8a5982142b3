//! Memory that a client shares with the session. It is mapped in this process and registered with the driver.

use std::{ffi::c_void, num::NonZeroUsize, os::fd::BorrowedFd, ptr::NonNull};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use super::{context::Context, error::DriverError};

/// A mapped file in memory. The client may change its bytes at any time, so the process makes no reference to them.
#[derive(Debug)]
pub struct Shared {
    context: Context,
    base: NonNull<c_void>,
    length: usize,
    is_pinned: bool,
}

impl Shared {
    /// Maps the first `length` bytes of a file whose length cannot shrink, and pins them if the driver can.
    ///
    /// # Errors
    /// The file cannot be mapped, or the context is lost.
    pub fn map(context: &Context, file: BorrowedFd<'_>, length: u64) -> Result<Self, DriverError> {
        let failed = |text: String| DriverError::own(context.vendor(), "mmap", text);
        let size = usize::try_from(length).ok().and_then(NonZeroUsize::new);
        let size = size.ok_or_else(|| failed(format!("{length} bytes cannot be mapped")))?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel chooses the place, so no existing mapping changes.
        let base = unsafe { mmap(None, size, access, MapFlags::MAP_SHARED, file, 0) };
        let base =
            base.map_err(|errno| failed(format!("{length} bytes of the shared memory: {errno}")))?;
        let mut shared = Self {
            context: context.clone(),
            base,
            length: size.get(),
            is_pinned: false,
        };
        // SAFETY: the range is the mapping, which stays until it is unregistered.
        match unsafe {
            context
                .api()?
                .register_host(base.as_ptr(), shared.length, 0)
        } {
            Ok(()) => shared.is_pinned = true,
            Err(error) if error.is_lost() => return Err(error),
            // Copies of memory that is not pinned work too, but are slower.
            Err(error) => tracing::info!(%error, length, "shared memory is used without pinning"),
        }
        Ok(shared)
    }

    /// A part of the mapping. `None`: the part is not within the mapping.
    pub(super) fn part(&self, offset: u64, length: u64) -> Option<(NonNull<c_void>, usize)> {
        let end = offset.checked_add(length)?;
        let (offset, length) = (usize::try_from(offset).ok()?, usize::try_from(length).ok()?);
        // SAFETY: the part is within the mapping.
        (end <= self.length()).then(|| (unsafe { self.base.byte_add(offset) }, length))
    }

    /// True if the driver has pinned the memory.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.is_pinned
    }

    /// Its length, bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length as u64
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_pinned {
            let api = self.context.api();
            // SAFETY: the memory was registered, and no copy is in flight: copies end before their calls return.
            let ended = api.and_then(|api| unsafe { api.unregister_host(self.base.as_ptr()) });
            // If the context is lost, the driver may still use the pages: they stay until the process ends.
            if ended.is_err() {
                return;
            }
        }
        // SAFETY: the mapping belongs to this value, and nobody uses it any more.
        unsafe { munmap(self.base, self.length) }.ok();
    }
}
