//! From messages to the bytes of a stream and back, without a socket of its own.

use std::{
    io::{self, IoSlice},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use nix::{
    errno::Errno,
    sys::socket::{ControlMessage, MsgFlags, sendmsg},
};
use serde::{Serialize, de::DeserializeOwned};
use zeroize::{Zeroize, Zeroizing};

use crate::{ChannelError, Problem};

/// Bytes of the length before a frame.
const HEAD: usize = size_of::<u32>();

/// What the channels of one kind carry.
#[derive(Clone, Copy, Debug)]
pub struct ChannelKind {
    /// The name in errors.
    pub name: &'static str,
    /// Most bytes of a frame, less than 4 GiB.
    pub frame_bytes_max: usize,
    /// Whether a descriptor may come beside a frame.
    pub passes_descriptors: bool,
}

impl ChannelKind {
    pub(crate) fn error(&self, problem: impl Into<Problem>) -> ChannelError {
        ChannelError {
            channel: self.name,
            problem: problem.into(),
        }
    }

    fn check(&self, length: usize) -> Result<(), ChannelError> {
        let max = self.frame_bytes_max;
        match length <= max {
            true => Ok(()),
            false => Err(self.error(Problem::TooLong { length, max })),
        }
    }

    fn decode<M: DeserializeOwned>(&self, frame: &[u8]) -> Result<M, ChannelError> {
        match postcard::take_from_bytes(frame) {
            Ok((message, [])) => Ok(message),
            Ok((_, more)) => Err(self.error(Problem::Surplus(more.len()))),
            Err(error) => Err(self.error(error)),
        }
    }
}

/// Frames that are not sent yet. All of them go in one write, if the socket has the room.
#[derive(Debug)]
pub struct Outgoing {
    kind: ChannelKind,
    bytes: Zeroizing<Vec<u8>>,
}

impl Outgoing {
    /// No frames.
    #[must_use]
    pub fn new(kind: ChannelKind) -> Self {
        let bytes = Zeroizing::default();
        Self { kind, bytes }
    }

    /// Adds a message.
    ///
    /// # Errors
    /// The message is too long for the channel.
    pub fn push(&mut self, message: &impl Serialize) -> Result<(), ChannelError> {
        let frame = postcard::to_allocvec(message).map_err(|error| self.kind.error(error))?;
        let frame = Zeroizing::new(frame);
        self.kind.check(frame.len())?;
        let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(&frame);
        Ok(())
    }

    /// The bytes that are not sent yet.
    #[must_use]
    pub fn unsent(&self) -> &[u8] {
        &self.bytes
    }

    /// Sends until nothing is left: `true`. With `MSG_DONTWAIT` in `flags` it stops where the socket is full: `false`,
    /// and the rest stays. A descriptor goes beside the first byte.
    ///
    /// # Errors
    /// sendmsg(2) fails: the other end is closed.
    pub fn send_to(
        &mut self,
        socket: impl AsFd,
        descriptor: Option<BorrowedFd<'_>>,
        flags: MsgFlags,
    ) -> Result<bool, ChannelError> {
        let raw: Vec<_> = descriptor.iter().map(AsRawFd::as_raw_fd).collect();
        let (mut sent, mut beside) = (0, &raw[..]);
        let outcome = loop {
            if sent == self.bytes.len() {
                break Ok(true);
            }
            let part = [IoSlice::new(&self.bytes[sent..])];
            match send_message(socket.as_fd(), &part, beside, flags) {
                Ok(more) => (sent, beside) = (sent + more, &[]),
                Err(Errno::EAGAIN) => break Ok(false),
                Err(errno) => break Err(self.kind.error(io::Error::from(errno))),
            }
        };
        if sent == self.bytes.len() {
            self.bytes.zeroize();
        } else {
            self.bytes.drain(..sent);
        }
        outcome
    }
}

/// sendmsg(2), repeated after a signal, without SIGPIPE.
pub(crate) fn send_message(
    socket: BorrowedFd<'_>,
    bytes: &[IoSlice<'_>],
    descriptors: &[i32],
    flags: MsgFlags,
) -> Result<usize, Errno> {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control = if descriptors.is_empty() {
        &[][..]
    } else {
        &rights[..]
    };
    loop {
        let flags = flags | MsgFlags::MSG_NOSIGNAL;
        match sendmsg::<()>(socket.as_raw_fd(), bytes, control, flags, None) {
            Err(Errno::EINTR) => {}
            sent => return sent,
        }
    }
}

/// Received bytes, of which the frames are taken.
#[derive(Debug)]
pub struct Incoming {
    kind: ChannelKind,
    bytes: Zeroizing<Vec<u8>>,
    /// What is before it was taken.
    start: usize,
}

impl Incoming {
    /// Nothing received.
    #[must_use]
    pub fn new(kind: ChannelKind) -> Self {
        Self {
            kind,
            bytes: Zeroizing::default(),
            start: 0,
        }
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The message of the next frame; `None`: no frame is here whole.
    ///
    /// # Errors
    /// The frame is no message, and the next call goes on behind it. Or the frame is too long for the channel, and
    /// nothing can be received any more.
    pub fn next_message<M: DeserializeOwned>(&mut self) -> Result<Option<M>, ChannelError> {
        let Some(length) = self.length() else {
            return Ok(None);
        };
        self.kind.check(length)?;
        let start = self.start + HEAD;
        let Some(frame) = self.bytes[start..].get(..length) else {
            return Ok(None);
        };
        self.start = start + length;
        self.kind.decode(frame).map(Some)
    }

    /// The other end is closed.
    ///
    /// # Errors
    /// A part of a frame has come.
    pub fn end(&self) -> Result<(), ChannelError> {
        match self.bytes.len() - self.start {
            0 => Ok(()),
            arrived => Err(self.kind.error(Problem::CutOff(arrived))),
        }
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// How many more bytes belong to the length, or the frame, that is not here whole.
    pub(crate) fn missing(&self) -> usize {
        let arrived = self.bytes.len() - self.start;
        let whole = self.length().map_or(HEAD, |length| HEAD + length);
        whole.saturating_sub(arrived)
    }

    fn length(&self) -> Option<usize> {
        let head = self.bytes[self.start..].first_chunk::<HEAD>()?;
        Some(u32::from_le_bytes(*head) as usize)
    }
}
