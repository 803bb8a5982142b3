//! What is done with a lease on the node itself, over its local socket.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;
use fabricbios_local::{DEFAULT_SOCKET, ENV_SOCKET};
use fabricbios_wire::LeaseId;

use crate::values;

#[derive(Args, Debug)]
pub(crate) struct Socket {
    /// The node's --local-socket
    #[arg(long, env = ENV_SOCKET, default_value = DEFAULT_SOCKET, value_name = "PATH")]
    pub(crate) local_socket: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct Run {
    /// The lease
    #[arg(long, value_name = "LEASE", value_parser = values::lease_id)]
    pub(crate) lease: LeaseId,
    #[command(flatten)]
    pub(crate) socket: Socket,
    #[command(flatten)]
    pub(crate) end: End,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// What happens when the lease comes to its end.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct End {
    /// Send SIGTERM to the command this many seconds before the lease ends, 0: not at all; 5 if not given, but
    /// at most a twentieth of the time left: renewals come earlier. With --renew more than a twentieth
    /// counts as a twentieth, since a lease may be renewed as late as a tenth before its end
    #[arg(long, value_name = "SECS", value_parser = values::number::<0, 86_400>)]
    pub(crate) warn_secs: Option<u32>,
    /// Renew the lease while the command runs, with the identity; the lease stays until its term ends or
    /// it is given back
    #[arg(long)]
    pub(crate) renew: bool,
}

/// The process that `run` leaves outside of the lease. Its standard input is a pidfd of the command.
#[derive(Args, Debug)]
pub(crate) struct RunWatch {
    #[arg(long, value_parser = values::lease_id)]
    pub(crate) lease: LeaseId,
    #[command(flatten)]
    pub(crate) socket: Socket,
    #[command(flatten)]
    pub(crate) end: End,
    /// The process id of the command, for people
    #[arg(long)]
    pub(crate) pid: i32,
    /// Whether this process is no child of the command
    #[arg(long)]
    pub(crate) is_apart: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Enter {
    /// The lease
    #[arg(value_name = "LEASE", value_parser = values::lease_id)]
    pub(crate) id: LeaseId,
    /// The network namespace, such as /run/netns/NAME or /proc/PID/ns/net; only its owner and root may give the
    /// namespace
    #[arg(long, value_name = "PATH")]
    pub(crate) netns: PathBuf,
    #[command(flatten)]
    pub(crate) socket: Socket,
}
