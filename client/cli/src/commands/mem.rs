//! `mem read` and `mem write`: copies bytes of a lease to standard output, or from standard input.

use fabricbios_client::{DataTransport, Error, MemLease, Node};
use fabricbios_wire::LeaseId;

use super::stream::{self, Store};
use crate::{
    args::{Mem, Place},
    failure::Failure,
    output::Output,
};

pub(super) fn run(node: &Node, command: Mem, output: Output) -> Result<(), Failure> {
    match command {
        Mem::Read { place, len } => with_lease(node, &place, |lease| {
            stream::read(lease, place.offset, len, output)
        }),
        Mem::Write { place } => with_lease(node, &place, |lease| {
            stream::write(lease, place.offset, output)
        }),
    }
}

/// Opens the lease and does `work`; a failure names the lease.
fn with_lease(
    node: &Node,
    place: &Place,
    work: impl FnOnce(&MemLease) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let named = |failure: Failure| failure.at(&format!("lease {}", place.id));
    let lease = MemLease::open(node, place.id).map_err(|error| named(error.into()))?;
    let transfers = stream::transfers(place.payload_mac, node.patience());
    lease.set_transfers(match place.transport.0 {
        Some(transport) => transfers.transport(transport),
        None => transfers,
    });
    work(&lease).map_err(named)
}

impl Store for MemLease {
    fn lease_id(&self) -> LeaseId {
        Self::lease_id(self)
    }

    fn unit(&self) -> u64 {
        1
    }

    fn bytes(&self) -> u64 {
        let info = self.info();
        let limits = info.binding.limits;
        limits.map_or(info.capacity, |limits| limits.length)
    }

    fn transport(&self) -> Option<DataTransport> {
        Self::transport(self)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        Self::read(self, offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        Self::write(self, offset, from)
    }

    /// Written bytes are in memory already.
    fn finish(&self) -> Result<(), Error> {
        Ok(())
    }

    fn unfinished(&self) -> Option<&'static str> {
        None
    }
}
