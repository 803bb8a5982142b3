//! Messages of at most 64 KiB, each with at most one descriptor, over a `SOCK_SEQPACKET` socket.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::libc;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, socketpair};

use crate::BadDescriptors;
use crate::frames::send_message;
use crate::receive::{Received, is_readable_within, receive};

/// Maximum length of a message.
pub const MESSAGE_BYTES_MAX: usize = 1 << 16;

/// One end of a `SOCK_SEQPACKET` socket, which carries messages and descriptors.
#[derive(Debug)]
pub struct Line(OwnedFd);

/// A received message and the descriptor beside it.
#[derive(Debug)]
pub struct Message {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The descriptor.
    pub descriptor: Option<OwnedFd>,
}

impl From<OwnedFd> for Line {
    fn from(end: OwnedFd) -> Self {
        Self(end)
    }
}

impl From<Line> for OwnedFd {
    fn from(line: Line) -> Self {
        line.0
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Line {
    /// Makes the two ends of a new line.
    ///
    /// # Errors
    /// The process or the system has no descriptors left.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((Self(one), Self(other)))
    }

    /// Sends a message. Blocks while the other end does not read, unless `flags` have `MSG_DONTWAIT`.
    ///
    /// # Errors
    /// The message is longer than [`MESSAGE_BYTES_MAX`], or the other end is closed.
    pub fn send(
        &self,
        bytes: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
        flags: MsgFlags,
    ) -> io::Result<()> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            let why = format!(
                "a message of {} bytes; {MESSAGE_BYTES_MAX} are allowed",
                bytes.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let raw: Vec<_> = descriptor.iter().map(AsRawFd::as_raw_fd).collect();
        send_message(self.as_fd(), &[IoSlice::new(bytes)], &raw, flags)?;
        Ok(())
    }

    /// Receives the next message; `None`: the other end is closed.
    ///
    /// # Errors
    /// `InvalidData`: the message is longer than [`MESSAGE_BYTES_MAX`], or came with several descriptors. `EMFILE`: this
    /// process had no room for a descriptor. Otherwise the error of recvmsg(2).
    pub fn receive(&self) -> io::Result<Option<Message>> {
        let invalid = |why| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        // One extra byte, to recognise a message that is too long.
        let mut bytes = vec![0; MESSAGE_BYTES_MAX + 1];
        let Received { length, descriptor } = match receive(&self.0, &mut bytes) {
            // The other end was closed with unread messages.
            Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => return Ok(None),
            received => received?,
        };
        if length == 0 {
            return Ok(None);
        }
        if length > MESSAGE_BYTES_MAX {
            return invalid("a message is too long".to_owned());
        }
        bytes.truncate(length);
        match descriptor {
            Ok(descriptor) => Ok(Some(Message { bytes, descriptor })),
            Err(BadDescriptors::NoRoom(0)) => Err(io::Error::from_raw_os_error(libc::EMFILE)),
            Err(why) => invalid(why.to_string()),
        }
    }

    /// Waits until a message or the end of the line can be received. `false`: neither came within `patience` (at most
    /// some weeks).
    ///
    /// # Errors
    /// poll(2) fails.
    pub fn is_ready_within(&self, patience: Duration) -> io::Result<bool> {
        is_readable_within(self.as_fd(), patience)
    }
}
