//! The caller, as the kernel identifies it.

use std::{
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    time::Duration,
};

use fabricbios_helper::Pidfd;
use nix::{
    errno::Errno,
    sys::socket::{
        getsockopt,
        sockopt::{PeerCredentials, PeerPidfd},
    },
    unistd::{Pid, geteuid},
};

/// The process that has connected.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    /// Its number in this PID namespace; 0: the process is in another namespace.
    pub(crate) pid: i32,
    /// Whether the caller is root of this node: uid 0, and in the namespaces of this process.
    pub(crate) is_root: bool,
    /// Whether the caller is root of this node or the user of this process, in the namespaces of this process.
    pub(crate) runs_the_node: bool,
    /// `None`: the process has ended.
    process: Option<Pidfd>,
}

impl Peer {
    pub(crate) fn of(socket: impl AsFd) -> io::Result<Self> {
        let credentials = getsockopt(&socket, PeerCredentials)?;
        let (uid, pid) = (credentials.uid(), credentials.pid());
        let process = process(socket, pid)?;
        let runs_the_node = (uid == 0 || uid == geteuid().as_raw())
            && process
                .as_ref()
                .is_some_and(|it| is_in_own_namespaces(it, pid));
        Ok(Self {
            uid,
            pid,
            is_root: uid == 0 && runs_the_node,
            runs_the_node,
            process,
        })
    }

    /// Checks that a descriptor is a pidfd of the caller, so that no caller moves another process. Returns another
    /// pidfd of the caller, on an open file that only this process has.
    ///
    /// # Errors
    /// The text says what the descriptor is instead. An error number is of a call of this process.
    ///
    /// This also checks the user of the process, for two reasons. Without `SO_PEERPIDFD` the process that connected may
    /// have ended, and another process may have its number now. And the caller may run a set-user-ID program meanwhile.
    pub(crate) fn check_itself(&self, given: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let Self { uid, pid, .. } = self;
        let has_ended = || io::Error::other("the caller has ended");
        let process = self.process.as_ref().ok_or_else(has_ended)?;
        if !process.is_same(given)? {
            return Err(io::Error::other(format!(
                "the descriptor is no pidfd of the caller, process {pid}: a process is moved into a lease at its own request \
                 only"
            )));
        }
        let path = format!("/proc/{pid}");
        let owner = fs::metadata(&path);
        let owner = owner.map_err(|error| io::Error::other(format!("{path}: {error}")))?;
        if owner.uid() != *uid {
            return Err(io::Error::other(format!(
                "{path} is of uid {}, and the caller connected as uid {uid}",
                owner.uid()
            )));
        }
        if !lives(process) {
            return Err(has_ended());
        }
        process.as_fd().try_clone_to_owned()
    }
}

/// The process that has connected, if it still lives. The kernel keeps it (`SO_PEERPIDFD`, Linux 6.5); on older kernels
/// this is the process that has its number now.
fn process(socket: impl AsFd, pid: i32) -> io::Result<Option<Pidfd>> {
    if pid <= 0 {
        return Ok(None);
    }
    let found = match getsockopt(&socket, PeerPidfd) {
        Err(Errno::ENOPROTOOPT) => Pidfd::open(Pid::from_raw(pid)),
        kept => kept.map(Pidfd::from),
    };
    match found {
        Ok(process) => Ok(lives(&process).then_some(process)),
        Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) => found.map(Some).map_err(Into::into),
        Err(_) => Ok(None),
    }
}

fn lives(process: &Pidfd) -> bool {
    matches!(process.ends_within(Duration::ZERO), Ok(false))
}

/// Whether the process has the user, PID and mount namespaces of this process. Root of a container has others. A
/// namespace that cannot be read counts as another one.
fn is_in_own_namespaces(process: &Pidfd, pid: i32) -> bool {
    let is_same = |name| {
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/{name}")).ok();
        let own = of("self");
        own.is_some() && own == of(&pid.to_string())
    };
    // While the process lives, no other process has its number.
    ["user", "pid", "mnt"].into_iter().all(is_same) && lives(process)
}
