//! Why a worker does not serve: whose fault it is, and at which step of its start.

use std::{fmt, io};

use fabricbios_channel::ChannelError;
use fabricbios_helper::Failure;
use landlock::RulesetError;
use nix::errno::Errno;

use crate::driver::DriverError;

/// Why a worker does not serve.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    /// The machine: it does not allow a part of the isolation.
    #[error("{0}: {1}")]
    Isolation(&'static str, Errno),
    /// The machine: the worker cannot become its user.
    #[error("no user of its own: user and group {uid}: {errno}")]
    User { uid: u32, errno: Errno },
    /// The operator: root has not started the node.
    #[error("no user of its own: it was not started by root")]
    NotRoot,
    /// The daemon: the order names root as the user.
    #[error("no user of its own: its order says root")]
    OrderedRoot,
    /// The machine: the filter of system calls cannot be installed.
    #[error("the filter of system calls: {0}")]
    Filter(#[from] seccompiler::Error),
    /// The machine: neither Landlock nor an own root directory is possible.
    #[error(
        "nothing keeps it from the files of this machine: {landlock}; a mount namespace: {mount}"
    )]
    Files {
        landlock: NoLandlock,
        mount: io::Error,
    },
    /// The machine: standard output cannot be taken.
    #[error("standard output: {0}")]
    Output(io::Error),
    /// The daemon: its order cannot be read.
    #[error("receive the order: {0}")]
    Receive(ChannelError),
    /// The daemon: a part of the order is missing.
    #[error("no {0}")]
    Lacks(&'static str),
    /// The driver.
    #[error("device {uuid}: no context can be opened: {error}")]
    Context { uuid: String, error: DriverError },
}

/// Why Landlock is not used. `None`: the kernel has no Landlock.
#[derive(Debug)]
pub(super) struct NoLandlock(pub(super) Option<RulesetError>);

impl fmt::Display for NoLandlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(error) => write!(f, "Landlock: {error}"),
            None => f.write_str("this kernel has no Landlock, or was started without it"),
        }
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        Self::from(error.to_string())
    }
}
