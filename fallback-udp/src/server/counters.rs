//! Counters of datagrams, for metrics and tests.

use std::sync::atomic::{AtomicU64, Ordering};

use fabricbios_wire::DataStatus;

/// Statuses of replies.
pub const STATUSES: usize = DataStatus::Io as usize + 1;

/// Counters since the start, shared by all threads.
#[derive(Debug, Default)]
pub struct Counters {
    received: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    answered: [AtomicU64; STATUSES],
    unauthenticated: AtomicU64,
    dropped: AtomicU64,
    unsent: AtomicU64,
}

/// A snapshot of the counters, or the counts of one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Datagrams received.
    pub received: u64,
    /// Bytes of these datagrams.
    pub received_bytes: u64,
    /// Bytes of the replies.
    pub sent_bytes: u64,
    /// Replies with a valid tag, indexed by status.
    pub answered: [u64; STATUSES],
    /// INVALID replies without a tag.
    pub unauthenticated: u64,
    /// Datagrams that got no reply: not for this service, or too many from one address.
    pub dropped: u64,
    /// Replies that the system refused to send.
    pub unsent: u64,
}

impl Counters {
    /// A snapshot of the counters.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Tally {
            received: get(&self.received),
            received_bytes: get(&self.received_bytes),
            sent_bytes: get(&self.sent_bytes),
            answered: std::array::from_fn(|status| get(&self.answered[status])),
            unauthenticated: get(&self.unauthenticated),
            dropped: get(&self.dropped),
            unsent: get(&self.unsent),
        }
    }

    pub(super) fn add(&self, tally: &Tally) {
        let add = |count: &AtomicU64, more: u64| {
            if more > 0 {
                count.fetch_add(more, Ordering::Relaxed);
            }
        };
        add(&self.received, tally.received);
        add(&self.received_bytes, tally.received_bytes);
        add(&self.sent_bytes, tally.sent_bytes);
        for (count, more) in self.answered.iter().zip(tally.answered) {
            add(count, more);
        }
        add(&self.unauthenticated, tally.unauthenticated);
        add(&self.dropped, tally.dropped);
    }

    pub(super) fn add_unsent(&self, more: u64) {
        self.unsent.fetch_add(more, Ordering::Relaxed);
    }
}
