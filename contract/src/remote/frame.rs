//! One message on the socket.
//!
//! ```text
//! u32 length of what follows │ u8 version │ u8 kind │ u64 call │ body        (little endian)
//! ```

use std::{
    io::{self, IoSlice, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use fabricbios_helper::{Received, receive};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use zeroize::Zeroizing;

/// The version of both ends. An end closes the socket on another version.
pub const VERSION: u8 = 2;

/// Longest frame without its length field. A list of a million leases fits.
pub const FRAME_BYTES_MAX: u32 = 32 << 20;

const LENGTH: usize = 4;
/// Version, kind, call.
const HEAD: usize = 10;
const HEAD_BYTES: u32 = 10;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A call; the body is a [`super::Call`].
    Call = 0,
    /// Progress of a call. No body.
    Progress = 1,
    /// The outcome of a call.
    Outcome = 2,
    /// A new condition of the store, after [`super::Call::TellCondition`].
    Condition = 3,
    /// There is no outcome, although the call may have been carried out. The body is the reason, as text.
    Failed = 4,
}

/// One message.
#[derive(Debug)]
pub struct Frame {
    /// The kind.
    pub kind: Kind,
    /// The number of the call.
    pub call: u64,
    /// The body; it may contain keys.
    pub body: Zeroizing<Vec<u8>>,
    /// A descriptor beside the bytes.
    pub descriptor: Option<OwnedFd>,
}

/// Sends a frame, with its descriptor beside its first bytes.
///
/// # Errors
/// The other end is gone, or the body is too long.
pub fn write_frame(mut socket: &UnixStream, frame: &Frame) -> io::Result<()> {
    let length = u32::try_from(HEAD + frame.body.len())
        .ok()
        .filter(|it| *it <= FRAME_BYTES_MAX)
        .ok_or_else(|| invalid(format!("a frame of {} bytes", frame.body.len())))?;
    let mut head = [0; LENGTH + HEAD];
    head[..LENGTH].copy_from_slice(&length.to_le_bytes());
    head[LENGTH] = VERSION;
    head[LENGTH + 1] = frame.kind as u8;
    head[LENGTH + 2..].copy_from_slice(&frame.call.to_le_bytes());
    let descriptors: Vec<i32> = { frame.descriptor.iter() }
        .map(AsRawFd::as_raw_fd)
        .collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let rights = if descriptors.is_empty() {
        &[][..]
    } else {
        &rights
    };
    let mut sent = sendmsg::<UnixAddr>(
        socket.as_raw_fd(),
        &[IoSlice::new(&head)],
        rights,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    // A stream may accept a part only. At least one byte went with the descriptor.
    while sent < head.len() {
        sent += socket.write(&head[sent..])?;
    }
    socket.write_all(&frame.body)
}

/// Receives a frame; `None` at the end of the stream.
///
/// # Errors
/// The stream ends within a frame, the bytes are no frame of this version, or several descriptors are beside them.
pub fn read_frame(socket: &UnixStream) -> io::Result<Option<Frame>> {
    let mut head = [0; LENGTH + HEAD];
    let Received { length, descriptor } = receive(socket, &mut head)?;
    if length == 0 {
        return Ok(None);
    }
    let (mut got, descriptor) = (length, descriptor.map_err(invalid)?);
    while got < head.len() {
        let more = (&mut &*socket).read(&mut head[got..])?;
        if more == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        got += more;
    }
    let [l0, l1, l2, l3, version, kind, call @ ..] = head;
    let length = u32::from_le_bytes([l0, l1, l2, l3]);
    let body = length
        .checked_sub(HEAD_BYTES)
        .filter(|_| length <= FRAME_BYTES_MAX);
    let body = body.ok_or_else(|| invalid(format!("a frame of {length} bytes")))?;
    if version != VERSION {
        return Err(invalid(format!(
            "version {version}; this end speaks {VERSION}"
        )));
    }
    Ok(Some(Frame {
        kind: kind_of(kind)?,
        call: u64::from_le_bytes(call),
        body: read_body(socket, body)?,
        descriptor,
    }))
}

fn kind_of(byte: u8) -> io::Result<Kind> {
    let all = [
        Kind::Call,
        Kind::Progress,
        Kind::Outcome,
        Kind::Condition,
        Kind::Failed,
    ];
    let kind = all.into_iter().find(|kind| *kind as u8 == byte);
    kind.ok_or_else(|| invalid(format!("a frame of kind {byte}")))
}

/// Allocates as bytes arrive, not by the length that the other end claims.
fn read_body(socket: &UnixStream, length: u32) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut body = Zeroizing::new(Vec::new());
    let mut left = length as usize;
    while left > 0 {
        let (from, some) = (body.len(), left.min(1 << 16));
        body.resize(from + some, 0);
        (&mut &*socket).read_exact(&mut body[from..])?;
        left -= some;
    }
    Ok(body)
}

pub(super) fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
