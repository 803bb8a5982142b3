//! Leases over UDP, for programs: one socket; memory with calls that block, blocks with or without.

mod blocks;
mod error;
mod link;
mod socket;

use core::fmt;
use std::{boxed::Box, net::SocketAddr, string::String, time::Duration};

use fabricbios_wire::{DpKey, LeaseId};

pub use blocks::{BlockClient, Completion, Geometry};
pub use error::ClientError;

use crate::transfer::{Requester, Setup, Statistics, Work};
use error::Failed;
use link::Link;

/// Where a lease's memory is, from LEASE_ALLOC or LEASE_QUERY. The key is never printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coordinates {
    /// Which lease.
    pub lease_id: LeaseId,
    /// TLV 0x0102.
    pub dp_key: DpKey,
    /// TLV 0x0103.
    pub endpoint: SocketAddr,
}

/// How to behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// Tags cover the payloads too: against somebody who changes datagrams on their way.
    pub payload_mac: bool,
    /// A call ends when nothing of it was done for this long.
    pub give_up: Duration,
    /// Longest packet in bytes, IP header included; `None`: what the route takes.
    pub mtu_max: Option<usize>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            payload_mac: false,
            give_up: Duration::from_secs(30),
            mtu_max: None,
        }
    }
}

/// Asks the node what is valid now (LEASE_QUERY). Called, from within a call of the client, when nothing
/// answers or the key does not seem to be valid any more; once a second at most.
pub trait Refresh: Send {
    /// The coordinates of the lease, or why there are none: that is told if the call fails.
    fn refresh(&mut self) -> Result<Coordinates, String>;

    /// Whether the node has said that the lease is over: the call then ends at once with `NoLease`.
    fn is_over(&self) -> bool {
        false
    }
}

/// A lease's memory over UDP. One call at a time; programs that want more open more of them, and take
/// care themselves of who writes what when.
pub struct MemoryClient {
    link: Link,
    requester: Requester,
    resource_len: u64,
}

impl MemoryClient {
    /// Opens a session.
    pub fn connect(coordinates: Coordinates, options: ClientOptions) -> Result<Self, ClientError> {
        Self::start(coordinates, options, None)
    }

    /// Opens a session, with somebody who can be asked for fresh coordinates already then.
    pub fn connect_with_refresh(
        coordinates: Coordinates,
        options: ClientOptions,
        refresh: Box<dyn Refresh>,
    ) -> Result<Self, ClientError> {
        Self::start(coordinates, options, Some(refresh))
    }

    fn start(
        coordinates: Coordinates,
        options: ClientOptions,
        refresh: Option<Box<dyn Refresh>>,
    ) -> Result<Self, ClientError> {
        let (link, setup) = open(coordinates, options, refresh)?;
        let mut client = Self {
            link,
            requester: Requester::new(setup),
            resource_len: 0,
        };
        client.run(Work::Hello, &mut |_| ())?;
        Ok(client)
    }

    /// Somebody who can be asked for fresh coordinates.
    #[must_use]
    pub fn with_refresh(mut self, refresh: Box<dyn Refresh>) -> Self {
        self.link.refresh = Some(refresh);
        self
    }

    /// What is valid from the next call on: after a rotation, a renewal, a restart of the node. It costs
    /// one round trip if it is new. Coordinates of another lease are ignored: they need another client.
    pub fn set_coordinates(&mut self, coordinates: Coordinates) {
        self.link.set_coordinates(&mut self.requester, coordinates);
    }

    /// What is used now.
    #[must_use]
    pub fn coordinates(&self) -> &Coordinates {
        &self.link.coordinates
    }

    /// Bytes of the lease.
    #[must_use]
    pub fn resource_len(&self) -> u64 {
        self.resource_len
    }

    /// Bytes that a packet on this path may have, IP header included; `None`: being found out again.
    #[must_use]
    pub fn path_mtu(&self) -> Option<usize> {
        self.requester.path_mtu()
    }

    /// What was done so far, and the pace.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.requester.statistics()
    }

    /// Reads as many bytes as `into` has; `progress` gets the number of those that are there. After an
    /// error some are new and some are not.
    pub fn read(
        &mut self,
        offset: u64,
        into: &mut [u8],
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), ClientError> {
        self.run(Work::Read { offset, into }, progress)
    }

    /// Writes; `progress` gets the number of bytes confirmed. When it returns all is in the lease's memory.
    ///
    /// After an error any part of it may be, and the rest may still be on its way. The next call of this
    /// client sees to it that nothing of that is done later; another client would not know of it.
    pub fn write(
        &mut self,
        offset: u64,
        from: &[u8],
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), ClientError> {
        self.run(Work::Write { offset, from }, progress)
    }

    /// Gets an answer: how long that took, retries included.
    pub fn ping(&mut self) -> Result<Duration, ClientError> {
        let begin = self.link.now();
        self.run(Work::Ping, &mut |_| ())?;
        Ok(self.link.now() - begin)
    }

    fn run(&mut self, work: Work<'_>, progress: &mut dyn FnMut(u64)) -> Result<(), ClientError> {
        let (offset, length) = match &work {
            Work::Read { offset, into } => (*offset, into.len()),
            Work::Write { offset, from } => (*offset, from.len()),
            _ => (0, 0),
        };
        let mut transfer = self.requester.transfer(work, self.link.now());
        let driven = self.link.drive(&mut transfer, progress);
        let confirmed = transfer.confirmed();
        if let Some(told) = self.requester.session_told() {
            self.resource_len = told.resource_len;
        }
        let failed = Failed {
            offset,
            length: length as u64,
            unit: 1,
            confirmed,
        };
        match driven {
            Ok(outcome) => outcome.map_err(|failure| self.link.explain(failure, failed)),
            Err(source) => Err(self.link.local(EXCHANGE, source, confirmed)),
        }
    }
}

/// What a machine could not do in the middle of a call.
const EXCHANGE: &str = "exchange datagrams";

/// A socket, and what a client starts from.
fn open(
    coordinates: Coordinates,
    options: ClientOptions,
    refresh: Option<Box<dyn Refresh>>,
) -> Result<(Link, Setup), ClientError> {
    let endpoint = coordinates.endpoint;
    let opened = Link::open(coordinates, options, refresh);
    let opened = opened.and_then(|link| link.setup().map(|setup| (link, setup)));
    opened.map_err(|source| ClientError::Local {
        what: "open a UDP socket",
        endpoint,
        source,
        confirmed: 0,
    })
}

/// The session makes room for others. If that gets lost, it does so after some seconds by itself.
impl Drop for MemoryClient {
    fn drop(&mut self) {
        if let Some(farewell) = self.requester.farewell(self.link.now()) {
            self.link.send_off(farewell);
        }
    }
}

impl fmt::Debug for MemoryClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryClient")
            .field("coordinates", &self.link.coordinates)
            .field("resource_len", &self.resource_len)
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}
