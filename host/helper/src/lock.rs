//! Locks of fcntl(2). The kernel names the holder of a lock. A holder loses its locks when it closes any descriptor of the file.

use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::unistd::Pid;

/// Bytes of a file, which need not be that long. A length of 0 reaches to the end.
#[derive(Clone, Copy, Debug)]
pub struct FileBytes {
    /// The first one; not negative.
    pub start: i64,
    /// How many; 0: all that follow.
    pub length: i64,
}

impl FileBytes {
    /// The whole file.
    pub const ALL: Self = Self {
        start: 0,
        length: 0,
    };

    /// Locks them for this process, alone. `Some`: that process has locked them. Its number is 0 if it is in another PID namespace.
    ///
    /// # Errors
    /// The system refuses the lock.
    pub fn try_lock(self, file: impl AsFd) -> io::Result<Option<Pid>> {
        loop {
            let mut lock = self.exclusive()?;
            match fcntl(&file, FcntlArg::F_SETLK(&lock)) {
                Ok(_) => return Ok(None),
                Err(Errno::EACCES | Errno::EAGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
            fcntl(&file, FcntlArg::F_GETLK(&mut lock))?;
            // The lock may have been given back between the two calls.
            if i32::from(lock.l_type) != libc::F_UNLCK {
                return Ok(Some(Pid::from_raw(lock.l_pid.max(0))));
            }
        }
    }

    /// Waits until no other process has locked them, then locks them.
    ///
    /// # Errors
    /// The system refuses the lock.
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
