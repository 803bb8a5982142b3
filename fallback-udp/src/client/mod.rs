//! The client: memory with blocking calls, blocks with blocking or asynchronous calls, each on one socket.

mod blocks;
mod error;
mod link;
mod socket;

use core::fmt;
use std::{boxed::Box, error::Error, net::SocketAddr, time::Duration};

use fabricbios_wire::{DpKey, LeaseId};

pub use blocks::{BlockClient, Completion, Geometry};
pub use error::{ClientError, FailedCall};

use crate::transfer::{Requester, Setup, Statistics, Work};
use error::Failed;
use link::Link;

/// Endpoint and key of a lease, from LEASE_ALLOC or LEASE_QUERY. The key is never printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coordinates {
    /// The lease.
    pub lease_id: LeaseId,
    /// The key (TLV 0x0102).
    pub dp_key: DpKey,
    /// TLV 0x0103.
    pub endpoint: SocketAddr,
}

/// Settings of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// Whether tags cover the payloads too, against an attacker who changes datagrams in the network.
    pub payload_mac: bool,
    /// A call fails after this long without progress.
    pub give_up: Duration,
    /// The same limit while the node's machine answers that nothing listens at its port.
    pub give_up_closed: Duration,
    /// Longest packet in bytes, IP header included; `None`: the MTU of the route.
    pub mtu_max: Option<usize>,
}

/// A call fails after this long without progress, unless the caller sets another time.
const GIVE_UP: Duration = Duration::from_secs(30);

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            payload_mac: false,
            give_up: GIVE_UP,
            give_up_closed: GIVE_UP,
            mtu_max: None,
        }
    }
}

/// Why a [`Refresh`] has no coordinates.
pub type RefreshError = Box<dyn Error + Send + Sync>;

/// Asks the node for the current coordinates (LEASE_QUERY). A call of the client calls this, at most once a second, when
/// nothing answers or the key seems to be invalid.
pub trait Refresh: Send {
    /// The coordinates of the lease.
    ///
    /// # Errors
    /// Why there are no coordinates; if the call fails, the text becomes part of its error.
    fn refresh(&mut self) -> Result<Coordinates, RefreshError>;

    /// Whether the node has said that the lease has ended. The call then fails at once with `NoLease`.
    fn is_over(&self) -> bool {
        false
    }
}

/// A client of one lease of memory. One call at a time; a program that needs more opens more clients and orders their
/// writes itself.
pub struct MemoryClient {
    link: Link,
    requester: Requester,
    resource_len: u64,
}

impl MemoryClient {
    /// Opens a session; if needed, the client asks `refresh` for fresh coordinates.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn connect(
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

    /// Sets the coordinates for the next call: after a rotation, a renewal or a restart of the node. New coordinates cost
    /// one round trip. Coordinates of another lease are ignored: they need another client.
    pub fn set_coordinates(&mut self, coordinates: Coordinates) {
        self.link.set_coordinates(&mut self.requester, coordinates);
    }

    /// The coordinates in use.
    #[must_use]
    pub fn coordinates(&self) -> &Coordinates {
        &self.link.coordinates
    }

    /// Size of the lease in bytes.
    #[must_use]
    pub fn resource_len(&self) -> u64 {
        self.resource_len
    }

    /// Path MTU in bytes, IP header included; `None`: it is being measured again.
    #[must_use]
    pub fn path_mtu(&self) -> Option<usize> {
        self.requester.path_mtu()
    }

    /// The statistics.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.requester.statistics()
    }

    /// Fills `into` from `offset` on; `progress` gets the number of bytes read. After an error only some bytes may have
    /// been read.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn read(
        &mut self,
        offset: u64,
        into: &mut [u8],
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), ClientError> {
        self.run(Work::Read { offset, into }, progress)
    }

    /// Writes `from` at `offset`; `progress` gets the number of confirmed bytes. After `Ok` all bytes are in the memory of
    /// the lease.
    ///
    /// After an error any part may have been written, and the rest may still be in the network. The next call of this
    /// client makes sure that it is not written later; another client cannot.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn write(
        &mut self,
        offset: u64,
        from: &[u8],
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), ClientError> {
        self.run(Work::Write { offset, from }, progress)
    }

    /// Sends a PING and returns the time until its reply, retries included.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn ping(&mut self) -> Result<Duration, ClientError> {
        let begin = self.link.now();
        self.run(Work::Ping, &mut |_| ())?;
        Ok(self.link.now() - begin)
    }

    fn run(&mut self, work: Work<'_>, progress: &mut dyn FnMut(u64)) -> Result<(), ClientError> {
        let place = work.place();
        let mut transfer = self.requester.transfer(work, self.link.now());
        let driven = self.link.drive(&mut transfer, progress);
        let confirmed = transfer.confirmed();
        if let Some(parameters) = self.requester.session_parameters() {
            self.resource_len = parameters.resource_len;
        }
        let failed = Failed {
            offset: place.first,
            length: place.bytes,
            unit: 1,
            confirmed,
        };
        match driven {
            Ok(outcome) => outcome.map_err(|failure| self.link.explain(failure, failed)),
            Err(source) => Err(self.link.local(source, confirmed)),
        }
    }
}

/// Opens the socket and the requester.
fn open(
    coordinates: Coordinates,
    options: ClientOptions,
    refresh: Option<Box<dyn Refresh>>,
) -> Result<(Link, Setup), ClientError> {
    let call = FailedCall {
        lease_id: coordinates.lease_id,
        endpoint: coordinates.endpoint,
        confirmed: 0,
    };
    let opened = Link::open(coordinates, options, refresh);
    let opened = opened.and_then(|link| link.setup().map(|setup| (link, setup)));
    opened.map_err(|source| ClientError::Local {
        call,
        what: "open a UDP socket",
        source,
    })
}

/// Closes the session, so that the server has room for another one. If the datagram gets lost, the server replaces the
/// session after some seconds anyway.
impl Drop for MemoryClient {
    fn drop(&mut self) {
        if let Some(hello) = self.requester.close_session(self.link.now()) {
            self.link.send_off(hello);
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
