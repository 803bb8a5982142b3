//! What goes wrong on a channel.

use std::{io, time::Duration};

/// What went wrong, and on which channel.
#[derive(Debug, thiserror::Error)]
#[error("channel of the {channel}: {problem}")]
pub struct ChannelError {
    /// The name of the channel's kind.
    pub channel: &'static str,
    /// What went wrong.
    pub problem: Problem,
}

impl ChannelError {
    /// Nothing has come in time; the channel can still be used.
    #[must_use]
    pub fn is_silence(&self) -> bool {
        matches!(self.problem, Problem::Silent(_))
    }

    /// One frame is no message of this channel; the next frame can be received.
    #[must_use]
    pub fn is_garbled(&self) -> bool {
        matches!(self.problem, Problem::Garbled(_) | Problem::Surplus(_))
    }
}

impl From<ChannelError> for io::Error {
    fn from(error: ChannelError) -> Self {
        Self::other(error)
    }
}

/// See [`ChannelError`].
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The message is longer than the channel allows.
    #[error("a message of {length} bytes; {max} are allowed")]
    TooLong {
        /// Its length, in bytes.
        length: usize,
        /// The maximum of the channel.
        max: usize,
    },
    /// The other end has closed the socket, or was killed, within a frame of which this many bytes came.
    #[error("its other end has closed it within a frame, after {0} bytes")]
    CutOff(usize),
    /// The bytes of a frame are no message, or a message cannot be encoded.
    #[error("no message: {0}")]
    Garbled(#[from] postcard::Error),
    /// This many bytes follow the message in its frame.
    #[error("no message: {0} bytes too many in its frame")]
    Surplus(usize),
    /// Descriptors that do not belong beside a frame; they are closed.
    #[error(transparent)]
    Descriptors(#[from] BadDescriptors),
    /// The other end does not read, and the socket has no more room. A part of the message may be sent.
    #[error("its other end does not read, and it is full")]
    Full,
    /// No whole message has come in this time.
    #[error("no message within {} ms", .0.as_millis())]
    Silent(Duration),
    /// The socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Descriptors that came beside a message and are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDescriptors {
    /// This process had room for so many of them: at 0 it lacks descriptors itself, else the peer sent several.
    #[error(
        "descriptors beside a message, of which this process had room for {0}; at most one belongs there"
    )]
    NoRoom(usize),
    /// The peer sent so many.
    #[error("{0} descriptors beside a message; at most one belongs there")]
    Several(usize),
    /// The peer sent one over a channel of a kind that passes none.
    #[error("a descriptor; none belongs here")]
    Unwanted,
}
