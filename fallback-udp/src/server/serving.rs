//! The way of one datagram through the server. Sockets and the proof of a cut both come through here.

use std::{net::IpAddr, time::Duration};

use fabricbios_wire::{DataHeader, DataService};

use super::leases::Leases;
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
    pub(super) fn serve(
        &self,
        datagram: &[u8],
        source: IpAddr,
        now: Duration,
        reply: &mut ReplyBuffer,
    ) -> Outcome {
        let frame = match open(DataService::Memory, datagram) {
            Opened::Nothing => return Outcome::Nothing,
            Opened::Refused(header) => return Outcome::Unauthenticated(header),
            Opened::Frame(frame) => frame,
        };
        let asked = Asked {
            frame: &frame,
            source,
            now,
        };
        let entry = self.leases.find(frame.header.lease_id);
        let answered = entry.and_then(|entry| answer(&*entry, &entry.keys(), asked, reply));
        answered.map_or(Outcome::Unauthenticated(frame.header), Outcome::Reply)
    }
}
