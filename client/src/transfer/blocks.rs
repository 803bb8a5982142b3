//! Reading and writing a lease of blocks without a device: over UDP.

use std::sync::{Arc, PoisonError};

use fabricbios_fallback_udp::{BlockClient, ClientError, Geometry};
use fabricbios_wire::NvmeofBinding;
use zeroize::Zeroizing;

use super::udp::{self, options};
use crate::{BlockLease, Error, connect_line, runtime, shared::Shared};

/// A connection to a lease's blocks.
pub(crate) type Connection = udp::Connection<BlockClient>;

impl BlockLease {
    /// What the node said about the blocks.
    pub fn geometry(&self) -> Result<Geometry, Error> {
        self.shared.blocks(|client| Ok(client.geometry()))
    }

    /// Reads whole blocks, as many bytes as `into` has, blocking. After an error some are new and some are
    /// not.
    pub fn read_blocks(&self, block: u64, into: &mut [u8]) -> Result<(), Error> {
        self.shared.blocks(|client| client.read(block, into))
    }

    /// Writes whole blocks, blocking: when this returns `Ok` the node has them, and
    /// [`BlockLease::flush`] makes them survive a power cut. After an error any of them may be written, each
    /// whole or not at all; the next call of this `BlockLease` sees to it that none is later.
    pub fn write_blocks(&self, block: u64, from: &[u8]) -> Result<(), Error> {
        self.shared.blocks(|client| client.write(block, from))
    }

    /// When this returns `Ok`, what was written before survives a power cut of the node. Blocking.
    /// [`Error::WritesLost`]: one came before that, and what was written since the last flush has to be written
    /// again.
    pub fn flush(&self) -> Result<(), Error> {
        self.shared.blocks(BlockClient::flush)
    }

    /// Reads `bytes` bytes: whole blocks.
    pub async fn read_blocks_async(&self, block: u64, bytes: usize) -> Result<Vec<u8>, Error> {
        let shared = Arc::clone(&self.shared);
        runtime::blocking(move || {
            let mut into = vec![0; bytes];
            shared.blocks(|client| client.read(block, &mut into))?;
            Ok(into)
        })
        .await
    }

    /// Writes all of `from`; see [`BlockLease::write_blocks`].
    pub async fn write_blocks_async(&self, block: u64, from: Vec<u8>) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        runtime::blocking(move || shared.blocks(|client| client.write(block, &from))).await
    }

    /// See [`BlockLease::flush`].
    pub async fn flush_async(&self) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        runtime::blocking(move || shared.blocks(BlockClient::flush)).await
    }

    /// A client of the caller's own, for many operations at once. It follows the lease's keys for as long as
    /// this lease is there.
    pub fn open_blocks(&self) -> Result<BlockClient, Error> {
        self.shared.check_not_lost()?;
        open(&self.shared).map(Connection::into_client)
    }

    /// Where it is had over NVMe-oF, as of the last answer.
    pub fn nvmeof(&self) -> Option<NvmeofBinding> {
        self.binding().nvmeof().cloned()
    }

    /// The command that connects it over NVMe-oF; see [`connect_line()`].
    pub fn connect_line(&self) -> Option<Zeroizing<String>> {
        connect_line(&self.nvmeof()?)
    }
}

impl Shared {
    /// One call at a time: those from several threads take turns.
    fn blocks<R>(
        &self,
        call: impl FnOnce(&mut BlockClient) -> Result<R, ClientError>,
    ) -> Result<R, Error> {
        self.check_not_lost()?;
        let mut channel = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = options(self.transfers());
        if let Some(open) = channel.as_mut().filter(|open| open.options != wanted) {
            // Any answer to this client says that nothing of an earlier write is done later. No other client could find out
            // that a write was lost.
            if open.is_unsettled() || !open.client().is_flushed() {
                open.call(self, true, BlockClient::flush)?;
            }
            *channel = None;
        }
        let open = match &mut *channel {
            Some(open) => open,
            none => none.insert(open(self)?),
        };
        // Any call counts as a change.
        open.call(self, true, call)
    }
}

fn open(shared: &Shared) -> Result<Connection, Error> {
    let connect = BlockClient::connect_with_refresh;
    Connection::with(shared, connect, BlockClient::set_coordinates)
}
