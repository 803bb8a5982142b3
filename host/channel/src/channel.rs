//! One end of a channel: a stream socket between two processes of a node.

use std::{
    io,
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use nix::{libc, sys::socket::MsgFlags};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    BadDescriptors, ChannelError, ChannelKind, Incoming, Outgoing, Problem, is_readable_within,
    receive::{Received, receive},
};

/// Most bytes of one read.
const READ: usize = 16 << 10;

/// See the module.
#[derive(Debug)]
pub struct Channel {
    kind: ChannelKind,
    socket: UnixStream,
    incoming: Incoming,
    /// The descriptor beside the frame that is not here whole.
    descriptor: Option<OwnedFd>,
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Channel {
    /// An end of a channel over this stream socket.
    #[must_use]
    pub fn over(kind: ChannelKind, socket: impl Into<OwnedFd>) -> Self {
        Self {
            kind,
            socket: UnixStream::from(socket.into()),
            incoming: Incoming::new(kind),
            descriptor: None,
        }
    }

    /// One end of a new channel, and the socket of the other.
    ///
    /// # Errors
    /// The process or the system has no descriptors left.
    pub fn pair(kind: ChannelKind) -> io::Result<(Self, OwnedFd)> {
        let (ours, its) = UnixStream::pair()?;
        Ok((Self::over(kind, ours), its.into()))
    }

    /// Sends a message, and a descriptor beside it. Waits while the socket is full, unless `flags` have `MSG_DONTWAIT`.
    ///
    /// # Errors
    /// The message is too long, the other end is closed, or [`Problem::Full`]; after that error the channel cannot be
    /// used any more.
    pub fn send(
        &self,
        message: &impl Serialize,
        descriptor: Option<BorrowedFd<'_>>,
        flags: MsgFlags,
    ) -> Result<(), ChannelError> {
        let mut outgoing = Outgoing::new(self.kind);
        outgoing.push(message)?;
        match outgoing.send_to(self, descriptor, flags)? {
            true => Ok(()),
            false => Err(self.kind.error(Problem::Full)),
        }
    }

    /// The next message; `None`: the other end was closed after its last frame.
    ///
    /// # Errors
    /// See [`Problem`].
    pub fn receive<M: DeserializeOwned>(&mut self) -> Result<Option<M>, ChannelError> {
        self.receive_within(Duration::MAX)
    }

    /// The next message, for which it waits this long.
    ///
    /// # Errors
    /// [`Problem::Silent`]: no whole message has come in time. Otherwise see [`Problem`].
    pub fn receive_within<M: DeserializeOwned>(
        &mut self,
        patience: Duration,
    ) -> Result<Option<M>, ChannelError> {
        let begun = Instant::now();
        if self.incoming.end().is_ok() {
            // It came with an earlier message, and nobody has taken it.
            self.descriptor = None;
        }
        loop {
            if let Some(message) = self.incoming.next_message()? {
                return Ok(Some(message));
            }
            let left = patience.saturating_sub(begun.elapsed());
            let ready = is_readable_within(self.as_fd(), left);
            if !ready.map_err(|error| self.kind.error(error))? {
                if begun.elapsed() >= patience {
                    return Err(self.kind.error(Problem::Silent(patience)));
                }
            } else if !self.read()? {
                return self.incoming.end().map(|()| None);
            }
        }
    }

    /// Takes the descriptor beside the message that was received last. The next call that receives closes one that
    /// nobody took.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptor.take()
    }

    /// Closes the channel in both directions.
    pub fn close(&self) {
        // The other end may be closed already.
        self.socket.shutdown(Shutdown::Both).ok();
    }

    /// Receives some bytes; `false`: the other end is closed.
    fn read(&mut self) -> Result<bool, ChannelError> {
        let mut room = [0; READ];
        // A read that ends with the frame shows whose the descriptor is: it comes with the frame's first bytes.
        let most = match self.kind.passes_descriptors {
            true => self.incoming.missing().min(READ),
            false => READ,
        };
        let Received { length, descriptor } = match receive(&self.socket, &mut room[..most]) {
            // The other end was closed with unread messages.
            Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => return Ok(false),
            received => received.map_err(|error| self.kind.error(error))?,
        };
        self.incoming.push(&room[..length]);
        let passes = self.kind.passes_descriptors;
        let wrong = match descriptor {
            Ok(Some(_)) if !passes => BadDescriptors::Unwanted,
            Ok(beside) => {
                self.descriptor = beside.or_else(|| self.descriptor.take());
                return Ok(length > 0);
            }
            Err(why) => why,
        };
        Err(self.kind.error(wrong))
    }
}
