//! Messages between processes of one machine.
//!
//! The processes of a node talk over a [`Channel`]: a stream of frames, each a length of four bytes (little-endian) and
//! that many bytes of postcard. Both ends run the same program (`fabricbios_helper::Program`), so the messages need no
//! version. A frame has a maximum, which each [`ChannelKind`] sets; a length makes no room for bytes that have not
//! arrived. The end of the stream between two frames is told apart from an end within a frame, as a process that was
//! killed leaves it. A [`Line`] carries messages of anybody's, with the boundaries of `SOCK_SEQPACKET`: the local socket.
//!
//! Never here: what a message means.
//!
//! Read first: `frames.rs`, from a message to bytes and back.

mod channel;
mod error;
mod frames;
mod line;
mod receive;

pub use channel::Channel;
pub use error::{BadDescriptors, ChannelError, Problem};
pub use frames::{ChannelKind, Incoming, Outgoing};
pub use line::{Line, MESSAGE_BYTES_MAX, Message};
pub use receive::{Received, is_readable_within, receive};

#[cfg(test)]
mod tests;
