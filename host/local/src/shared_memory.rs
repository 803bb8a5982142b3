//! Memory that a caller shares with the worker of its session: copies to and from a device that do not go through the
//! socket.

use std::{
    fmt,
    io::{self, IoSlice},
    num::NonZeroUsize,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    libc,
    sys::{
        memfd::{MFdFlags, memfd_create},
        mman::{MapFlags, ProtFlags, mmap, munmap},
        socket::{ControlMessage, MsgFlags, sendmsg},
    },
    unistd::ftruncate,
};

/// Anonymous memory that another process can map too. Its size is sealed: a process that maps the memory would be
/// killed if the file became shorter.
pub struct SharedMemory {
    file: OwnedFd,
    start: NonNull<libc::c_void>,
    bytes: NonZeroUsize,
}

// SAFETY: the mapping is an address range. Its bytes are only copied in and out, through raw pointers, and never
// borrowed. The other process may change the bytes concurrently; that is intended.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Makes and maps `bytes` bytes of zeros.
    ///
    /// # Errors
    /// `bytes` is 0, or a system call fails.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let bytes = NonZeroUsize::new(bytes).ok_or_else(invalid)?;
        let length = libc::off_t::try_from(bytes.get())
            .ok()
            .ok_or_else(invalid)?;
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"fabricbios-session", flags)?;
        ftruncate(&file, length)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let start = unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, &file, 0)? };
        Ok(Self { file, start, bytes })
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// `InvalidInput`: the range is not inside the memory.
    pub fn write(&self, at: usize, from: &[u8]) -> io::Result<()> {
        let to = self.range(at, from.len())?;
        // SAFETY: the range is inside the mapping, checked above, and no reference to its bytes exists.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// `InvalidInput`: the range is not inside the memory.
    pub fn read(&self, at: usize, into: &mut [u8]) -> io::Result<()> {
        let from = self.range(at, into.len())?;
        // SAFETY: the range is inside the mapping, checked above, and `into` is borrowed by this call alone.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Sends a message over a stream socket, with this memory beside it.
    ///
    /// # Errors
    /// The other end is closed, or a non-blocking socket has no room (`WouldBlock`).
    pub fn send(&self, socket: impl AsFd, message: &[u8]) -> io::Result<()> {
        let files = [self.file.as_raw_fd()];
        let beside = [ControlMessage::ScmRights(&files)];
        let sent = loop {
            let parts = [IoSlice::new(message)];
            let end = socket.as_fd().as_raw_fd();
            match sendmsg::<()>(end, &parts, &beside, MsgFlags::MSG_NOSIGNAL, None) {
                Err(Errno::EINTR) => {}
                outcome => break outcome?,
            }
        };
        if sent < message.len() {
            let why = format!("{sent} of {} bytes were sent", message.len());
            return Err(io::Error::new(io::ErrorKind::WriteZero, why));
        }
        Ok(())
    }

    fn range(&self, at: usize, length: usize) -> io::Result<*mut u8> {
        let all = self.bytes.get();
        match at.checked_add(length) {
            Some(end) if end <= all => Ok(self.start.as_ptr().wrapping_byte_add(at).cast()),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{length} bytes at {at} are not within the {all} bytes of the shared memory"
                ),
            )),
        }
    }
}

/// The file, for the caller's own reads, writes and mappings.
impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({} bytes)", self.bytes)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and nothing borrows from it.
        if let Err(errno) = unsafe { munmap(self.start, self.bytes.get()) } {
            tracing::warn!(%errno, "munmap of shared memory failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::FileExt};

    use super::*;

    #[test]
    fn bytes_are_shared_with_whoever_has_the_file() {
        let memory = SharedMemory::new(10_000).unwrap();
        memory.write(9_000, b"from here").unwrap();
        let file = File::from(memory.as_fd().try_clone_to_owned().unwrap());
        let mut bytes = [0; 9];
        file.read_exact_at(&mut bytes, 9_000).unwrap();
        assert_eq!(&bytes, b"from here");
        file.write_all_at(b"from there", 0).unwrap();
        let mut bytes = [0; 10];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"from there");
        for length in [0, 9_999, 10_001] {
            file.set_len(length).unwrap_err();
        }
    }

    #[test]
    fn nothing_outside_is_reached() {
        let memory = SharedMemory::new(100).unwrap();
        memory.write(100, &[]).unwrap();
        for (at, length) in [(0, 101), (100, 1), (usize::MAX, 1), (1, usize::MAX)] {
            assert!(memory.range(at, length).is_err(), "{length} at {at}");
        }
        assert!(SharedMemory::new(0).is_err());
        assert!(SharedMemory::new(usize::MAX).is_err());
    }
}
