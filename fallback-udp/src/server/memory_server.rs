//! The handler of an FBMU thread: it answers one datagram after the other.

use std::{io, sync::Arc};

use super::{
    batch::Exchange, bytes::Bytes, clock, counters::Counters, responder::Responder,
    serving::Serving, worker::Handler,
};
use crate::answer;

/// The handler of an FBMU thread.
pub(super) struct MemoryServer {
    serving: Arc<Serving<Bytes>>,
    responder: Responder,
}

impl MemoryServer {
    pub(super) fn new(serving: &Arc<Serving<Bytes>>, counters: &Arc<Counters>) -> io::Result<Self> {
        Ok(Self {
            serving: Arc::clone(serving),
            responder: Responder::new(counters)?,
        })
    }
}

impl Handler for MemoryServer {
    fn handle(&mut self, exchanges: &mut [Exchange]) {
        let serving = &self.serving;
        self.responder.answer(exchanges, |incoming| {
            serving.serve(
                incoming.datagram,
                incoming.source,
                |entry, keys, request| answer(&**entry, keys, request, incoming.reply).map(Some),
            )
        });
    }

    fn unsent(&mut self, replies: u64) {
        self.responder.unsent(replies);
    }

    fn idle(&mut self) {
        self.serving.leases.forget_old(clock::now());
    }
}
