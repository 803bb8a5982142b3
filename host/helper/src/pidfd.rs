//! Descriptors of processes: pidfd_open(2) and related calls, and setpriority(2). nix has neither.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use fabricbios_channel::is_readable_within;
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;
use nix::sys::stat::fstat;
use nix::sys::statfs::{FsType, fstatfs};
use nix::unistd::Pid;

/// `PID_FS_MAGIC` of include/uapi/linux/magic.h. Since Linux 6.9 each process has its own inode in this file system.
const PIDFS: FsType = FsType(0x5049_4446);

/// Longest part of a pidfd's fdinfo that is read. Without locks the file has some 200 bytes.
const FDINFO_BYTES_MAX: u64 = 4096;

/// Refers to one process, even if another process gets the same number later.
#[derive(Debug)]
pub struct Pidfd(OwnedFd);

impl From<OwnedFd> for Pidfd {
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Pidfd {
    /// Opens the process with this number.
    ///
    /// # Errors
    /// `ESRCH`: there is no such process.
    pub fn open(pid: Pid) -> nix::Result<Self> {
        Self::open_with(pid, 0)
    }

    /// Opens the thread with this number (`PIDFD_THREAD`, since Linux 6.9).
    ///
    /// # Errors
    /// `ESRCH`: there is no such thread. `EINVAL`: the kernel is older.
    pub fn open_thread(thread: Pid) -> nix::Result<Self> {
        Self::open_with(thread, libc::O_EXCL)
    }

    fn open_with(pid: Pid, flags: i32) -> nix::Result<Self> {
        // SAFETY: pidfd_open(2) takes two integers.
        let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), flags) };
        owned(opened).map(Self)
    }

    /// Sends the process a signal.
    ///
    /// # Errors
    /// `ESRCH`: the process has ended. `EPERM`: the process has another user.
    pub fn signal(&self, signal: Signal) -> nix::Result<()> {
        let (number, info) = (self.0.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
        // SAFETY: pidfd_send_signal(2) accepts null for the information about the signal.
        let sent =
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, number, signal as i32, info, 0) };
        Errno::result(sent).map(drop)
    }

    /// Duplicates the process's descriptor with this number.
    ///
    /// # Errors
    /// `ESRCH`, `EBADF`: the process or its descriptor no longer exists. `EPERM`: this process may not trace that
    /// process.
    pub fn descriptor(&self, number: RawFd) -> nix::Result<OwnedFd> {
        let process = self.0.as_raw_fd();
        // SAFETY: pidfd_getfd(2) takes three integers.
        owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, number, 0) })
    }

    /// The number of the process in this PID namespace: -1 if the process has ended, 0 if it is in another namespace.
    /// `None`: the descriptor is no pidfd. A peer may have sent the descriptor.
    ///
    /// The number is in proc_pid_fdinfo(5), which lists the locks of the file first, and a peer may have made millions
    /// of locks. So only the fdinfo of a pidfd is read, and only its beginning.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn number_of(descriptor: BorrowedFd<'_>) -> io::Result<Option<i32>> {
        let number = descriptor.as_raw_fd();
        let named =
            |path: &str, error: io::Error| io::Error::new(error.kind(), format!("{path}: {error}"));
        let path = format!("/proc/self/fd/{number}");
        let target = fs::read_link(&path).map_err(|error| named(&path, error))?;
        if target.as_os_str() != "anon_inode:[pidfd]" {
            return Ok(None);
        }
        let (path, mut text) = (format!("/proc/self/fdinfo/{number}"), String::new());
        File::open(&path)
            .and_then(|file| file.take(FDINFO_BYTES_MAX).read_to_string(&mut text))
            .map_err(|error| named(&path, error))?;
        // A line that is cut off may lack digits.
        let whole = |line: &'_ str| {
            line.strip_prefix("Pid:")?
                .strip_suffix('\n')?
                .trim()
                .parse()
                .ok()
        };
        Ok(text.split_inclusive('\n').find_map(whole))
    }

    /// Whether the other descriptor, which a peer may have sent, is a pidfd of the same process.
    ///
    /// # Errors
    /// See [`Pidfd::number_of`].
    pub fn is_same(&self, other: BorrowedFd<'_>) -> io::Result<bool> {
        if fstatfs(&self.0)?.filesystem_type() != PIDFS {
            let number = Self::number_of(self.as_fd())?;
            return Ok(number.is_some_and(|it| it > 0) && number == Self::number_of(other)?);
        }
        if fstatfs(other)?.filesystem_type() != PIDFS {
            return Ok(false);
        }
        let (own, its) = (fstat(&self.0)?, fstat(other)?);
        Ok((own.st_dev, own.st_ino) == (its.st_dev, its.st_ino))
    }

    /// Waits until the process and all of its threads have ended. `false`: they have not ended within `patience`.
    ///
    /// # Errors
    /// poll(2) fails.
    pub fn ends_within(&self, patience: Duration) -> io::Result<bool> {
        is_readable_within(self.as_fd(), patience)
    }
}

fn owned(made: libc::c_long) -> nix::Result<OwnedFd> {
    let number = RawFd::try_from(Errno::result(made)?).map_err(|_overflow| Errno::EBADF)?;
    // SAFETY: the kernel has just made the descriptor for this process; no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Sets the niceness of the calling thread, from -20 (highest priority) to 19.
///
/// # Errors
/// `EACCES`: a lower niceness needs `CAP_SYS_NICE`.
pub fn set_niceness(niceness: i32) -> nix::Result<()> {
    // SAFETY: setpriority(2) takes three integers; 0 is the calling thread.
    let set = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness) };
    Errno::result(set).map(drop)
}
