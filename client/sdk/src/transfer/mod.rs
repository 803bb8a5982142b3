//! Reads and writes a lease, over the best transport that the lease and this machine have in common.
//!
//! The connection is kept between calls. New keys are taken from every reply of the control plane, and over UDP from a
//! LEASE_QUERY when the old keys do not work any more.

mod blocks;
#[cfg(feature = "rdma")]
mod rdma;
#[cfg(not(feature = "rdma"))]
#[path = "no_rdma.rs"]
mod rdma;
mod transport;
mod udp;

use std::sync::{Arc, PoisonError};

use fabricbios_fallback_udp::MemoryClient;
use fabricbios_wire::{LeaseError, LeaseInfo, LeasePhase, Refusal, RefusalClass, Request};

pub(crate) use blocks::BlockChannel;
use rdma::RdmaConnection;
pub use transport::{DataTransport, Transfers};
use udp::UdpConnection;

use crate::{Error, Lease, MemLease, Node, Storage, runtime, shared::SharedLease};

/// One transfer. Offsets count bytes from the start of the lease.
#[derive(Debug)]
pub(crate) enum Job<'a> {
    /// Read from the lease.
    Read(u64, &'a mut [u8]),
    /// Write to the lease.
    Write(u64, &'a [u8]),
}

/// A connection to the bytes of a lease.
#[derive(Debug)]
pub(crate) enum Channel {
    Rdma(RdmaConnection),
    Udp(Box<UdpConnection<MemoryClient>>),
}

/// Why a job failed.
#[derive(Debug)]
enum Failed {
    /// The job failed for good.
    For(Error),
    /// The connection is broken; another one may work.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "only RDMA breaks"))]
    Broken(Error),
}

impl MemLease {
    /// Fills `into`, blocking. After an error only some bytes may have been read.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.read_with_progress(offset, into, |_| ())
    }

    /// Reads, blocking; `progress` gets the number of bytes read.
    pub fn read_with_progress(
        &self,
        offset: u64,
        into: &mut [u8],
        mut progress: impl FnMut(u64),
    ) -> Result<(), Error> {
        self.shared.transfer(Job::Read(offset, into), &mut progress)
    }

    /// Writes all of `from`, blocking. After `Ok` all bytes are in the memory of the lease.
    ///
    /// After an error any part may have been written, and over UDP the rest may still be in the network. The next call of
    /// this `MemLease` makes sure that it is not written later. Another `MemLease` cannot: before another one writes, call
    /// [`MemLease::rotate`], which makes delayed datagrams invalid.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.write_with_progress(offset, from, |_| ())
    }

    /// Writes, blocking; `progress` gets the number of confirmed bytes.
    pub fn write_with_progress(
        &self,
        offset: u64,
        from: &[u8],
        mut progress: impl FnMut(u64),
    ) -> Result<(), Error> {
        self.shared
            .transfer(Job::Write(offset, from), &mut progress)
    }

    /// Reads `length` bytes.
    pub async fn read_async(&self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let shared = Arc::clone(&self.shared);
        shared.check_range(offset, length as u64)?;
        runtime::blocking(move || {
            let mut bytes = vec![0; length];
            shared.transfer(Job::Read(offset, &mut bytes), &mut |_| ())?;
            Ok(bytes)
        })
        .await
    }

    /// Writes all of `bytes`; see [`MemLease::write`].
    pub async fn write_async(&self, offset: u64, bytes: Vec<u8>) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        runtime::blocking(move || shared.transfer(Job::Write(offset, &bytes), &mut |_| ())).await
    }

    /// The transport of the last transfer; `None` before the first.
    pub fn transport(&self) -> Option<DataTransport> {
        self.shared.transport()
    }
}

impl<K: Storage> Lease<K> {
    /// Sets the options of further transfers.
    pub fn set_transfers(&self, transfers: Transfers) {
        self.shared.set_transfers(transfers);
    }
}

impl SharedLease {
    /// Does one transfer. Calls from several threads take turns.
    fn transfer(&self, mut job: Job<'_>, progress: &mut dyn FnMut(u64)) -> Result<(), Error> {
        self.check_not_lost()?;
        self.check_range(job.offset(), job.length())?;
        if job.length() == 0 {
            // Even an empty transfer fails over a transport that the lease does not have.
            return match self.transfers().transport {
                Some(_) => transport::candidates(self).map(drop),
                None => Ok(()),
            };
        }
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        self.close_unsuitable(&mut channel)?;
        let open = match &mut *channel {
            Some(open) => open,
            none => none.insert(self.open(transport::candidates(self)?)?),
        };
        let transport = open.transport();
        let done = match self.carry_out(open, &mut job, progress) {
            Err(Failed::Broken(error)) => {
                *channel = None;
                let open = channel.insert(self.open_again(transport, &error)?);
                self.carry_out(open, &mut job, progress)
            }
            done => done,
        };
        if done.is_err() && channel.as_ref().is_some_and(Channel::may_be_dropped) {
            *channel = None;
        }
        done.map_err(Failed::error)
    }

    /// Closes a connection that does not suit the options any more, once none of its datagrams can take effect later. If
    /// that is unknown, this fails: a delayed write must not overwrite one of the next connection.
    fn close_unsuitable(&self, channel: &mut Option<Channel>) -> Result<(), Error> {
        let Some(open) = channel.as_mut().filter(|open| !self.suits(open)) else {
            return Ok(());
        };
        if let Channel::Udp(connection) = open {
            connection.settle(self)?;
        }
        *channel = None;
        Ok(())
    }

    fn carry_out(
        &self,
        open: &mut Channel,
        job: &mut Job<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Failed> {
        self.set_transport(open.transport());
        match open {
            Channel::Rdma(connection) => connection.carry_out(self, job, progress),
            Channel::Udp(connection) => {
                let done = connection.carry_out(self, job, progress);
                done.map_err(Failed::For)
            }
        }
    }

    /// Opens another connection after one broke, if the lease is alive: over the other transport, or again over the same.
    fn open_again(&self, broken: DataTransport, error: &Error) -> Result<Channel, Error> {
        self.check_alive()?;
        let mut transports = transport::candidates(self)?;
        transports.sort_by_key(|transport| *transport == broken);
        let open = self.open(transports)?;
        tracing::warn!(lease_id = %self.lease_id, "going on over {}: {error}", open.transport());
        Ok(open)
    }

    /// Connects over the first of `transports` that works.
    fn open(&self, transports: Vec<DataTransport>) -> Result<Channel, Error> {
        let mut last = Error::Usage("no transport was named".to_owned());
        for transport in transports {
            let opened = match transport {
                DataTransport::Rdma => RdmaConnection::open(self).map(Channel::Rdma),
                DataTransport::Udp => {
                    UdpConnection::open(self).map(|open| Channel::Udp(Box::new(open)))
                }
            };
            match opened {
                Ok(open) => return Ok(open),
                Err(error) => {
                    tracing::debug!(lease_id = %self.lease_id, "not over {transport}: {error}");
                    last = error;
                }
            }
        }
        Err(last)
    }

    /// Whether an open connection suits the options.
    fn suits(&self, open: &Channel) -> bool {
        let transfers = self.transfers();
        let is_wanted = transfers
            .transport
            .is_none_or(|transport| transport == open.transport());
        let is_current = match open {
            Channel::Udp(connection) => {
                connection.options == udp::options(transfers, self.patience())
            }
            Channel::Rdma(connection) => connection.is_ours(self),
        };
        is_wanted && is_current
    }

    fn check_range(&self, offset: u64, length: u64) -> Result<(), Error> {
        let info = self.info();
        let bytes = info.binding.limits.map_or(info.capacity, |it| it.length);
        let inside = offset.checked_add(length).is_some_and(|end| end <= bytes);
        inside.then_some(()).ok_or_else(|| {
            let lease_id = self.lease_id;
            Error::Usage(format!(
                "{length} bytes at {offset} are not within the {bytes} bytes of lease {lease_id}"
            ))
        })
    }

    /// Asks the node for the state of the lease and keeps the answer.
    fn ask_at(&self, node: &Node) -> Result<LeaseInfo, Error> {
        let info = node.lease(Request::LeaseQuery(self.lease_id))?;
        self.update(info.clone());
        Ok(info)
    }

    /// Fails if the node says that the lease has ended.
    fn check_alive(&self) -> Result<(), Error> {
        match self.ask_at(&self.patient_node()) {
            Ok(info) => end_error(&info).map_or(Ok(()), Err),
            Err(error @ Error::Refused(_)) => Err(error),
            Err(_unknown) => Ok(()),
        }
    }
}

/// The error if a lease gives no access any more.
pub(crate) fn end_error(info: &LeaseInfo) -> Option<Error> {
    let lease_id = info.lease_id;
    match info.phase {
        LeasePhase::Binding | LeasePhase::Active => return None,
        LeasePhase::Fenced => {
            let message = format!("lease {lease_id} ended and could not be proved clean");
            let refusal = Refusal::new(LeaseError::Fenced, RefusalClass::Permanent, message);
            return Some(Error::Refused(refusal));
        }
        LeasePhase::Grace => return Some(Error::InGrace { lease_id }),
        LeasePhase::Expired | LeasePhase::Revoked | LeasePhase::Freed => {}
    }
    let cause = info.end.as_ref().map(|end| end.cause);
    let why = match cause.filter(|cause| cause.name() != info.phase.name()) {
        Some(cause) => format!("it is {}: {cause}", info.phase),
        None => format!("it is {}", info.phase),
    };
    Some(Error::Ended {
        lease_id,
        cause,
        why,
    })
}

impl Job<'_> {
    pub(crate) fn offset(&self) -> u64 {
        match self {
            Self::Read(offset, _) | Self::Write(offset, _) => *offset,
        }
    }

    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Read(_, into) => into.len() as u64,
            Self::Write(_, from) => from.len() as u64,
        }
    }

    /// Whether the job may have changed bytes although no answer came.
    pub(crate) fn changes(&self) -> bool {
        matches!(self, Self::Write(..))
    }
}

impl Channel {
    fn transport(&self) -> DataTransport {
        match self {
            Self::Rdma(_) => DataTransport::Rdma,
            Self::Udp(_) => DataTransport::Udp,
        }
    }

    /// Whether the connection may be dropped after an error: no delayed write can take effect later.
    fn may_be_dropped(&self) -> bool {
        match self {
            Self::Rdma(_) => true,
            Self::Udp(connection) => !connection.is_unsettled(),
        }
    }
}

impl Failed {
    fn error(self) -> Error {
        match self {
            Self::For(error) | Self::Broken(error) => error,
        }
    }
}
