//! The way of one datagram through the server. Sockets and the proof of a cut both come through here.

use std::net::IpAddr;

use fabricbios_wire::{DataHeader, DataService};

use super::{clock, leases::Leases};
use crate::{Asked, Opened, Reply, ReplyBuffer, answer, open};

/// What is served.
#[derive(Debug, Default)]
pub(super) struct Serving {
    pub(super) leases: Leases,
}

/// What a datagram gets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing.
    Nothing,
    /// An INVALID without a tag, if the sender has not had too many.
    Unauthenticated(DataHeader),
    /// What is in the buffer.
    Reply(Reply),
}

impl Serving {
    /// Looks at the clock itself, once nothing is waited for but the lease's desk: what came in a batch
    /// is not served by the time at which the batch was taken.
    pub(super) fn serve(
        &self,
        datagram: &[u8],
        source: IpAddr,
        reply: &mut ReplyBuffer,
    ) -> Outcome {
        let frame = match open(DataService::Memory, datagram) {
            Opened::Nothing => return Outcome::Nothing,
            Opened::Refused(header) => return Outcome::Unauthenticated(header),
            Opened::Frame(frame) => frame,
        };
        let entry = self.leases.find(frame.header.lease_id);
        let answered = entry.and_then(|entry| {
            let keys = entry.keys();
            let asked = Asked {
                frame: &frame,
                source,
                now: clock::now(),
            };
            answer(&*entry, &keys, asked, reply)
        });
        answered.map_or(Outcome::Unauthenticated(frame.header), Outcome::Reply)
    }
}
