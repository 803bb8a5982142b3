//! Blocks of a lease over UDP.

use core::fmt;
use std::{
    boxed::Box,
    io,
    os::fd::{AsFd, BorrowedFd},
    string::ToString,
    time::Duration,
};

use super::{ClientError, ClientOptions, Coordinates, EXCHANGE, Failed, Refresh, link::Link, open};
use crate::transfer::{Asks, Blocks, Failure, Finished, Operation, Statistics};

/// Datagrams that are taken in a row before something else has its turn.
const TAKEN_MAX: usize = 256;

/// What a lease of blocks is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a block: a power of two from 512 to 4,096.
    pub block_bytes: u32,
    /// Blocks of the lease.
    pub blocks: u64,
    /// Nothing can be written.
    pub read_only: bool,
}

/// An operation that is over.
#[derive(Debug)]
pub struct Completion {
    /// What [`BlockClient::submit`] gave it.
    pub id: u64,
    /// With its bytes.
    pub operation: Operation,
    /// How it went.
    pub outcome: Result<(), ClientError>,
}

/// A lease's blocks over UDP: [`read`](Self::read), [`write`](Self::write) and [`flush`](Self::flush)
/// block; with [`submit`](Self::submit) many operations run at once. Of those that touch the same block,
/// one of them writing, the later one is done after the earlier one.
///
/// A program that waits for other things too waits until the descriptor is readable or
/// [`next_timeout`](Self::next_timeout) has passed, calls [`exchange`](Self::exchange), and takes what
/// [`next_completion`](Self::next_completion) has.
pub struct BlockClient {
    link: Link,
    blocks: Blocks,
    geometry: Geometry,
    /// The operations that are not over were begun with a look at the path.
    begun: bool,
    /// Nobody has looked yet whether something of what was submitted last can be sent.
    unsent: bool,
    /// The last operations did not end well: the address and the route may be others now.
    failed: bool,
    /// What this machine could not do.
    broken: Option<io::Error>,
}

impl BlockClient {
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
            blocks: Blocks::new(setup),
            geometry: Geometry {
                block_bytes: 1,
                blocks: 0,
                read_only: true,
            },
            begun: false,
            unsent: false,
            failed: false,
            broken: None,
        };
        client.run(Operation::Open)?;
        Ok(client)
    }

    /// What the lease is like.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Reads whole blocks, as many bytes as `into` has. After an error some are new and some are not.
    pub fn read(&mut self, block: u64, into: &mut [u8]) -> Result<(), ClientError> {
        let operation = Operation::Read {
            block,
            into: std::vec![0; into.len()],
        };
        if let Operation::Read { into: read, .. } = self.run(operation)? {
            into.copy_from_slice(&read);
        }
        Ok(())
    }

    /// Writes whole blocks: when it returns `Ok` the node has them, and [`flush`](Self::flush) makes them
    /// survive a power cut. After an error any of them may be written, each whole or not at all.
    pub fn write(&mut self, block: u64, from: &[u8]) -> Result<(), ClientError> {
        let from = from.to_vec();
        self.run(Operation::Write { block, from }).map(drop)
    }

    /// When it returns `Ok`, all that was written before survives a power cut of the node.
    /// [`ClientError::WritesLost`]: one came before, and what was written since the last flush may be lost. That is
    /// said once; what is written again, and flushed, is safe.
    pub fn flush(&mut self) -> Result<(), ClientError> {
        self.run(Operation::Flush).map(drop)
    }

    /// Whether a flush would have nothing to do, and nothing to tell: all that was written survives a power cut.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.blocks.is_flushed()
    }

    /// Begins an operation: the id under which it will be completed. Nothing is sent before the next
    /// [`exchange`](Self::exchange), which is then due at once. There is no limit: the caller knows how much it wants to keep.
    pub fn submit(&mut self, operation: Operation) -> u64 {
        if self.blocks.unfinished() == 0 {
            self.begun = false;
        }
        self.unsent = true;
        self.blocks.submit(operation, self.link.now())
    }

    /// Operations that are not over.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.blocks.unfinished()
    }

    /// Sends what may be sent and takes what has come. It waits for nothing but, when nothing answers, for
    /// the one who is asked for fresh coordinates.
    pub fn exchange(&mut self) {
        self.turn(false);
    }

    /// How long nothing has to be done if nothing arrives; `None`: there is nothing to wait for.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        let patience = || match self.unsent {
            true => Duration::ZERO,
            false => self.link.patience(&self.blocks),
        };
        self.blocks.next_timeout().map(|_| patience())
    }

    /// One operation that is over.
    pub fn next_completion(&mut self) -> Option<Completion> {
        let finished = self.blocks.next_finished()?;
        Some(self.complete(finished))
    }

    /// Waits until one is over; `None`: there is none to wait for.
    pub fn wait(&mut self) -> Option<Completion> {
        loop {
            if let Some(completion) = self.next_completion() {
                return Some(completion);
            }
            self.next_timeout()?;
            self.turn(true);
        }
    }

    /// What is valid from now on, as [`super::MemoryClient::set_coordinates`].
    pub fn set_coordinates(&mut self, coordinates: Coordinates) {
        let requester = self.blocks.requester_mut();
        if self.link.set_coordinates(requester, coordinates) {
            self.begun = false;
            self.unsent = true;
        }
    }

    /// What is used now.
    #[must_use]
    pub fn coordinates(&self) -> &Coordinates {
        &self.link.coordinates
    }

    /// Bytes that a packet on this path may have, IP header included; `None`: being found out again.
    #[must_use]
    pub fn path_mtu(&self) -> Option<usize> {
        self.blocks.requester().path_mtu()
    }

    /// What was done so far, and the pace.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.blocks.requester().statistics()
    }

    /// One operation, blocking. Others that complete meanwhile stay to be taken.
    fn run(&mut self, operation: Operation) -> Result<Operation, ClientError> {
        let id = self.submit(operation);
        loop {
            if let Some(finished) = self.blocks.take_finished(id) {
                let completion = self.complete(finished);
                return completion.outcome.map(|()| completion.operation);
            }
            self.turn(true);
        }
    }

    fn turn(&mut self, may_wait: bool) {
        if let Err(error) = self.try_turn(may_wait) {
            self.broken = Some(error);
            self.blocks.give_up(Failure::Silent { doubtful: false });
        }
    }

    fn try_turn(&mut self, may_wait: bool) -> io::Result<()> {
        self.begin()?;
        self.link.send(&mut self.blocks)?;
        self.unsent = false;
        // Some operations were over without an answer.
        let may_wait = may_wait && !self.blocks.has_finished();
        let timeout = self.next_timeout().filter(|_| may_wait).unwrap_or_default();
        let mut taken = self.link.receive(&mut self.blocks, timeout)?;
        while taken < TAKEN_MAX {
            match self.link.receive(&mut self.blocks, Duration::ZERO)? {
                0 => break,
                more => taken += more,
            }
        }
        self.look_at_lease();
        if self.blocks.unfinished() > 0 {
            self.link.ask(&mut self.blocks)?;
        }
        if self.link.is_over() {
            self.blocks.give_up(Failure::NoLease);
        }
        self.link.send(&mut self.blocks)
    }

    /// A look at the path before the first datagram.
    fn begin(&mut self) -> io::Result<()> {
        if core::mem::take(&mut self.failed) {
            self.link.connect(&mut self.blocks)?;
        }
        if !core::mem::replace(&mut self.begun, true) {
            self.broken = None;
            self.link.begin(&mut self.blocks)?;
        }
        Ok(())
    }

    fn look_at_lease(&mut self) {
        if let Some(told) = self.blocks.requester().session_told() {
            self.geometry = Geometry {
                block_bytes: told.unit,
                blocks: told.resource_len,
                read_only: told.read_only,
            };
        }
    }

    fn complete(&mut self, finished: Finished) -> Completion {
        let Finished {
            id,
            operation,
            done,
            outcome,
        } = finished;
        let unit = u64::from(self.geometry.block_bytes);
        let (block, length) = operation.place();
        let failed = Failed {
            offset: block.saturating_mul(unit),
            length,
            unit,
            confirmed: done,
        };
        let outcome = outcome.map_err(|failure| self.explain(failure, failed));
        Completion {
            id,
            operation,
            outcome,
        }
    }

    fn explain(&mut self, failure: Failure, failed: Failed) -> ClientError {
        self.failed |= failure.is_final();
        match &self.broken {
            Some(error) if failure.is_final() => {
                let same = io::Error::new(error.kind(), error.to_string());
                self.link.local(EXCHANGE, same, failed.confirmed)
            }
            _ => self.link.explain(failure, failed),
        }
    }
}

/// Readable when something has come. It may be another one after each call of
/// [`BlockClient::exchange`].
impl AsFd for BlockClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// The session makes room for others. If that gets lost, it does so after some seconds by itself.
impl Drop for BlockClient {
    fn drop(&mut self) {
        if let Some(farewell) = self.blocks.requester_mut().farewell(self.link.now()) {
            self.link.send_off(farewell);
        }
    }
}

impl fmt::Debug for BlockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockClient")
            .field("coordinates", &self.link.coordinates)
            .field("geometry", &self.geometry)
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}
