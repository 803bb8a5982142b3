//! The client's protocol without sockets or clocks: which datagram to send next, and the meaning of an answer
//! (`docs/spec/data-plane-over-udp.md`, sections 4 to 7).
//!
//! Time is an argument: the time since a fixed moment. A WRITE that was delayed in the network never overwrites a later
//! one, for three reasons. A [`Requester`] is one client of one lease; it has one [`Transfer`] at a time, whose
//! requests name no byte twice. [`Blocks`] has many operations at once, but runs those that touch the same block one
//! after the other. Before an unanswered request is sent again in a new session, the old session is closed by its
//! number.

mod active;
mod answer;
mod blocks;
mod flow;
mod hello;
mod operation;
mod piece;
mod requester;
mod requests;
mod session;
mod unflushed;
mod unsent;
mod work;

use core::time::Duration;

use fabricbios_wire::{DATA_OVERHEAD, LeaseId};

pub use blocks::{Blocks, Finished, Outgoing};
pub use operation::Operation;
pub use requester::Requester;
pub use work::Work;

use crate::{Broken, DataKey, Invariant};
use answer::Event;

/// After this many time-outs in a row of one request, the path, its length and the session are in doubt.
const SILENT_MAX: u32 = 5;

/// Initial settings of a [`Requester`].
#[derive(Debug)]
pub struct Setup {
    /// The lease.
    pub lease_id: LeaseId,
    /// The lease's key.
    pub key: DataKey,
    /// Whether tags cover payloads too.
    pub payload_mac: bool,
    /// A transfer fails after this long without progress.
    pub give_up: Duration,
    /// A random number, different for each client.
    pub seed: u64,
    /// MTU of the route to the server in bytes, IP header included.
    pub route_mtu: usize,
    /// Bytes of the IP header: 20 or 40.
    pub ip_header: usize,
}

/// A datagram to send: prefix, then payload.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// Header and tag.
    pub prefix: [u8; DATA_OVERHEAD],
    /// The payload.
    pub payload: &'a [u8],
}

/// Why a transfer failed. All but `Silent` come from a peer that has the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The lease has ended.
    NoLease,
    /// The lease ended and could not be proved clean.
    Fenced,
    /// The range is not within the lease.
    OutOfRange {
        /// Bytes of the lease.
        resource_len: u64,
    },
    /// The server refused with another status, at once or until the time was up.
    Refused {
        /// `DataStatus` as a number.
        status: u8,
    },
    /// The reply to HELLO is not valid.
    Nonsense,
    /// The node's machine has rebooted, and answered writes may be lost. FLUSH reports this once.
    WritesLost,
    /// An invariant of the client failed.
    Broken(Broken),
    /// No authentic reply came.
    Silent {
        /// Whether unauthenticated replies came that call the key invalid; anybody could have sent them.
        doubtful: bool,
    },
}

impl Failure {
    /// Whether every further request would fail too.
    pub(crate) fn is_final(self) -> bool {
        !matches!(
            self,
            Self::OutOfRange { .. } | Self::Refused { .. } | Self::WritesLost
        )
    }
}

/// Statistics of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Datagrams sent, retries and HELLOs included.
    pub sent: u64,
    /// Retries among them.
    pub retried: u64,
    /// Authentic replies.
    pub answered: u64,
    /// Sessions opened.
    pub sessions: u64,
    /// Estimated round trip.
    pub round_trip: Option<Duration>,
    /// Requests that may be in flight now.
    pub window: usize,
}

/// A state machine that a socket drives: a [`Transfer`] or [`Blocks`].
pub trait Driven {
    /// The requester, with its session, its path and its statistics.
    fn requester(&self) -> &Requester;

    /// The requester, to set another key or route.
    fn requester_mut(&mut self) -> &mut Requester;

    /// When to poll again if no datagram arrives; `None`: no request is waiting.
    fn next_timeout(&self) -> Option<Duration>;

    /// Handles a datagram from the server's address; its content is not trusted.
    fn on_datagram(&mut self, datagram: &[u8], now: Duration);
}

/// One transfer. To drive it, repeat: send each datagram of [`poll_transmit`](Self::poll_transmit) until it returns
/// `None`, look at [`outcome`](Self::outcome), and hand in the datagrams that arrive until
/// [`next_timeout`](Driven::next_timeout). A transfer may be dropped at any time: the next one closes the session of the
/// requests that were not answered.
#[derive(Debug)]
pub struct Transfer<'a> {
    requester: &'a mut Requester,
    work: Work<'a>,
    confirmed: u64,
    outcome: Option<Result<(), Failure>>,
}

impl<'a> Transfer<'a> {
    fn new(requester: &'a mut Requester, work: Work<'a>) -> Self {
        Self {
            requester,
            work,
            confirmed: 0,
            outcome: None,
        }
    }

    /// The next datagram that may be sent now.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<Transmit<'a>> {
        self.expire(now);
        self.look_at_lease();
        if self.outcome.is_some() {
            return None;
        }
        let transmit = if self.work.needs_session() && !self.requester.has_session() {
            self.requester.say_hello(now)
        } else {
            self.send_next(now)
        };
        self.requester.statistics.sent += u64::from(transmit.is_some());
        transmit
    }

    /// The result, once the transfer has ended.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<(), Failure>> {
        let done = self.requester.is_idle()
            && (!self.work.needs_session() || self.confirmed > 0 || self.requester.has_session());
        let checked = || done.then(|| each_byte_once(self.confirmed, self.work.place().len()));
        self.outcome.or_else(checked)
    }

    /// Number of bytes whose replies came; not always the first ones of the transfer.
    #[must_use]
    pub fn confirmed(&self) -> u64 {
        self.confirmed
    }

    fn end(&mut self, failure: Failure) {
        self.outcome.get_or_insert(Err(failure));
    }

    fn expire(&mut self, now: Duration) {
        if now >= self.requester.ends_at() {
            let failure = self.requester.silence();
            self.end(failure);
        }
        let silent = self.requester.expire(now);
        if silent >= SILENT_MAX && self.work.needs_session() && self.requester.has_session() {
            self.requester.reopen(now);
        }
    }

    fn send_next(&mut self, now: Duration) -> Option<Transmit<'a>> {
        let (work, needs_session) = (&self.work, self.work.needs_session());
        let request = self.requester.next_request(now, needs_session, |piece| {
            let extent = work.place().extent(&piece.range, 1);
            Some((work.payload(&piece.range), extent))
        })?;
        Some(Transmit {
            payload: work.payload(&request.piece.range),
            prefix: self.requester.send(request, now),
        })
    }

    /// Fails the transfer if the lease, as the reply to HELLO describes it, does not allow it.
    fn look_at_lease(&mut self) {
        if let Some(parameters) = self.requester.session_parameters()
            && let Err(failure) = self.work.place().reach(parameters)
        {
            self.end(failure);
        }
    }
}

/// Checks **bytes** at the end of an operation of `length` bytes.
fn each_byte_once(confirmed: u64, length: usize) -> Result<(), Failure> {
    if confirmed == length as u64 {
        return Ok(());
    }
    Err(Failure::Broken(Broken {
        invariant: Invariant::Bytes,
        detail: "other bytes were answered than were to be transferred",
    }))
}

impl Driven for Transfer<'_> {
    fn requester(&self) -> &Requester {
        self.requester
    }

    fn requester_mut(&mut self) -> &mut Requester {
        self.requester
    }

    fn next_timeout(&self) -> Option<Duration> {
        if self.outcome.is_some() {
            return None;
        }
        let end = self.requester.ends_at();
        let next = self.requester.due(self.work.needs_session());
        Some(next.map_or(end, |next| next.min(end)))
    }

    fn on_datagram(&mut self, datagram: &[u8], now: Duration) {
        if self.outcome.is_some() {
            return;
        }
        match self.requester.on_datagram(datagram, now) {
            Some(Event::Done {
                piece,
                bytes,
                payload,
            }) => {
                self.work.take(&piece.range, payload);
                self.confirmed += bytes as u64;
            }
            Some(Event::Refused { failure, .. }) => self.end(failure),
            Some(Event::Opened) if matches!(self.work, Work::Hello) => {
                self.requester.progressed(now);
            }
            Some(Event::Opened) | None => (),
        }
    }
}

#[cfg(test)]
mod tests;
