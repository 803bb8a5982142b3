//! The client for blocks.

use core::fmt;
use std::{
    boxed::Box,
    io,
    os::fd::{AsFd, BorrowedFd},
    string::ToString,
    time::Duration,
};

use super::{ClientError, ClientOptions, Coordinates, Failed, Refresh, link::Link, open};
use crate::transfer::{Blocks, Driven, Failure, Finished, Operation, Statistics};

/// Most datagrams received before datagrams are sent again.
const TAKEN_MAX: usize = 256;

/// Size and properties of a lease of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of a block in bytes: a power of two from 512 to 4,096.
    pub block_bytes: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// A finished operation.
#[derive(Debug)]
pub struct Completion {
    /// The id from [`BlockClient::submit`].
    pub id: u64,
    /// The operation with its bytes.
    pub operation: Operation,
    /// The result.
    pub outcome: Result<(), ClientError>,
}

/// A lease's blocks over UDP. [`read`](Self::read), [`write`](Self::write) and [`flush`](Self::flush) block; with
/// [`submit`](Self::submit) many operations run at once. If two operations touch the same block and one of them writes,
/// the later one begins after the earlier one.
///
/// A program that waits for other things too waits until the descriptor is readable or
/// [`next_timeout`](Self::next_timeout) has passed, calls [`exchange`](Self::exchange), and takes the results of
/// [`next_completion`](Self::next_completion).
pub struct BlockClient {
    link: Link,
    blocks: Blocks,
    geometry: Geometry,
    /// Whether the route was checked for the unfinished operations.
    begun: bool,
    /// Whether operations were submitted since the last attempt to send.
    unsent: bool,
    /// The system call that failed.
    broken: Option<io::Error>,
}

impl BlockClient {
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
            blocks: Blocks::new(setup),
            geometry: Geometry {
                block_bytes: 1,
                blocks: 0,
                read_only: true,
            },
            begun: false,
            unsent: false,
            broken: None,
        };
        client.run(Operation::Open)?;
        Ok(client)
    }

    /// Size and properties of the lease.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Fills `into` with whole blocks. After an error only some of them may have been read.
    ///
    /// # Errors
    /// See [`ClientError`].
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

    /// Writes whole blocks. After `Ok` the node has them, and [`flush`](Self::flush) makes them survive a power cut.
    /// After an error any of them may be written, each whole or not at all.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn write(&mut self, block: u64, from: &[u8]) -> Result<(), ClientError> {
        let from = from.to_vec();
        self.run(Operation::Write { block, from }).map(drop)
    }

    /// After `Ok` all earlier writes survive a power cut of the node.
    ///
    /// # Errors
    /// [`ClientError::WritesLost`]: the node has rebooted, and the writes since the last flush may be lost. This is
    /// reported once; blocks that are written again and flushed are safe. Other errors: see [`ClientError`].
    pub fn flush(&mut self) -> Result<(), ClientError> {
        self.run(Operation::Flush).map(drop)
    }

    /// Whether all writes already survive a power cut and no loss is to be reported, so that a flush is not needed.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.blocks.is_flushed()
    }

    /// Submits an operation and returns its id. Nothing is sent before the next [`exchange`](Self::exchange), which is
    /// then due at once. The caller limits the number of operations.
    pub fn submit(&mut self, operation: Operation) -> u64 {
        if self.blocks.unfinished() == 0 {
            self.begun = false;
        }
        self.unsent = true;
        self.blocks.submit(operation, self.link.now())
    }

    /// Number of unfinished operations.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.blocks.unfinished()
    }

    /// Sends and receives datagrams without blocking. Only a call of [`Refresh`], when nothing answers, may block.
    pub fn exchange(&mut self) {
        self.turn(false);
    }

    /// Time until the next [`exchange`](Self::exchange) if no datagram arrives; `None`: there is nothing to wait for.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        let patience = || match self.unsent {
            true => Duration::ZERO,
            false => self.link.patience(&self.blocks),
        };
        self.blocks.next_timeout().map(|_| patience())
    }

    /// The next finished operation.
    pub fn next_completion(&mut self) -> Option<Completion> {
        let finished = self.blocks.next_finished()?;
        Some(self.complete(finished))
    }

    /// Waits until an operation has finished; `None`: there is no unfinished operation.
    pub fn wait(&mut self) -> Option<Completion> {
        loop {
            if let Some(completion) = self.next_completion() {
                return Some(completion);
            }
            self.next_timeout()?;
            self.turn(true);
        }
    }

    /// Sets the coordinates, as [`super::MemoryClient::set_coordinates`].
    pub fn set_coordinates(&mut self, coordinates: Coordinates) {
        let requester = self.blocks.requester_mut();
        if self.link.set_coordinates(requester, coordinates) {
            self.begun = false;
            self.unsent = true;
        }
    }

    /// The coordinates in use.
    #[must_use]
    pub fn coordinates(&self) -> &Coordinates {
        &self.link.coordinates
    }

    /// Path MTU in bytes, IP header included; `None`: it is being measured again.
    #[must_use]
    pub fn path_mtu(&self) -> Option<usize> {
        self.blocks.requester().path_mtu()
    }

    /// The statistics.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.blocks.requester().statistics()
    }

    /// Runs one operation to its end. Other operations that finish meanwhile stay for [`Self::next_completion`].
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
        // Some operations ended without a reply.
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
        if self.blocks.unfinished() > 0
            && let Some(failure) = self.link.ask(&mut self.blocks)?
        {
            self.blocks.give_up(failure);
        }
        self.link.send(&mut self.blocks)
    }

    /// Checks the route before the first datagram.
    fn begin(&mut self) -> io::Result<()> {
        self.link.recover(&mut self.blocks)?;
        if !core::mem::replace(&mut self.begun, true) {
            self.broken = None;
            self.link.begin(&mut self.blocks)?;
        }
        Ok(())
    }

    fn look_at_lease(&mut self) {
        if let Some(parameters) = self.blocks.requester().session_parameters() {
            self.geometry = Geometry {
                block_bytes: parameters.unit,
                blocks: parameters.resource_len,
                read_only: parameters.read_only,
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
        let place = operation.place();
        let failed = Failed {
            offset: place.first.saturating_mul(unit),
            length: place.bytes,
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
        self.link.failed |= failure.is_final();
        match &self.broken {
            Some(error) if failure.is_final() => {
                let same = io::Error::new(error.kind(), error.to_string());
                self.link.local(same, failed.confirmed)
            }
            _ => self.link.explain(failure, failed),
        }
    }
}

/// The socket: readable when a datagram has come. Each call of [`BlockClient::exchange`] may replace it.
impl AsFd for BlockClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// Closes the session, so that the server has room for another one. If the datagram gets lost, the server replaces the
/// session after some seconds anyway.
impl Drop for BlockClient {
    fn drop(&mut self) {
        if let Some(hello) = self.blocks.requester_mut().close_session(self.link.now()) {
            self.link.send_off(hello);
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
