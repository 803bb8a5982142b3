//! The caller's end of the socket.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use fabricbios_helper::{Line, Pidfd};
use fabricbios_wire::{LeaseId, Refusal};
use nix::{
    sys::socket::{MsgFlags, UnixAddr, connect},
    unistd::Pid,
};

use crate::{Reply, Request, seqpacket};

/// Where callers look for the socket, unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/fabricbios/local.sock";

/// Names another socket.
pub const ENV_SOCKET: &str = "FABRICBIOS_LOCAL_SOCKET";

/// How long the node may take to answer. It may wait for a call of the kernel.
const PATIENCE: Duration = Duration::from_secs(30);

/// Nothing was moved, as far as is known.
#[derive(Debug)]
pub enum AskError {
    /// No node serves this socket.
    Unreachable {
        /// The path of the socket.
        socket: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The node has refused.
    Refused(Refusal),
    /// The node was asked and has not answered, or not understandably.
    NoAnswer(String),
    /// A call of this machine failed: which, and why.
    Local(&'static str, io::Error),
}

/// Asks whether a node serves this socket.
///
/// # Errors
/// It does not.
pub fn ping(socket: &Path) -> Result<(), AskError> {
    match ask(socket, Request::Ping {}, None)? {
        Reply::Pong {} => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// Moves this process into the lease; returns the place. What this process starts is in the lease too.
///
/// # Errors
/// See [`AskError`].
pub fn run(socket: &Path, lease_id: LeaseId) -> Result<String, AskError> {
    let itself = Pidfd::open(Pid::this());
    let itself = itself.map_err(|errno| AskError::Local("pidfd_open", errno.into()))?;
    entered(ask(
        socket,
        Request::Run { lease_id },
        Some(itself.as_fd()),
    )?)
}

/// Hands the lease over to a network namespace; returns the place.
///
/// # Errors
/// See [`AskError`].
pub fn enter(
    socket: &Path,
    lease_id: LeaseId,
    namespace: BorrowedFd<'_>,
) -> Result<String, AskError> {
    entered(ask(socket, Request::Enter { lease_id }, Some(namespace))?)
}

fn entered(reply: Reply) -> Result<String, AskError> {
    match reply {
        Reply::Entered { place } => Ok(place),
        other => Err(unexpected(&other)),
    }
}

fn ask(path: &Path, request: Request, given: Option<BorrowedFd<'_>>) -> Result<Reply, AskError> {
    let unreachable = |error: io::Error| AskError::Unreachable {
        socket: path.to_owned(),
        error,
    };
    let socket = seqpacket().map_err(|errno| AskError::Local("socket", errno.into()))?;
    let address = UnixAddr::new(path).map_err(|errno| unreachable(errno.into()))?;
    connect(socket.as_raw_fd(), &address).map_err(|errno| unreachable(errno.into()))?;
    let line = Line::from(socket);
    // A node that refuses this caller answers and closes its end before it has read the request.
    let sent = line.send(&request.encode(), given, MsgFlags::empty());
    match line.is_ready_within(PATIENCE) {
        Ok(true) => {}
        Ok(false) => {
            let why = format!("{} has not answered for {PATIENCE:?}", path.display());
            return Err(AskError::NoAnswer(why));
        }
        Err(error) => return Err(AskError::Local("poll", error)),
    }
    let mut received = line.receive().map_err(unreachable)?;
    if received.is_none() {
        // The unread request resets the connection, and the answer is behind that.
        received = line.receive().map_err(unreachable)?;
    }
    let Some(message) = received else {
        let closed = || io::Error::from(io::ErrorKind::ConnectionReset);
        return Err(unreachable(sent.err().unwrap_or_else(closed)));
    };
    let reply = Reply::decode(&message.bytes).map_err(AskError::NoAnswer)?;
    match reply.refusal() {
        Some(refusal) => Err(AskError::Refused(refusal)),
        None => Ok(reply),
    }
}

fn unexpected(reply: &Reply) -> AskError {
    AskError::NoAnswer(format!("the answer is to another request: {reply:?}"))
}
