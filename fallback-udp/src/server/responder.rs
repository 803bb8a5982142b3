//! The part of answering a batch that all services share: limited replies to senders without a key, and counting.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use super::{
    batch::Exchange,
    clock,
    counters::{Counters, Tally},
    serving::Outcome,
};
use crate::{Reply, ReplyBuffer, Sources, calls::Addresses, unauthenticated};

/// Answers the datagrams of one thread.
pub(super) struct Responder {
    pub(super) counters: Arc<Counters>,
    sources: Sources,
}

/// One datagram, its source, and room for the reply.
pub(super) struct Incoming<'a> {
    pub(super) datagram: &'a [u8],
    pub(super) source: IpAddr,
    pub(super) addresses: &'a Addresses,
    pub(super) reply: &'a mut ReplyBuffer,
}

impl Responder {
    pub(super) fn new(counters: &Arc<Counters>) -> io::Result<Self> {
        let seed = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self {
            counters: Arc::clone(counters),
            sources: Sources::new(seed),
        })
    }

    /// Answers each datagram of a batch by `serve`; `Handled(None)`: its reply comes later. Replies are counted before
    /// they are sent, so a client that has a reply finds it counted.
    pub(super) fn answer(
        &mut self,
        exchanges: &mut [Exchange],
        mut serve: impl FnMut(Incoming<'_>) -> Outcome<Option<Reply>>,
    ) {
        let received = clock::now();
        let mut tally = Tally {
            received: exchanges.len() as u64,
            ..Tally::default()
        };
        for exchange in exchanges {
            tally.received_bytes += exchange.length() as u64;
            let length = self.answer_one(exchange, received, &mut tally, &mut serve);
            tally.sent_bytes += length as u64;
            exchange.answer(length);
        }
        self.counters.add(&tally);
    }

    /// Answers one datagram and returns the length of the reply; 0: no reply.
    fn answer_one(
        &mut self,
        exchange: &mut Exchange,
        received: Duration,
        tally: &mut Tally,
        serve: &mut impl FnMut(Incoming<'_>) -> Outcome<Option<Reply>>,
    ) -> usize {
        let Some(source) = exchange.source() else {
            tally.dropped += 1;
            return 0;
        };
        match serve(exchange.incoming(source)) {
            Outcome::Handled(Some(reply)) => {
                tally.answered[reply.status as usize] += 1;
                reply.length
            }
            Outcome::Handled(None) => 0,
            Outcome::Unauthenticated(header) if self.sources.take(source, received) => {
                tally.unauthenticated += 1;
                unauthenticated(&header, exchange.incoming(source).reply)
            }
            Outcome::Unauthenticated(_) | Outcome::Nothing => {
                tally.dropped += 1;
                0
            }
        }
    }
}
