//! Datagrams that are received together and answered together.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::BorrowedFd,
};

use fabricbios_wire::DATAGRAM_MAX;
use nix::errno::Errno;

use super::{
    calls::{Envelope, Headers},
    front::Guest,
};
use crate::ReplyBuffer;

/// Datagrams per system call: enough to make the calls cheap, few enough that the clock, which is
/// read once for all of them, is right within a fraction of a millisecond.
pub(super) const BATCH: usize = 32;

/// Room for a batch, used over and over.
#[derive(Debug)]
pub(super) struct Batch {
    letters: Vec<Letter>,
    headers: Headers,
}

/// One datagram and its reply.
#[derive(Debug)]
pub(super) struct Letter {
    envelope: Envelope,
    /// One byte more than a datagram may have, so that one that is too long is seen to be.
    bytes: Box<[u8; DATAGRAM_MAX + 1]>,
    length: usize,
    reply: Box<ReplyBuffer>,
    /// 0: no reply.
    reply_length: usize,
}

/// Replies, and where each goes.
pub(super) type Replies<'a> = &'a [(&'a Envelope, &'a [u8])];

/// How sending went.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Replies that the system did not take.
    pub(super) unsent: u64,
    /// Why the last of them was not.
    pub(super) errno: Option<Errno>,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            letters: (0..BATCH).map(|_| Letter::new()).collect(),
            headers: Headers::new(BATCH),
        }
    }

    /// What has come, without waiting: EAGAIN for nothing.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<&mut [Letter], Errno> {
        let mut received = [None; BATCH];
        let letters = self.letters.iter_mut();
        let into = letters.map(|letter| (&mut letter.envelope, &mut letter.bytes[..]));
        let count = self
            .headers
            .receive(socket, into, |at, it| received[at] = Some(it))?;
        for (letter, it) in self.letters.iter_mut().zip(received.into_iter().flatten()) {
            letter.length = it.bytes.min(letter.bytes.len());
            letter.envelope.name.length = it.name;
            letter.envelope.control.length = it.control;
            letter.reply_length = 0;
        }
        Ok(&mut self.letters[..count])
    }

    /// Sends the replies to the first `count`.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, count: usize) -> Sent {
        let mut replies = Vec::with_capacity(BATCH);
        for letter in self.letters.iter_mut().take(count) {
            if letter.reply_length > 0 {
                letter.envelope.control.leave_interface_open();
                replies.push((&letter.envelope, &letter.reply[..letter.reply_length]));
            }
        }
        send_all(&mut self.headers, socket, &replies)
    }

    /// Sends replies that are not those of the batch.
    pub(super) fn send_all(&mut self, socket: BorrowedFd<'_>, replies: Replies<'_>) -> Sent {
        send_all(&mut self.headers, socket, replies)
    }
}

/// What the system does not take at once is lost, like any datagram: waiting for one client would make all
/// others wait.
fn send_all(headers: &mut Headers, socket: BorrowedFd<'_>, replies: Replies<'_>) -> Sent {
    let mut sent = Sent::default();
    let mut left = replies;
    while !left.is_empty() {
        match headers.send(socket, left.iter().copied()) {
            Ok(taken) => left = &left[taken.clamp(1, left.len())..],
            Err(Errno::EINTR) => {}
            Err(errno) => {
                sent.unsent += 1;
                sent.errno = Some(errno);
                left = &left[1..];
            }
        }
    }
    sent
}

impl Sent {
    pub(super) fn add(&mut self, other: &Self) {
        self.unsent += other.unsent;
        self.errno = other.errno.or(self.errno);
    }
}

impl Letter {
    fn new() -> Self {
        Self {
            envelope: Envelope::empty(),
            bytes: Box::new([0; DATAGRAM_MAX + 1]),
            length: 0,
            reply: Box::new([0; DATAGRAM_MAX]),
            reply_length: 0,
        }
    }

    /// The datagram, and room for the reply to it.
    pub(super) fn open(&mut self) -> (&[u8], &mut ReplyBuffer) {
        (&self.bytes[..self.length], &mut self.reply)
    }

    /// The same, and who it is from.
    pub(super) fn guest(&mut self, source: IpAddr) -> Guest<'_> {
        Guest {
            datagram: &self.bytes[..self.length],
            source,
            envelope: &self.envelope,
            reply: &mut self.reply,
        }
    }

    /// The reply is so long.
    pub(super) fn answer(&mut self, length: usize) {
        self.reply_length = length;
    }

    /// Who sent it; `None`: the kernel did not say.
    pub(super) fn source(&self) -> Option<IpAddr> {
        let bytes = self.envelope.name.address_bytes()?;
        let v4 = || {
            bytes
                .try_into()
                .map(|it: [u8; 4]| Ipv4Addr::from(it).into())
        };
        let v6 = || {
            bytes
                .try_into()
                .map(|it: [u8; 16]| Ipv6Addr::from(it).to_canonical())
        };
        v4().or_else(|_| v6()).ok()
    }
}
