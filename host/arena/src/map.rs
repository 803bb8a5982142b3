//! A file mapped into this process. The only unsafe code of the crate.

use std::{fmt, fs::File, io, num::NonZeroUsize, ptr::NonNull};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};

/// Largest number of NUMA nodes that a kernel supports.
const NODES: usize = 1024;

/// Bytes of a file mapped into this process, shared with other processes that have the file.
pub struct Mapping {
    start: NonNull<libc::c_void>,
    bytes: NonZeroUsize,
}

// SAFETY: a mapping is an address range. Its bytes are only copied in and out, through raw pointers, and never
// borrowed. Other threads, processes and devices may change the bytes concurrently; that is intended.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of `file` from `offset`, shared, for reading and writing. `offset`: a multiple of
    /// the file's pages.
    ///
    /// # Errors
    /// `bytes` is 0, or mmap(2) fails.
    pub fn of(file: &File, offset: u64, bytes: u64) -> io::Result<Self> {
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let offset = libc::off_t::try_from(offset).map_err(invalid)?;
        let bytes = usize::try_from(bytes).ok().and_then(NonZeroUsize::new);
        let bytes = bytes.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let start = unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, file, offset)? };
        let mapping = Self { start, bytes };
        mapping.keep_out_of_core_dumps();
        Ok(mapping)
    }

    /// Keeps the bytes of tenants out of core dumps.
    fn keep_out_of_core_dumps(&self) {
        // SAFETY: the range was just mapped, and the advice changes nothing about its contents.
        let advised = unsafe { madvise(self.start, self.bytes.get(), MmapAdvise::MADV_DONTDUMP) };
        if let Err(errno) = advised {
            tracing::warn!(%errno, "madvise DONTDUMP of the arena failed");
        }
    }

    /// Asks the kernel to take new pages from a NUMA node as long as the node has free pages.
    pub(crate) fn prefer_node(&self, node: u32) -> io::Result<()> {
        let mut mask = [0_u64; NODES / 64];
        let node = usize::try_from(node).unwrap_or(usize::MAX);
        let word = mask.get_mut(node / 64);
        *word.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))? |= 1 << (node % 64);
        // SAFETY: the range is this mapping's. `mask` has `NODES` bits: the call gets `NODES + 1` because the kernel
        // ignores the last bit (mbind(2), BUGS).
        let code = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.start.as_ptr(),
                self.bytes.get(),
                libc::MPOL_PREFERRED,
                mask.as_ptr(),
                NODES + 1,
                0,
            )
        };
        match code {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }

    /// The address of a byte, for registering memory with a device only.
    #[must_use]
    pub fn pointer(&self, offset: usize) -> *mut libc::c_void {
        self.start.as_ptr().wrapping_byte_add(offset)
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.get() as u64
    }

    pub(crate) fn copy_out(&self, at: usize, into: &mut [u8]) {
        self.assert_inside(at, into.len());
        // SAFETY: the range lies within the mapping, asserted above; `into` is borrowed by this call alone.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.pointer(at).cast::<u8>(),
                into.as_mut_ptr(),
                into.len(),
            );
        }
    }

    pub(crate) fn copy_in(&self, at: usize, from: &[u8]) {
        self.assert_inside(at, from.len());
        // SAFETY: as in `copy_out`; no reference to the bytes of the mapping exists.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), self.pointer(at).cast::<u8>(), from.len());
        }
    }

    pub(crate) fn zero(&self, at: usize, length: usize) {
        self.assert_inside(at, length);
        // SAFETY: as in `copy_in`.
        unsafe { self.pointer(at).cast::<u8>().write_bytes(0, length) };
    }

    /// Asserts the range on which the unsafe code relies; the caller has checked it.
    fn assert_inside(&self, at: usize, length: usize) {
        let inside = at
            .checked_add(length)
            .is_some_and(|end| end <= self.bytes.get());
        assert!(inside, "{length} bytes at {at} are not in the mapping");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `of` and nothing borrows from it. A device's memory region that still pins
        // the pages keeps the pages, not the address range.
        if let Err(errno) = unsafe { munmap(self.start, self.bytes.get()) } {
            tracing::warn!(%errno, "munmap of the arena failed");
        }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes)", self.bytes)
    }
}
