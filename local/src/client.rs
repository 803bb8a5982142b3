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
    errno::Errno,
    sys::{
        socket::{MsgFlags, UnixAddr, connect, setsockopt, sockopt::SendTimeout},
        time::{TimeVal, TimeValLike},
    },
    unistd::Pid,
};

use crate::{Reply, Request, seqpacket};

/// Where callers look for the socket, unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/fabricbios/local.sock";

/// Names another socket.
pub const ENV_SOCKET: &str = "FABRICBIOS_LOCAL_SOCKET";

/// Seconds that the node may take to accept a caller, and then to answer. It may wait for a call of the kernel.
const PATIENCE_SECS: u32 = 10;

/// Why a lease was not entered.
#[derive(Debug)]
pub enum AskError {
    /// No node serves this socket. Nothing was moved.
    Unreachable {
        /// The path of the socket.
        socket: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The node has refused. Nothing was moved.
    Refused(Refusal),
    /// The node has the socket open and gave no answer. It may have moved what it was given.
    Unanswered {
        /// The path of the socket.
        socket: PathBuf,
        /// What the node did instead.
        why: String,
    },
    /// The node's answer is none to this request. It may have moved what it was given.
    Unexpected(String),
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
    let unreachable = |errno: Errno| AskError::Unreachable {
        socket: path.to_owned(),
        error: errno.into(),
    };
    let unanswered = |why: String| AskError::Unanswered {
        socket: path.to_owned(),
        why,
    };
    let socket = seqpacket().map_err(|errno| AskError::Local("socket", errno.into()))?;
    // connect(2) waits while the node accepts nobody and too many callers wait already.
    setsockopt(
        &socket,
        SendTimeout,
        &TimeVal::seconds(PATIENCE_SECS.into()),
    )
    .map_err(|errno| AskError::Local("setsockopt(SO_SNDTIMEO)", errno.into()))?;
    let address = UnixAddr::new(path).map_err(unreachable)?;
    match connect(socket.as_raw_fd(), &address) {
        Err(Errno::EAGAIN) => {
            return Err(unanswered(format!(
                "accepted no caller for {PATIENCE_SECS} s"
            )));
        }
        connected => connected.map_err(unreachable)?,
    }
    let line = Line::from(socket);
    // A node that refuses this caller answers and closes its end before it has read the request.
    let sent = line.send(&request.encode(), given, MsgFlags::empty());
    match line.is_ready_within(Duration::from_secs(PATIENCE_SECS.into())) {
        Ok(true) => {}
        Ok(false) => {
            return Err(unanswered(format!(
                "has not answered for {PATIENCE_SECS} s"
            )));
        }
        Err(error) => return Err(AskError::Local("poll", error)),
    }
    let receive = || {
        line.receive()
            .map_err(|error| AskError::Local("recvmsg", error))
    };
    let mut received = receive()?;
    if received.is_none() {
        // The unread request resets the connection, and the answer is behind that.
        received = receive()?;
    }
    let Some(message) = received else {
        let why = sent
            .err()
            .map_or_else(String::new, |error| format!(": {error}"));
        return Err(unanswered(format!(
            "closed the connection without an answer{why}"
        )));
    };
    let reply = Reply::decode(&message.bytes).map_err(AskError::Unexpected)?;
    match reply.refusal() {
        Some(refusal) => Err(AskError::Refused(refusal)),
        None => Ok(reply),
    }
}

fn unexpected(reply: &Reply) -> AskError {
    AskError::Unexpected(format!("the answer is to another request: {reply:?}"))
}
