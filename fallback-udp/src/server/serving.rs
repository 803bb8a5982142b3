//! The way of one datagram through the server. Sockets and the proof of a cut both come through here.

use std::{net::IpAddr, sync::Arc};

use fabricbios_wire::DataHeader;

use super::{
    clock,
    entry::{Content, Entry},
    leases::Leases,
};
use crate::{Asked, Keys, Opened, open};

/// What is served.
#[derive(Debug)]
pub(super) struct Serving<C> {
    pub(super) leases: Leases<C>,
}

/// What a datagram gets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome<R> {
    /// Nothing.
    Nothing,
    /// An INVALID without a tag, if the sender has not had too many.
    Unauthenticated(DataHeader),
    /// What the lease made of it.
    Met(R),
}

impl<C> Default for Serving<C> {
    fn default() -> Self {
        Self {
            leases: Leases::default(),
        }
    }
}

impl<C: Content> Serving<C> {
    /// Brings a request to its lease. Looks at the clock itself, once nothing is waited for but the
    /// lease's desk: what came in a batch is not served by the time at which the batch was taken.
    pub(super) fn serve<R>(
        &self,
        datagram: &[u8],
        source: IpAddr,
        meet: impl FnOnce(&Arc<Entry<C>>, &Keys, Asked<'_>) -> Option<R>,
    ) -> Outcome<R> {
        let frame = match open(C::SERVICE, datagram) {
            Opened::Nothing => return Outcome::Nothing,
            Opened::Refused(header) => return Outcome::Unauthenticated(header),
            Opened::Frame(frame) => frame,
        };
        let entry = self.leases.find(frame.header.lease_id);
        let met = entry.and_then(|entry| {
            let keys = entry.keys();
            let asked = Asked {
                frame: &frame,
                source,
                now: clock::now(),
            };
            meet(&entry, &keys, asked)
        });
        met.map_or(Outcome::Unauthenticated(frame.header), Outcome::Met)
    }
}
