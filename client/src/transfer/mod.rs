//! Reading and writing a lease, over the best road that the lease and this machine have in common.
//!
//! The connection is kept between calls. Keys are followed: those that answers of the control plane
//! bring, and over UDP those that come by LEASE_QUERY when the old ones do not work any more.

mod blocks;
#[cfg(feature = "rdma")]
mod rdma;
#[cfg(not(feature = "rdma"))]
#[path = "no_rdma.rs"]
mod rdma;
mod road;
mod udp;

use std::sync::{Arc, PoisonError};

use fabricbios_wire::{LeaseError, LeaseInfo, LeasePhase, Refusal, RefusalClass, Request};

pub(crate) use blocks::Connection as BlockChannel;
pub use road::{Road, Transfers};

use crate::{Error, Kind, Lease, MemLease, runtime, runtime::wait, shared::Shared};

/// What to move. Offsets count from the start of the lease.
#[derive(Debug)]
pub(crate) enum Job<'a> {
    /// Out of the lease.
    Read(u64, &'a mut [u8]),
    /// Into it.
    Write(u64, &'a [u8]),
}

/// A connection to a lease's bytes.
#[derive(Debug)]
pub(crate) enum Channel {
    Rdma(rdma::Connection),
    Udp(Box<udp::Connection>),
}

/// Why a channel did not do a job.
#[derive(Debug)]
enum Failed {
    /// This is the answer.
    For(Error),
    /// The connection is of no use any more; another one may do better.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "only RDMA breaks"))]
    Broken(Error),
}

impl MemLease {
    /// Reads as many bytes as `into` has, blocking. After an error some are new and some are not.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.read_with_progress(offset, into, |_| ())
    }

    /// Reads, blocking; `progress` gets the number of bytes that are there.
    pub fn read_with_progress(
        &self,
        offset: u64,
        into: &mut [u8],
        mut progress: impl FnMut(u64),
    ) -> Result<(), Error> {
        self.shared.transfer(Job::Read(offset, into), &mut progress)
    }

    /// Writes all of `from`, blocking: when this returns `Ok` it is in the lease's memory.
    ///
    /// After an error any part of it may be, and over UDP the rest may still be on its way. The next call
    /// of this `MemLease` sees to it that nothing of that is done later. Another `MemLease` would not
    /// know of it: before one takes over, [`MemLease::rotate`] ends whatever is on its way.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.write_with_progress(offset, from, |_| ())
    }

    /// Writes, blocking; `progress` gets the number of bytes that are confirmed.
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

    /// Over which road the last transfer went; `None` before the first.
    pub fn road(&self) -> Option<Road> {
        self.shared.road()
    }
}

impl<K: Kind> Lease<K> {
    /// How transfers go from now on.
    pub fn set_transfers(&self, transfers: Transfers) {
        self.shared.set_transfers(transfers);
    }
}

impl Shared {
    /// One at a time: calls from several threads take turns.
    fn transfer(&self, mut job: Job<'_>, progress: &mut dyn FnMut(u64)) -> Result<(), Error> {
        self.check_not_lost()?;
        self.check_range(job.offset(), job.length())?;
        if job.length() == 0 {
            return Ok(());
        }
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        self.close_unsuitable(&mut channel)?;
        let open = match &mut *channel {
            Some(open) => open,
            none => none.insert(self.open(road::candidates(self)?)?),
        };
        let road = open.road();
        let done = match self.carry_out(open, &mut job, progress) {
            Err(Failed::Broken(error)) => {
                *channel = None;
                let open = channel.insert(self.open_again(road, &error)?);
                self.carry_out(open, &mut job, progress)
            }
            done => done,
        };
        if done.is_err() && channel.as_ref().is_some_and(Channel::may_be_dropped) {
            *channel = None;
        }
        done.map_err(Failed::error)
    }

    /// A connection that would not be opened now, when nothing of it is done later any more. If that
    /// cannot be known it stays: what goes another way must not be undone by what was delayed on this.
    fn close_unsuitable(&self, channel: &mut Option<Channel>) -> Result<(), Error> {
        let Some(open) = channel.as_mut().filter(|open| !self.suits(open)) else {
            return Ok(());
        };
        if let Channel::Udp(connection) = open {
            connection.settle(self).map_err(Failed::error)?;
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
        self.set_road(open.road());
        match open {
            Channel::Rdma(connection) => connection.carry_out(self, job, progress),
            Channel::Udp(connection) => connection.carry_out(self, job, progress),
        }
    }

    /// After a connection broke, if the lease lives: over the other road, or over the same once more.
    fn open_again(&self, broken: Road, error: &Error) -> Result<Channel, Error> {
        self.check_alive()?;
        let mut roads = road::candidates(self)?;
        roads.sort_by_key(|road| *road == broken);
        let open = self.open(roads)?;
        tracing::warn!(lease_id = %self.lease_id, "going on over {}: {error}", open.road());
        Ok(open)
    }

    /// Connects over the first of `roads` that works.
    fn open(&self, roads: Vec<Road>) -> Result<Channel, Error> {
        let mut last = Error::Usage("no road was named".to_owned());
        for road in roads {
            let opened = match road {
                Road::Rdma => rdma::Connection::open(self).map(Channel::Rdma),
                Road::Udp => udp::Connection::open(self).map(|open| Channel::Udp(Box::new(open))),
            };
            match opened {
                Ok(open) => return Ok(open),
                Err(error) => {
                    tracing::debug!(lease_id = %self.lease_id, "not over {road}: {error}");
                    last = error;
                }
            }
        }
        Err(last)
    }

    /// Whether an open connection is one that would be opened now.
    fn suits(&self, open: &Channel) -> bool {
        let transfers = self.transfers();
        let as_told = transfers.road.is_none_or(|road| road == open.road());
        let is_current = match open {
            Channel::Udp(connection) => connection.options == udp::options(transfers),
            Channel::Rdma(connection) => connection.is_ours(self),
        };
        as_told && is_current
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

    /// Asks the node how the lease is, and keeps the answer.
    fn ask_blocking(&self) -> Result<LeaseInfo, Error> {
        let info = wait(
            self.patient_node()
                .lease(Request::LeaseQuery(self.lease_id)),
        )?;
        self.told(info.clone());
        Ok(info)
    }

    /// Whether the lease can still be used, as far as the node says.
    fn check_alive(&self) -> Result<(), Error> {
        match self.ask_blocking() {
            Ok(info) => over(&info).map_or(Ok(()), Err),
            Err(error @ Error::Refused(_)) => Err(error),
            Err(_unknown) => Ok(()),
        }
    }
}

/// Why the data of a lease is out of reach for good, if it is.
pub(crate) fn over(info: &LeaseInfo) -> Option<Error> {
    let lease_id = info.lease_id;
    let why = match info.phase {
        LeasePhase::Binding | LeasePhase::Active => return None,
        LeasePhase::Fenced => {
            let message = format!("lease {lease_id} ended and could not be proved clean");
            let refusal = Refusal::new(LeaseError::Fenced, RefusalClass::Permanent, message);
            return Some(Error::Refused(refusal));
        }
        LeasePhase::Grace => {
            "it has expired and is in its grace time: a renewal opens it again".to_owned()
        }
        phase => format!("it is {phase}"),
    };
    Some(Error::Ended { lease_id, why })
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

    /// Whether bytes may have changed although no answer came.
    pub(crate) fn changes(&self) -> bool {
        matches!(self, Self::Write(..))
    }
}

impl Channel {
    fn road(&self) -> Road {
        match self {
            Self::Rdma(_) => Road::Rdma,
            Self::Udp(_) => Road::Udp,
        }
    }

    /// After an error: whether nothing depends on this connection and no other.
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
