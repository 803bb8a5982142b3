//! What a thread of FBMU does: it answers one datagram after the other.

use std::{io, sync::Arc};

use super::{
    batch::Letter, bytes::Bytes, clock, counters::Counters, front::Front, serving::Serving,
    worker::Clerk,
};
use crate::answer;

/// See the module.
pub(super) struct MemoryServer {
    serving: Arc<Serving<Bytes>>,
    front: Front,
}

impl MemoryServer {
    pub(super) fn new(serving: &Arc<Serving<Bytes>>, counters: &Arc<Counters>) -> io::Result<Self> {
        Ok(Self {
            serving: Arc::clone(serving),
            front: Front::new(counters)?,
        })
    }
}

impl Clerk for MemoryServer {
    fn handle(&mut self, letters: &mut [Letter]) {
        let serving = &self.serving;
        self.front.answer(letters, |guest| {
            serving.serve(guest.datagram, guest.source, |entry, keys, asked| {
                answer(&**entry, keys, asked, guest.reply).map(Some)
            })
        });
    }

    fn unsent(&mut self, replies: u64) {
        self.front.unsent(replies);
    }

    fn idle(&mut self) {
        self.serving.leases.forget_old(clock::now());
    }
}
