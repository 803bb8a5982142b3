//! The handler of an FBMU thread: it answers one datagram after the other.

use std::{io, sync::Arc};

use super::{
    batch::Exchange, bytes::Bytes, clock, counters::Counters, leases::Leases, responder::Responder,
    worker::Handler,
};
use crate::answer;

/// The handler of an FBMU thread.
pub(super) struct MemoryServer {
    leases: Arc<Leases<Bytes>>,
    responder: Responder,
}

impl MemoryServer {
    pub(super) fn new(leases: &Arc<Leases<Bytes>>, counters: &Arc<Counters>) -> io::Result<Self> {
        Ok(Self {
            leases: Arc::clone(leases),
            responder: Responder::new(counters)?,
        })
    }
}

impl Handler for MemoryServer {
    fn handle(&mut self, exchanges: &mut [Exchange]) {
        let leases = &self.leases;
        self.responder.answer(exchanges, |incoming| {
            leases.dispatch(
                incoming.datagram,
                incoming.source,
                |entry, keys, request| answer(&**entry, keys, request, incoming.reply).map(Some),
            )
        });
    }

    fn unsent(&mut self, replies: u64) {
        self.responder.counters.add_unsent(replies);
    }

    fn idle(&mut self) {
        self.leases.forget_old(clock::now());
    }
}
