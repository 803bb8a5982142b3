//! Who calls, as the kernel tells it.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::fs::MetadataExt,
    },
};

use nix::{
    errno::Errno,
    sys::socket::{
        getsockopt,
        sockopt::{PeerCredentials, PeerPidfd},
    },
};

/// The process that has connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    /// Its number in this PID namespace; 0: it has none.
    pub(crate) pid: i32,
}

impl Peer {
    pub(crate) fn of(socket: impl AsFd) -> io::Result<Self> {
        let credentials = getsockopt(&socket, PeerCredentials)?;
        Ok(Self {
            uid: credentials.uid(),
            pid: credentials.pid(),
        })
    }

    /// Checks that a descriptor is a pidfd of the caller, so that nobody moves the process of somebody else. The error
    /// says what it is instead.
    ///
    /// The process that connected may have ended, and another process may have its number since. The kernel tells by a
    /// pidfd of its own whether it has (`SO_PEERPIDFD`, Linux 6.5). Without that, and for a caller that runs a set-user-ID
    /// program meanwhile, the user of the process is looked at too.
    pub(crate) fn check_itself(
        self,
        socket: impl AsFd,
        given: BorrowedFd<'_>,
    ) -> Result<(), String> {
        let Self { uid, pid } = self;
        let Some(named) = pid_of(given).map_err(|error| error.to_string())? else {
            return Err("the descriptor is no pidfd".into());
        };
        if named <= 0 || named != pid {
            return Err(format!(
                "the pidfd is of process {named}, and the caller is process {pid}: a process is moved into a lease at \
                 its own request only"
            ));
        }
        let of_caller = match getsockopt(&socket, PeerPidfd) {
            Ok(kernels) => pid_of(kernels.as_fd()).map_err(|error| error.to_string())?,
            Err(Errno::ENOPROTOOPT) => Some(pid),
            Err(errno) => return Err(format!("the caller has ended (SO_PEERPIDFD: {errno})")),
        };
        if of_caller != Some(pid) {
            return Err("the caller has ended".into());
        }
        let path = format!("/proc/{pid}");
        let owner = fs::metadata(&path).map_err(|error| format!("{path}: {error}"))?;
        if owner.uid() != uid {
            return Err(format!(
                "{path} is of uid {}, and the caller connected as uid {uid}",
                owner.uid()
            ));
        }
        Ok(())
    }
}

/// The number of the process of a pidfd, from proc_pid_fdinfo(5): -1 if it has ended, 0 if it is in another PID
/// namespace. `None`: it is another descriptor.
fn pid_of(descriptor: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
    let text = fs::read_to_string(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:"));
    Ok(pid.and_then(|pid| pid.trim().parse().ok()))
}
