//! A copy of the running program in memory.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Name of the copy. `ps` shows it, and `/proc/PID/exe` shows `/memfd:fabricbiosd`.
const NAME: &str = "fabricbiosd";

/// Number of further tries to seal the copy.
const SEAL_AGAIN: u32 = 60;

/// A sealed copy of an executable file. A process started from the copy runs this version, even if the file was
/// replaced or its disk no longer answers.
#[derive(Clone, Debug)]
pub struct Program(Arc<File>);

impl Program {
    /// Copies the program of this process. If the system forbids executing memory (`vm.memfd_noexec`), the file itself
    /// is kept open, with a warning in the log: the version stays the same, but each start may wait for the disk.
    ///
    /// # Errors
    /// `/proc/self/exe` cannot be read (is /proc mounted?), or there is no memory for the copy.
    pub fn of_this_process() -> io::Result<Self> {
        let own = Path::new("/proc/self/exe");
        match Self::copy_of(own) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                tracing::warn!(
                    %error,
                    "the program cannot be run from memory (is sysctl vm.memfd_noexec 2?): processes that this daemon starts \
                     later run its file, and wait for the disk that it is on"
                );
                Ok(Self(Arc::new(File::open(own)?)))
            }
            copied => copied,
        }
    }

    /// The program of this process itself, without another copy. For a process that already runs a copy in memory.
    ///
    /// # Errors
    /// `/proc/self/exe` cannot be opened.
    pub fn running() -> io::Result<Self> {
        Ok(Self(Arc::new(File::open("/proc/self/exe")?)))
    }

    /// Copies the program at `path`.
    ///
    /// # Errors
    /// The file cannot be read, or the system forbids this process to have executable memory.
    pub fn copy_of(path: &Path) -> io::Result<Self> {
        let mut original = File::open(path)?;
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let executable = MFdFlags::from_bits_retain(libc::MFD_EXEC);
        // Kernels before 6.3 do not know the flag.
        let memory = match memfd_create(NAME, flags | executable) {
            Err(Errno::EINVAL) => memfd_create(NAME, flags),
            made => made,
        };
        let mut copy = File::from(memory?);
        io::copy(&mut original, &mut copy)?;
        let seals = SealFlag::F_SEAL_SHRINK
            | SealFlag::F_SEAL_GROW
            | SealFlag::F_SEAL_WRITE
            | SealFlag::F_SEAL_SEAL;
        // F_ADD_SEALS fails after 150 ms if the kernel itself still uses a page of the file, which can happen under
        // load.
        let mut sealed = fcntl(&copy, FcntlArg::F_ADD_SEALS(seals));
        for _ in 0..SEAL_AGAIN {
            if sealed != Err(Errno::EBUSY) {
                break;
            }
            sealed = fcntl(&copy, FcntlArg::F_ADD_SEALS(seals));
        }
        sealed?;
        Ok(Self(Arc::new(copy)))
    }

    /// A command that runs the program, without arguments. Start it before the last clone of this is dropped.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.0.as_raw_fd()));
        command.arg0(NAME);
        command
    }
}
