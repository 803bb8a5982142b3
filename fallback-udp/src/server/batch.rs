//! Datagrams that are received together and answered together.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::BorrowedFd,
};

use fabricbios_wire::DATAGRAM_MAX;
use nix::errno::Errno;

use super::responder::Incoming;
use crate::{
    ReplyBuffer,
    calls::{Addresses, Headers},
};

/// Datagrams per system call: enough to make the calls cheap, few enough that the clock, which is
/// read once for all of them, is right within a fraction of a millisecond.
pub(super) const BATCH: usize = 32;

/// The buffers of a batch, used again for each batch.
#[derive(Debug)]
pub(super) struct Batch {
    exchanges: Vec<Exchange>,
    headers: Headers,
}

/// One received datagram and the reply to it.
#[derive(Debug)]
pub(super) struct Exchange {
    addresses: Addresses,
    /// One byte longer than a valid datagram, so that a longer one is noticed.
    bytes: Box<[u8; DATAGRAM_MAX + 1]>,
    length: usize,
    reply: Box<ReplyBuffer>,
    /// 0: no reply.
    reply_length: usize,
}

/// Replies and their addresses.
pub(super) type Replies<'a> = &'a [(&'a Addresses, &'a [u8])];

/// The result of sending.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Number of replies that the system refused.
    pub(super) unsent: u64,
    /// Why it refused the last of them.
    pub(super) errno: Option<Errno>,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            exchanges: (0..BATCH).map(|_| Exchange::new()).collect(),
            headers: Headers::new(BATCH),
        }
    }

    /// Receives the waiting datagrams, without blocking; EAGAIN: there are none.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<&mut [Exchange], Errno> {
        let mut received = [None; BATCH];
        let exchanges = self.exchanges.iter_mut();
        let into = exchanges.map(|it| (Some(&mut it.addresses), &mut it.bytes[..]));
        let count = self
            .headers
            .receive(socket, into, |at, it| received[at] = Some(it))?;
        for (exchange, it) in self
            .exchanges
            .iter_mut()
            .zip(received.into_iter().flatten())
        {
            exchange.length = it.bytes.min(exchange.bytes.len());
            exchange.addresses.name.length = it.name;
            exchange.addresses.control.length = it.control;
            exchange.reply_length = 0;
        }
        Ok(&mut self.exchanges[..count])
    }

    /// Sends the replies to the first `count` datagrams.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, count: usize) -> Sent {
        let mut replies = Vec::with_capacity(BATCH);
        for exchange in self.exchanges.iter_mut().take(count) {
            if exchange.reply_length > 0 {
                exchange.addresses.control.leave_interface_open();
                replies.push((
                    &exchange.addresses,
                    &exchange.reply[..exchange.reply_length],
                ));
            }
        }
        send_all(&mut self.headers, socket, &replies)
    }

    /// Sends other replies than those of the batch.
    pub(super) fn send_all(&mut self, socket: BorrowedFd<'_>, replies: Replies<'_>) -> Sent {
        send_all(&mut self.headers, socket, replies)
    }
}

/// Sends replies. A reply that the system does not accept at once is lost, like any datagram: waiting for one client
/// would make all others wait.
fn send_all(headers: &mut Headers, socket: BorrowedFd<'_>, replies: Replies<'_>) -> Sent {
    let mut sent = Sent::default();
    let mut left = replies;
    while !left.is_empty() {
        let from = { left.iter() }.map(|(addresses, bytes)| (Some(*addresses), [*bytes]));
        match headers.send(socket, libc::MSG_DONTWAIT, from) {
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

impl Exchange {
    fn new() -> Self {
        Self {
            addresses: Addresses::empty(),
            bytes: Box::new([0; DATAGRAM_MAX + 1]),
            length: 0,
            reply: Box::new([0; DATAGRAM_MAX]),
            reply_length: 0,
        }
    }

    /// The datagram with its source, and room for the reply.
    pub(super) fn incoming(&mut self, source: IpAddr) -> Incoming<'_> {
        Incoming {
            datagram: &self.bytes[..self.length],
            source,
            addresses: &self.addresses,
            reply: &mut self.reply,
        }
    }

    /// Bytes of the datagram.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Sets the length of the reply.
    pub(super) fn answer(&mut self, length: usize) {
        self.reply_length = length;
    }

    /// The source address; `None`: the kernel did not provide one.
    pub(super) fn source(&self) -> Option<IpAddr> {
        let bytes = self.addresses.name.address_bytes()?;
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
