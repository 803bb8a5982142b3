//! What all services do alike with a batch: answer those who have no key, few of them, and count.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use super::{
    batch::Letter,
    calls::Envelope,
    clock,
    counters::{Counters, Tally},
    serving::Outcome,
};
use crate::{Reply, ReplyBuffer, Sources, unauthenticated};

/// See the module.
pub(super) struct Front {
    counters: Arc<Counters>,
    sources: Sources,
}

/// One datagram, who sent it, and room for the reply to it.
pub(super) struct Guest<'a> {
    pub(super) datagram: &'a [u8],
    pub(super) source: IpAddr,
    pub(super) envelope: &'a Envelope,
    pub(super) reply: &'a mut ReplyBuffer,
}

impl Front {
    pub(super) fn new(counters: &Arc<Counters>) -> io::Result<Self> {
        let seed = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self {
            counters: Arc::clone(counters),
            sources: Sources::new(seed),
        })
    }

    /// Has each served; `Met(None)`: it is answered later. Counted before anything is sent: who has a
    /// reply finds it counted.
    pub(super) fn answer(
        &mut self,
        letters: &mut [Letter],
        mut serve: impl FnMut(Guest<'_>) -> Outcome<Option<Reply>>,
    ) {
        let received = clock::now();
        let mut tally = Tally {
            received: letters.len() as u64,
            ..Tally::default()
        };
        for letter in letters {
            let length = self.answer_one(letter, received, &mut tally, &mut serve);
            letter.answer(length);
        }
        self.counters.add(&tally);
    }

    /// Replies that were late.
    pub(super) fn count(&self, tally: &Tally) {
        self.counters.add(tally);
    }

    pub(super) fn unsent(&self, replies: u64) {
        self.counters.add_unsent(replies);
    }

    /// The length of the reply; 0: none.
    fn answer_one(
        &mut self,
        letter: &mut Letter,
        received: Duration,
        tally: &mut Tally,
        serve: &mut impl FnMut(Guest<'_>) -> Outcome<Option<Reply>>,
    ) -> usize {
        let Some(source) = letter.source() else {
            tally.dropped += 1;
            return 0;
        };
        match serve(letter.guest(source)) {
            Outcome::Met(Some(reply)) => {
                tally.answered[reply.status as usize] += 1;
                reply.length
            }
            Outcome::Met(None) => 0,
            Outcome::Unauthenticated(header) if self.sources.take(source, received) => {
                tally.unauthenticated += 1;
                unauthenticated(&header, letter.guest(source).reply)
            }
            Outcome::Unauthenticated(_) | Outcome::Nothing => {
                tally.dropped += 1;
                0
            }
        }
    }
}
