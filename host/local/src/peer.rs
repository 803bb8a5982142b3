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
    unistd::Pid,
};

/// The process that has connected.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    /// Its number in this PID namespace; 0: the process is in another namespace.
    pub(crate) pid: i32,
    /// Whether the caller is root of this node: uid 0, and in the namespaces of this process.
    pub(crate) is_root: bool,
    /// `None`: the process has ended.
    process: Option<Pidfd>,
}

impl Peer {
    pub(crate) fn of(socket: impl AsFd) -> io::Result<Self> {
        let credentials = getsockopt(&socket, PeerCredentials)?;
        let (uid, pid) = (credentials.uid(), credentials.pid());
        let process = process(socket, pid)?;
        let is_root = uid == 0
            && process
                .as_ref()
                .is_some_and(|it| is_in_own_namespaces(it, pid));
        Ok(Self {
            uid,
            pid,
            is_root,
            process,
        })
    }

    /// Checks that a descriptor is a pidfd of the caller, so that no caller moves another process. Returns another
    /// pidfd of the caller, on an open file that only this process has. The error says what the descriptor is instead.
    ///
    /// This also checks the user of the process, for two reasons. Without `SO_PEERPIDFD` the process that connected may
    /// have ended, and another process may have its number now. And the caller may run a set-user-ID program meanwhile.
    pub(crate) fn check_itself(&self, given: BorrowedFd<'_>) -> Result<OwnedFd, String> {
        let Self { uid, pid, .. } = self;
        let process = self.process.as_ref().ok_or("the caller has ended")?;
        if !process.is_same(given).map_err(|error| error.to_string())? {
            return Err(format!(
                "the descriptor is no pidfd of the caller, process {pid}: a process is moved into a lease at its own request \
                 only"
            ));
        }
        let path = format!("/proc/{pid}");
        let owner = fs::metadata(&path).map_err(|error| format!("{path}: {error}"))?;
        if owner.uid() != *uid {
            return Err(format!(
                "{path} is of uid {}, and the caller connected as uid {uid}",
                owner.uid()
            ));
        }
        if !lives(process) {
            return Err("the caller has ended".into());
        }
        let own = process.as_fd().try_clone_to_owned();
        own.map_err(|error| format!("duplicate a pidfd: {error}"))
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
