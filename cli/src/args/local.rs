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
    /// Which lease
    #[arg(long, value_name = "LEASE", value_parser = values::lease_id)]
    pub(crate) lease: LeaseId,
    #[command(flatten)]
    pub(crate) socket: Socket,
    /// What to run there, and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Enter {
    /// Which lease
    #[arg(value_name = "LEASE", value_parser = values::lease_id)]
    pub(crate) id: LeaseId,
    /// The network namespace, such as /run/netns/NAME or /proc/PID/ns/net; its owner and root may give it
    #[arg(long, value_name = "PATH")]
    pub(crate) netns: PathBuf,
    #[command(flatten)]
    pub(crate) socket: Socket,
}
