//! `block read` and `block write`: whole blocks over UDP, without a device and without root.

use fabricbios_client::{BlockLease, DataTransport, Error, Geometry, Node};
use fabricbios_wire::{Binding, LeaseId, Transport};

use super::super::stream::{self, Store};
use crate::{args::BlockPlace, failure::Failure, output::Output};

pub(super) fn read(
    node: &Node,
    place: &BlockPlace,
    len: Option<u64>,
    output: Output,
) -> Result<(), Failure> {
    with_blocks(node, place, |blocks| {
        stream::read(blocks, place.offset, len, output)
    })
}

pub(super) fn write(node: &Node, place: &BlockPlace, output: Output) -> Result<(), Failure> {
    with_blocks(node, place, |blocks| {
        stream::write(blocks, place.offset, output)
    })
}

/// A lease with its geometry.
struct Blocks {
    lease: BlockLease,
    geometry: Geometry,
}

/// A failure names the lease.
fn with_blocks(
    node: &Node,
    place: &BlockPlace,
    work: impl FnOnce(&Blocks) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let named = |failure: Failure| failure.at(&format!("lease {}", place.id));
    open(node, place)
        .and_then(|blocks| work(&blocks))
        .map_err(named)
}

fn open(node: &Node, place: &BlockPlace) -> Result<Blocks, Failure> {
    let lease = BlockLease::open(node, place.id)?;
    check_transport(&lease)?;
    lease.set_transfers(stream::transfers(place.payload_mac, node.patience()));
    let geometry = lease.geometry()?;
    Ok(Blocks { lease, geometry })
}

/// Refuses a lease without UDP. A LEASE_BIND for the missing UDP coordinates would change the keys of the other
/// coordinates.
fn check_transport(lease: &BlockLease) -> Result<(), Failure> {
    let info = lease.info();
    let Binding {
        dp_key,
        udp_endpoint,
        ..
    } = &info.binding;
    let lacks_udp = dp_key.is_none() || udp_endpoint.is_none();
    match info.effective.transport {
        Some(transport @ (Transport::NvmeTcp | Transport::NvmeRdma)) if lacks_udp => {
            Err(Failure::usage(format!(
                "its only transport is {transport}; use `fabricctl block attach {}`, or ask for a lease with \
                 --transport udp or both",
                info.lease_id
            )))
        }
        _ => Ok(()),
    }
}

impl Blocks {
    fn block(&self, offset: u64) -> u64 {
        offset / self.unit()
    }
}

impl Store for Blocks {
    fn lease_id(&self) -> LeaseId {
        self.lease.lease_id()
    }

    fn unit(&self) -> u64 {
        self.geometry.block_bytes.into()
    }

    fn bytes(&self) -> u64 {
        self.geometry.blocks.saturating_mul(self.unit())
    }

    fn transport(&self) -> Option<DataTransport> {
        Some(DataTransport::Udp)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.lease.read_blocks(self.block(offset), into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.lease.write_blocks(self.block(offset), from)
    }

    fn finish(&self) -> Result<(), Error> {
        self.lease.flush()
    }

    fn unfinished(&self) -> Option<&'static str> {
        Some("what was written was not flushed: a power cut of the node may lose it")
    }
}
