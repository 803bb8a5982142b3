//! The caller's end of the socket.

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use fabricbios_channel::Line;
use fabricbios_helper::Pidfd;
use fabricbios_wire::{LeaseId, Refusal};
use nix::{
    errno::Errno,
    sys::{
        socket::{
            MsgFlags, UnixAddr, connect, setsockopt,
            sockopt::{SendTimeout, SndBuf},
        },
        time::{TimeVal, TimeValLike},
    },
    unistd::Pid,
};

use crate::{Reply, Request, seqpacket};

/// Environment variable with the path of another socket.
pub const ENV_SOCKET: &str = "FABRICBIOS_LOCAL_SOCKET";

/// Seconds that the node may take to accept a caller, and again to answer. The node may wait for a call into the
/// kernel.
const PATIENCE_SECS: u32 = 10;

/// Like [`PATIENCE_SECS`], for a session: its worker may have to be started first.
const SESSION_PATIENCE_SECS: u32 = 60;

/// Bytes that the socket of a session can hold until its worker reads them.
const SESSION_SOCKET_BYTES: usize = 512 << 10;

/// Why a lease was not entered, or its session not reached. Entering moves the process or namespace that the caller
/// gave.
#[derive(Debug)]
pub enum AskError {
    /// No node serves this socket. Nothing was moved.
    Unreachable {
        /// The path of the socket.
        socket: PathBuf,
        /// The error of connecting.
        error: io::Error,
    },
    /// The node refused. Nothing was moved.
    Refused(Refusal),
    /// The node accepted the connection and gave no answer. It may have moved the caller's process or namespace.
    Unanswered {
        /// The path of the socket.
        socket: PathBuf,
        /// What the node did instead.
        why: String,
    },
    /// The node's answer does not belong to this request. It may have moved the caller's process or namespace.
    Unexpected(String),
    /// A call on this machine failed: which call, and its error.
    Local(&'static str, io::Error),
}

/// The process or namespace is in the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The place, for people.
    pub place: String,
    /// Environment variables for programs in the lease.
    pub environment: Vec<(String, String)>,
}

/// Checks that a node serves this socket.
///
/// # Errors
/// No node answers; see [`AskError`].
pub fn ping(socket: &Path) -> Result<(), AskError> {
    match ask(socket, Request::Ping {}, None, PATIENCE_SECS)? {
        (Reply::Pong {}, _) => Ok(()),
        (other, _) => Err(unexpected(&other)),
    }
}

/// The time after which access to a lease of this machine ends unless it is renewed. Only for leases that take
/// processes.
///
/// # Errors
/// See [`AskError`]. Refused as expired: access has ended.
pub fn remaining(socket: &Path, lease_id: LeaseId) -> Result<Duration, AskError> {
    match ask(socket, Request::Term { lease_id }, None, PATIENCE_SECS)? {
        (Reply::Term { remaining_ms }, _) => Ok(Duration::from_millis(remaining_ms)),
        (other, _) => Err(unexpected(&other)),
    }
}

/// Has the node join the fabric whose CA has signed `answer`: the node's certificate, then that of the CA, as PEM.
/// Returns what has happened, for people.
///
/// # Errors
/// See [`AskError`].
pub fn join(socket: &Path, answer: &str) -> Result<String, AskError> {
    let answer = answer.to_owned();
    match ask(socket, Request::Join { answer }, None, PATIENCE_SECS)? {
        (Reply::Joined { told }, _) => Ok(told),
        (other, _) => Err(unexpected(&other)),
    }
}

/// Moves this process into the lease. Processes that it starts are in the lease too.
///
/// # Errors
/// See [`AskError`].
pub fn run(socket: &Path, lease_id: LeaseId) -> Result<Moved, AskError> {
    let itself = Pidfd::open(Pid::this());
    let itself = itself.map_err(|errno| AskError::Local("pidfd_open", errno.into()))?;
    move_into(socket, Request::Run { lease_id }, itself.as_fd())
}

/// Hands the lease over to a network namespace.
///
/// # Errors
/// See [`AskError`].
pub fn enter(
    socket: &Path,
    lease_id: LeaseId,
    namespace: BorrowedFd<'_>,
) -> Result<Moved, AskError> {
    move_into(socket, Request::Enter { lease_id }, namespace)
}

/// Connects to the worker of a lease's session; 0 is the lease's own session, which is started if it does not exist.
/// The caller then opens the session with its first frame.
///
/// # Errors
/// See [`AskError`].
pub fn gpu_session(socket: &Path, lease_id: LeaseId, session: u64) -> Result<UnixStream, AskError> {
    let request = Request::GpuSession { lease_id, session };
    match ask(socket, request, None, SESSION_PATIENCE_SECS)? {
        (Reply::Session {}, Some(worker)) => {
            // A smaller buffer only makes the session slower.
            setsockopt(&worker, SndBuf, &SESSION_SOCKET_BYTES).ok();
            Ok(worker.into())
        }
        (Reply::Session {}, None) => Err(AskError::Unexpected(
            "no descriptor came with the answer".into(),
        )),
        (other, _) => Err(unexpected(&other)),
    }
}

fn move_into(socket: &Path, request: Request, given: BorrowedFd<'_>) -> Result<Moved, AskError> {
    match ask(socket, request, Some(given), PATIENCE_SECS)? {
        (Reply::Entered { place, environment }, _) => Ok(Moved { place, environment }),
        (other, _) => Err(unexpected(&other)),
    }
}

/// Sends a request. Returns the answer and the descriptor beside it.
fn ask(
    path: &Path,
    request: Request,
    given: Option<BorrowedFd<'_>>,
    patience_secs: u32,
) -> Result<(Reply, Option<OwnedFd>), AskError> {
    let unreachable = |errno: Errno| AskError::Unreachable {
        socket: path.to_owned(),
        error: errno.into(),
    };
    let unanswered = |why: String| AskError::Unanswered {
        socket: path.to_owned(),
        why,
    };
    let socket = seqpacket().map_err(|errno| AskError::Local("socket", errno.into()))?;
    // connect(2) waits while the node's queue of callers is full.
    setsockopt(
        &socket,
        SendTimeout,
        &TimeVal::seconds(patience_secs.into()),
    )
    .map_err(|errno| AskError::Local("setsockopt(SO_SNDTIMEO)", errno.into()))?;
    let address = UnixAddr::new(path).map_err(unreachable)?;
    match connect(socket.as_raw_fd(), &address) {
        Err(Errno::EAGAIN) => {
            return Err(unanswered(format!(
                "accepted no caller for {patience_secs} s"
            )));
        }
        connected => connected.map_err(unreachable)?,
    }
    let line = Line::from(socket);
    // A node that refuses this caller may answer and close its end before it has read the request.
    let sent = line.send(&request.encode(), given, MsgFlags::empty());
    match line.is_ready_within(Duration::from_secs(patience_secs.into())) {
        Ok(true) => {}
        Ok(false) => {
            return Err(unanswered(format!(
                "has not answered for {patience_secs} s"
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
        // The unread request resets the connection. The answer comes after that error.
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
        None => Ok((reply, message.descriptor)),
    }
}

fn unexpected(reply: &Reply) -> AskError {
    AskError::Unexpected(format!("the answer is to another request: {reply:?}"))
}
