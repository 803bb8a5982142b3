//! Record locks of fcntl(2). The kernel reports the holder of a lock. A holder loses its locks on a file when it closes
//! any descriptor of that file.

use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::unistd::Pid;

/// A range of bytes to lock. The file need not be that long. A length of 0 reaches to the end.
#[derive(Clone, Copy, Debug)]
pub struct FileBytes {
    /// Offset of the first byte; not negative.
    pub start: i64,
    /// Number of bytes; 0: all bytes from `start` on.
    pub length: i64,
}

impl FileBytes {
    /// The whole file.
    pub const ALL: Self = Self {
        start: 0,
        length: 0,
    };

    /// Locks the bytes exclusively for this process. `Some`: that process has locked them; its number is 0 if it is in
    /// another PID namespace.
    ///
    /// # Errors
    /// fcntl(2) fails.
    pub fn try_lock(self, file: impl AsFd) -> io::Result<Option<Pid>> {
        loop {
            let mut lock = self.exclusive()?;
            match fcntl(&file, FcntlArg::F_SETLK(&lock)) {
                Ok(_) => return Ok(None),
                Err(Errno::EACCES | Errno::EAGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
            fcntl(&file, FcntlArg::F_GETLK(&mut lock))?;
            // The lock may have been released between the two calls.
            if i32::from(lock.l_type) != libc::F_UNLCK {
                return Ok(Some(Pid::from_raw(lock.l_pid.max(0))));
            }
        }
    }

    /// Waits until no other process has locked the bytes, then locks them.
    ///
    /// # Errors
    /// fcntl(2) fails.
    pub fn lock(self, file: impl AsFd) -> io::Result<()> {
        fcntl(file, FcntlArg::F_SETLKW(&self.exclusive()?))?;
        Ok(())
    }

    fn exclusive(self) -> io::Result<libc::flock> {
        let short = |value: i32| i16::try_from(value).map_err(io::Error::other);
        Ok(libc::flock {
            l_type: short(libc::F_WRLCK)?,
            l_whence: short(libc::SEEK_SET)?,
            l_start: self.start,
            l_len: self.length,
            l_pid: 0,
        })
    }
}
