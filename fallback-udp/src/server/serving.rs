//! The way of one datagram to its lease. Datagrams from sockets and the PING that proves a cut both go this way.

use std::{net::IpAddr, sync::Arc};

use fabricbios_wire::DataHeader;

use super::{
    clock,
    entry::{Content, Entry},
    leases::Leases,
};
use crate::{Keys, Opened, Request, open};

/// The result of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome<R> {
    /// No reply.
    Nothing,
    /// An INVALID reply without a tag, if the rate limit of the sender allows it.
    Unauthenticated(DataHeader),
    /// The lease has handled the request.
    Handled(R),
}

impl<C: Content> Leases<C> {
    /// Finds the lease of a request and lets `handle` answer it. The clock is read here for each request, after all
    /// waiting except that for the session lock, and not once for a whole batch: no request is served by an old time.
    pub(super) fn dispatch<R>(
        &self,
        datagram: &[u8],
        source: IpAddr,
        handle: impl FnOnce(&Arc<Entry<C>>, &Keys, Request<'_>) -> Option<R>,
    ) -> Outcome<R> {
        let frame = match open(C::SERVICE, datagram) {
            Opened::Nothing => return Outcome::Nothing,
            Opened::Refused(header) => return Outcome::Unauthenticated(header),
            Opened::Frame(frame) => frame,
        };
        let entry = self.find(frame.header.lease_id);
        let handled = entry.and_then(|entry| {
            let keys = entry.keys();
            let request = Request {
                frame: &frame,
                source,
                now: clock::now(),
            };
            handle(&entry, &keys, request)
        });
        handled.map_or(Outcome::Unauthenticated(frame.header), Outcome::Handled)
    }
}
