//! Messages between a caller and the process that makes its calls.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
    sendmsg, socketpair,
};

use crate::pidfd::is_readable_within;

/// Maximum length of a message.
pub const MESSAGE_BYTES_MAX: usize = 1 << 16;

/// One end of a `SOCK_SEQPACKET` socket, which carries messages and descriptors.
#[derive(Debug)]
pub struct Line(OwnedFd);

/// A message, and the descriptor that came with it.
#[derive(Debug)]
pub struct Message {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The first descriptor.
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
    /// A new line.
    ///
    /// # Errors
    /// This process has no descriptors left.
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
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &[][..] } else { &rights[..] };
        let flags = flags | MsgFlags::MSG_NOSIGNAL;
        loop {
            match sendmsg::<()>(
                self.0.as_raw_fd(),
                &[IoSlice::new(bytes)],
                control,
                flags,
                None,
            ) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The next message; `None` when the other end is closed.
    ///
    /// # Errors
    /// The message is longer than [`MESSAGE_BYTES_MAX`], or the system refuses.
    pub fn receive(&self) -> io::Result<Option<Message>> {
        // One more byte shows that a message is too long.
        let mut bytes = vec![0; MESSAGE_BYTES_MAX + 1];
        let mut space = cmsg_space!([std::os::fd::RawFd; 1]);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let end = self.0.as_raw_fd();
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let (length, descriptor) = loop {
            match recvmsg::<()>(end, &mut parts, Some(&mut space), flags) {
                Ok(message) => break (message.bytes, first_descriptor(message.cmsgs()?)),
                Err(Errno::EINTR) => {}
                // The other end was closed with unread messages.
                Err(Errno::ECONNRESET) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        };
        if length == 0 {
            return Ok(None);
        }
        if length > MESSAGE_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a message is too long",
            ));
        }
        bytes.truncate(length);
        Ok(Some(Message { bytes, descriptor }))
    }

    /// Waits until a message or the end of the line can be received. False: not within `patience` (at most some weeks).
    ///
    /// # Errors
    /// The system cannot wait.
    pub fn is_ready_within(&self, patience: Duration) -> io::Result<bool> {
        is_readable_within(self.as_fd(), patience)
    }
}

/// The first descriptor. `cmsg_space!` rounds up, so there is room for a second one, which is closed.
fn first_descriptor(messages: impl Iterator<Item = ControlMessageOwned>) -> Option<OwnedFd> {
    let all = messages.flat_map(|message| match message {
        ControlMessageOwned::ScmRights(descriptors) => descriptors,
        _ => Vec::new(),
    });
    // SAFETY: the kernel has just made these descriptors for this process, and nobody else knows them.
    let mut all = all.map(|raw| unsafe { OwnedFd::from_raw_fd(raw) });
    let first = all.next();
    all.for_each(drop);
    first
}
