//! I/O of one thread, by io_uring. The thread begins I/O without waiting, and waits with one system call for finished
//! I/O and for datagrams (io_uring(7), io_uring_enter(2)).
#![allow(unsafe_code, reason = "entries of the ring have pointers")]

use std::{
    fs::File,
    io, mem,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
    ptr::NonNull,
    sync::Arc,
    time::{Duration, Instant},
};

use io_uring::{
    IoUring, opcode,
    squeue::{Entry, Flags},
    types::{Fd, FsyncFlags, SubmitArgs, Timespec},
};
use nix::errno::Errno;
use slab::Slab;

use super::buffer::Buffer;
use crate::Io;

/// Size of the submission queue: more entries than a batch of datagrams can make.
const ENTRIES: u32 = 256;
/// Size of the completion queue; the kernel keeps further completions itself.
const COMPLETIONS: u32 = 4096;
/// Most kernel threads for I/O that blocks: enough that storage that hangs leaves some for other leases.
const KERNEL_THREADS: u32 = 512;
/// `user_data` of entries that are no I/O: the two inputs, and entries whose completion is ignored.
const INPUTS: [u64; 2] = [u64::MAX, u64::MAX - 1];
const IGNORED: u64 = u64::MAX - 2;
/// How long a thread that ends waits for its I/O in flight.
const CLOSING: Duration = Duration::from_secs(2);

/// The io_uring of one thread. Each I/O carries a `T`, which comes back with its result.
pub(super) struct Ring<T> {
    ring: IoUring,
    flights: Slab<Flight<T>>,
    /// Which of the inputs the kernel is polling.
    armed: [bool; 2],
    hold: Option<Arc<OwnedFd>>,
}

struct Flight<T> {
    user_data: T,
    /// The kernel owns the buffer until the I/O has finished.
    buffer: NonNull<Buffer>,
    file: Arc<File>,
}

/// A finished I/O.
pub(super) struct Finished<T> {
    pub(super) user_data: T,
    pub(super) buffer: Box<Buffer>,
    /// Number of bytes, or a negative errno.
    pub(super) result: i32,
}

// SAFETY: the ring owns the buffers that the pointers of `flights` point to.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    /// With `hold`, no I/O begins before this descriptor is readable.
    pub(super) fn new(hold: Option<Arc<OwnedFd>>) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_cqsize(COMPLETIONS)
            .build(ENTRIES)
            .map_err(explain)?;
        let mut threads = [KERNEL_THREADS, 0];
        if let Err(error) = ring.submitter().register_iowq_max_workers(&mut threads) {
            tracing::debug!(%error, "io_uring keeps its usual number of threads");
        }
        Ok(Self {
            ring,
            flights: Slab::new(),
            armed: [false; 2],
            hold,
        })
    }

    /// Queues an I/O with the payload of the buffer. The I/O begins at the next [`Self::submit`] or [`Self::wait`]. `Err`:
    /// the ring is full.
    pub(super) fn begin(
        &mut self,
        (io, unit_bytes): (&Io, u32),
        file: Arc<File>,
        buffer: Box<Buffer>,
        user_data: T,
    ) -> Result<(), Finished<T>> {
        let flight = Flight {
            user_data,
            buffer: NonNull::from(Box::leak(buffer)),
            file,
        };
        let (fd, buffer) = (Fd(flight.file.as_raw_fd()), flight.buffer);
        let key = self.flights.insert(flight);
        // SAFETY: `buffer` is a whole one, just leaked.
        let payload = unsafe { (*buffer.as_ptr()).payload().as_mut_ptr() };
        let entry = entry_of(io, unit_bytes, fd, payload).user_data(key as u64);
        // SAFETY: the payload has room for every transfer of a datagram. It stays in place and belongs to nobody else
        // until the completion of this entry has been seen: only then does `finished` take the flight out, and dropping
        // the ring leaks the remaining flights. The same holds for the file.
        let pushed = unsafe { self.push_held(entry) };
        pushed.map_err(|_full| self.flights.remove(key).over(-libc::EAGAIN))
    }

    /// Submits the queued I/O.
    pub(super) fn submit(&mut self) -> Result<(), Errno> {
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        self.ring.submit().map(drop).map_err(errno_of)
    }

    /// Submits the queued I/O and sleeps until an I/O has finished or one of `inputs` is readable. `false`: neither
    /// happened within the limit.
    pub(super) fn wait(
        &mut self,
        inputs: [BorrowedFd<'_>; 2],
        limit: Duration,
    ) -> Result<bool, Errno> {
        for (at, input) in inputs.iter().enumerate() {
            if !self.armed[at] {
                let entry = readable(input.as_raw_fd()).user_data(INPUTS[at]);
                // SAFETY: the entry has no pointers.
                unsafe { self.push(&[entry]) }?;
                self.armed[at] = true;
            }
        }
        self.sleep(limit)
    }

    /// The next finished I/O, if there is one.
    pub(super) fn finished(&mut self) -> Option<Finished<T>> {
        loop {
            let completion = self.ring.completion().next()?;
            let (data, result) = (completion.user_data(), completion.result());
            if let Some(at) = INPUTS.iter().position(|input| *input == data) {
                self.armed[at] = false;
            } else if data != IGNORED {
                let key = usize::try_from(data).ok()?;
                return self.flights.try_remove(key).map(|it| it.over(result));
            }
        }
    }

    /// Stops polling the inputs, and waits up to [`CLOSING`] for the I/O in flight.
    pub(super) fn close(&mut self) {
        for input in INPUTS {
            let entry = opcode::PollRemove::new(input).build().user_data(IGNORED);
            // SAFETY: the entry has no pointers.
            let _full = unsafe { self.push(&[entry]) };
        }
        let until = Instant::now() + CLOSING;
        while self.armed != [false; 2] || !self.flights.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.sleep(left).is_err() {
                return;
            }
            while self.finished().is_some() {}
        }
    }

    fn sleep(&mut self, limit: Duration) -> Result<bool, Errno> {
        let limit = Timespec::from(limit);
        let args = SubmitArgs::new().timespec(&limit);
        match self.ring.submitter().submit_with_args(1, &args) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => Ok(false),
            Err(error) => Err(errno_of(error)),
        }
    }

    /// # Safety
    /// The memory that the entry points to must stay until its completion.
    unsafe fn push_held(&mut self, entry: Entry) -> Result<(), Errno> {
        let Some(hold) = &self.hold else {
            // SAFETY: the caller keeps the memory of the entry until its completion.
            return unsafe { self.push(&[entry]) };
        };
        let first = readable(hold.as_raw_fd()).user_data(IGNORED);
        // SAFETY: the caller keeps the memory of `entry` until its completion; `first` has no pointers.
        unsafe { self.push(&[first.flags(Flags::IO_LINK), entry]) }
    }

    /// # Safety
    /// The memory that the entries point to must stay until their completion.
    unsafe fn push(&mut self, entries: &[Entry]) -> Result<(), Errno> {
        // SAFETY: the caller keeps the memory of the entries until their completion.
        let mut push = || unsafe { self.ring.submission().push_multiple(entries) };
        if push().is_ok() {
            return Ok(());
        }
        self.ring.submit().map_err(errno_of)?;
        // SAFETY: the caller keeps the memory of the entries until their completion.
        let pushed = unsafe { self.ring.submission().push_multiple(entries) };
        pushed.map_err(|_full| Errno::EAGAIN)
    }
}

impl<T> Drop for Ring<T> {
    /// Leaks the buffers of I/O in flight: the kernel may still write to them.
    fn drop(&mut self) {
        mem::forget(mem::take(&mut self.flights));
    }
}

impl<T> Flight<T> {
    fn over(self, result: i32) -> Finished<T> {
        let Self {
            user_data,
            buffer,
            file,
        } = self;
        drop(file);
        // SAFETY: `begin` leaked the buffer once, and the kernel does not use it any more.
        let buffer = unsafe { Box::from_raw(buffer.as_ptr()) };
        Finished {
            user_data,
            buffer,
            result,
        }
    }
}

/// The entry of an I/O; FLUSH is fdatasync(2).
fn entry_of(io: &Io, unit_bytes: u32, fd: Fd, payload: *mut u8) -> Entry {
    #[allow(clippy::cast_possible_truncation, reason = "it fits a datagram")]
    let (at, length) = (|unit| unit * u64::from(unit_bytes), |bytes| bytes as u32);
    match *io {
        Io::Read { offset, bytes } => opcode::Read::new(fd, payload, length(bytes))
            .offset(at(offset))
            .build(),
        Io::Write { offset, bytes } => opcode::Write::new(fd, payload, length(bytes))
            .offset(at(offset))
            .build(),
        Io::Flush => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
    }
}

fn readable(fd: RawFd) -> Entry {
    #[allow(clippy::cast_sign_loss, reason = "a bit")]
    let events = libc::POLLIN as u32;
    opcode::PollAdd::new(Fd(fd), events).build()
}

fn errno_of(error: io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

fn explain(error: io::Error) -> io::Error {
    let hint = match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel is without it",
        Some(libc::EPERM) => {
            "it is not permitted: see sysctl kernel.io_uring_disabled, and the seccomp filter of a container"
        }
        Some(libc::ENOMEM) => "raise the limit of locked memory (RLIMIT_MEMLOCK)",
        _ => return error,
    };
    io::Error::new(error.kind(), format!("io_uring: {error}: {hint}"))
}
