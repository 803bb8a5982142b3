//! Reads and writes a lease of blocks over UDP, without a block device.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use fabricbios_fallback_udp::{BlockClient, ClientError, ClientOptions, Geometry};
use fabricbios_wire::NvmeofBinding;
use zeroize::Zeroizing;

use super::udp::{self, options};
#[cfg(doc)]
use crate::Transfers;
use crate::{BlockLease, Error, connect_line, runtime, shared::SharedLease};

/// A connection to a lease's blocks.
pub(crate) type BlockChannel = udp::UdpConnection<BlockClient>;

impl BlockLease {
    /// Number and size of the blocks.
    pub fn geometry(&self) -> Result<Geometry, Error> {
        self.shared.blocks(|client| Ok(client.geometry()))
    }

    /// Fills `into` with whole blocks, blocking. After an error only some blocks may have been read.
    pub fn read_blocks(&self, block: u64, into: &mut [u8]) -> Result<(), Error> {
        self.shared.blocks(|client| client.read(block, into))
    }

    /// Writes whole blocks, blocking. After `Ok` the node has them, and [`BlockLease::flush`] makes them durable. After
    /// an error any block may have been written, each completely or not at all; the next call of this `BlockLease` makes
    /// sure that none is written later.
    pub fn write_blocks(&self, block: u64, from: &[u8]) -> Result<(), Error> {
        self.shared.blocks(|client| client.write(block, from))
    }

    /// Makes all earlier writes durable, blocking: after `Ok` they survive a power cut of the node.
    ///
    /// # Errors
    /// [`Error::WritesLost`] if the machine of the node has restarted, and the writes since the last flush must be repeated.
    pub fn flush(&self) -> Result<(), Error> {
        self.shared.blocks(BlockClient::flush)
    }

    /// Reads `bytes` bytes, a multiple of the block size.
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

    /// Makes all earlier writes durable; see [`BlockLease::flush`].
    ///
    /// # Errors
    /// See [`BlockLease::flush`].
    pub async fn flush_async(&self) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        runtime::blocking(move || shared.blocks(BlockClient::flush)).await
    }

    /// Opens another client of the blocks, for many operations at once. It waits as long as [`Transfers::give_up`]
    /// says, even for a daemon that has ended, and follows the keys of the lease until this handle is dropped.
    pub fn open_blocks(&self) -> Result<BlockClient, Error> {
        self.shared.check_not_lost()?;
        let options = options(self.shared.transfers(), Duration::MAX);
        open(&self.shared, options).map(BlockChannel::into_client)
    }

    /// The NVMe-oF coordinates in the last answer.
    pub fn nvmeof(&self) -> Option<NvmeofBinding> {
        self.binding().nvmeof().cloned()
    }

    /// The command that connects the lease over NVMe-oF; see [`connect_line()`].
    pub fn connect_line(&self) -> Option<Zeroizing<String>> {
        connect_line(&self.nvmeof()?)
    }
}

impl SharedLease {
    /// Makes one call. Calls from several threads take turns.
    fn blocks<R>(
        &self,
        call: impl FnOnce(&mut BlockClient) -> Result<R, ClientError>,
    ) -> Result<R, Error> {
        self.check_not_lost()?;
        let mut channel = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = options(self.transfers(), self.patience());
        if let Some(open) = channel.as_mut().filter(|open| open.options != wanted) {
            // Any answer to this client shows that no earlier write takes effect later. Only this client can find out that a
            // write was lost.
            if open.is_unsettled() || !open.client().is_flushed() {
                open.call(self, true, BlockClient::flush)?;
            }
            *channel = None;
        }
        let open = match &mut *channel {
            Some(open) => open,
            none => none.insert(open(self, wanted)?),
        };
        // Any call counts as a change.
        open.call(self, true, call)
    }
}

fn open(shared: &SharedLease, options: ClientOptions) -> Result<BlockChannel, Error> {
    let connect = BlockClient::connect;
    BlockChannel::with(shared, options, connect, BlockClient::set_coordinates)
}
