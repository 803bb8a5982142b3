//! Files of the state directory, mapped by every process that uses them.

use std::{ffi::c_void, fs::File, io, num::NonZeroUsize, ptr::NonNull, sync::atomic::AtomicU64};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::HostMemory;

/// A mapped file. Other processes may change the bytes at any time; that is intended.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<c_void>,
    length: usize,
}

// SAFETY: the memory is not bound to a thread; see the methods for concurrent access.
unsafe impl Send for Mapping {}
// SAFETY: bytes are copied as a device's engines copy them, without order among threads: as on a real device,
// concurrent use of the same bytes gives any mixture. Words of the table are atomic.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `length` bytes of a file.
    pub(crate) fn of(file: &File, length: u64) -> io::Result<Self> {
        let length = usize::try_from(length).ok().and_then(NonZeroUsize::new);
        let length = length.ok_or(io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so no existing mapping changes.
        let base = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, file, 0) }?;
        Ok(Self {
            base,
            length: length.get(),
        })
    }

    pub(crate) fn length(&self) -> u64 {
        self.length as u64
    }

    /// The mapping as words of the table.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: a mapping begins at a page, is readable and writable, and lives as long as `self`; any eight bytes are
        // a word, and all processes use the table through atomic words.
        unsafe { std::slice::from_raw_parts(self.base.cast().as_ptr(), self.length / 8) }
    }

    /// The address of a range of the mapping in this process.
    ///
    /// # Panics
    /// The range is not within the mapping: an error of the stand-in, which must check the range before.
    fn at(&self, offset: u64, length: usize) -> *mut u8 {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let fits = offset
            .checked_add(length)
            .is_some_and(|end| end <= self.length);
        assert!(
            fits,
            "stand-in: {offset}+{length} is not within {} bytes",
            self.length
        );
        // SAFETY: the range is within the mapping.
        unsafe { self.base.cast::<u8>().add(offset).as_ptr() }
    }

    pub(crate) fn fill(&self, offset: u64, length: usize, byte: u8) {
        let to = self.at(offset, length);
        // SAFETY: `at` has checked the range.
        unsafe { std::ptr::write_bytes(to, byte, length) };
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let from = self.at(offset, length);
        // SAFETY: `at` has checked the range; the new vector is elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), length) };
        bytes
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: `at` has checked the range; no reference points into the mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies from the host's memory.
    pub(crate) fn copy_in(&self, offset: u64, from: HostMemory, length: usize) {
        let to = self.at(offset, length);
        // SAFETY: `at` has checked the range; the C caller keeps its memory until the copy is done. The two ranges
        // overlap only if the caller has mapped the file itself; `copy` allows that.
        unsafe { std::ptr::copy(from.bytes(), to, length) };
    }

    /// Copies to the host's memory.
    pub(crate) fn copy_out(&self, offset: u64, to: HostMemory, length: usize) {
        let from = self.at(offset, length);
        // SAFETY: `at` has checked the range; the C caller keeps its memory until the copy is done. `copy` allows
        // overlapping ranges.
        unsafe { std::ptr::copy(from, to.bytes(), length) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and nothing borrows from it any more.
        unsafe { munmap(self.base, self.length) }.ok();
    }
}
