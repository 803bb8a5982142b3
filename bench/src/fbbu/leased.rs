//! A served block lease and its client.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use fabricbios_contract::{DataPath as _, Volume};
use fabricbios_fallback_udp::{
    BlockClient, ClientOptions, Coordinates, FbbuConfig, FbbuPath, transfer::Operation,
};
use fabricbios_lease::{BindingId, BootTime};
use fabricbios_wire::{Generation, LeaseId, ResourceId};

use super::{BLOCK, BLOCK_BYTES, IN_FLIGHT, Way};

/// See the module.
pub(super) struct Leased {
    client: BlockClient,
    /// Serves the lease until it is dropped.
    _backend: FbbuPath,
}

impl Leased {
    pub(super) fn open(path: &Path, bytes: u64) -> anyhow::Result<Self> {
        let backend = FbbuPath::open(&FbbuConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            workers: Some(1),
            ops_per_second: u32::MAX,
            half_sent_max: FbbuConfig::HALF_SENT_MAX,
            write_verifier: 1,
        })?;
        let binding_id = BindingId {
            lease_id: LeaseId(7),
            generation: Generation(1),
            resource_id: ResourceId(1),
        };
        let file = Volume {
            path: path.into(),
            bytes,
            block_bytes: BLOCK_BYTES,
            read_only: false,
        };
        let binding = backend
            .serve(binding_id, "bench", &file)
            .map_err(|error| anyhow!("{error:?}"))?;
        backend.extend(binding_id, BootTime(u64::MAX))?;
        let coordinates = Coordinates {
            lease_id: binding_id.lease_id,
            dp_key: binding.dp_key.context("a binding without key")?,
            endpoint: backend.local_addr(),
        };
        Ok(Self {
            client: BlockClient::connect(coordinates, ClientOptions::default(), None)?,
            _backend: backend,
        })
    }

    pub(super) fn write(&mut self, block: u64, from: &[u8]) -> anyhow::Result<()> {
        Ok(self.client.write(block, from)?)
    }

    /// Reads or writes each of the blocks.
    pub(super) fn round(&mut self, way: Way, blocks: &[u64]) -> anyhow::Result<Duration> {
        let mut blocks = blocks.iter().copied();
        let start = Instant::now();
        for block in blocks.by_ref().take(IN_FLIGHT) {
            let bytes = vec![0x5A; BLOCK];
            self.client.submit(operation(way, block, bytes));
        }
        while let Some(completion) = self.client.wait() {
            completion.outcome?;
            if let Some(block) = blocks.next() {
                let bytes = bytes_of(completion.operation);
                self.client.submit(operation(way, block, bytes));
            }
        }
        Ok(start.elapsed())
    }
}

fn operation(way: Way, block: u64, bytes: Vec<u8>) -> Operation {
    match way {
        Way::Read => Operation::Read { block, into: bytes },
        Way::Write => Operation::Write { block, from: bytes },
    }
}

fn bytes_of(operation: Operation) -> Vec<u8> {
    match operation {
        Operation::Read { into: bytes, .. } | Operation::Write { from: bytes, .. } => bytes,
        Operation::Open | Operation::Flush => Vec::new(),
    }
}
