//! The outstanding requests, in the order in which they were last sent.

use alloc::collections::VecDeque;
use core::{ops::RangeInclusive, time::Duration};

use fabricbios_wire::{DATA_OVERHEAD, DataHeader, Part, data_flags};

use super::piece::Piece;
use crate::DataKey;

/// A request counts as lost after this many replies to later requests (as three duplicate ACKs of TCP).
const PASSED_MAX: u8 = 3;

/// One outstanding request. Its header and tag are kept, so a retry is the same datagram.
#[derive(Debug)]
pub(super) struct Outstanding {
    pub(super) header: DataHeader,
    pub(super) prefix: [u8; DATA_OVERHEAD],
    pub(super) piece: Piece,
    /// Number of its last transmission.
    pub(super) transmission: u64,
    pub(super) sent: Duration,
    /// Time at which it counts as lost.
    pub(super) due: Duration,
    /// Retries.
    pub(super) tries: u32,
    /// Time-outs in a row.
    pub(super) silent: u32,
    passed: u8,
    /// Whether it is lost and waits to be sent again.
    pub(super) lost: bool,
}

impl Outstanding {
    pub(super) fn new(header: DataHeader, key: &DataKey, payload: &[u8], piece: Piece) -> Self {
        Self {
            header,
            prefix: key.seal(header, payload),
            piece,
            transmission: 0,
            sent: Duration::ZERO,
            due: Duration::ZERO,
            tries: 0,
            silent: 0,
            passed: 0,
            lost: false,
        }
    }

    /// The smallest counter that must stay in the window of the server: for a part, the counter of the first part of
    /// the block.
    fn oldest_counter(&self) -> u32 {
        let index = self.piece.part.map_or(0, Part::index);
        self.header.counter().saturating_sub(index.into())
    }
}

/// Whether `reply` can be the answer to `request` (section 7); the tag is not checked here.
pub(super) fn answers(reply: &DataHeader, request: &DataHeader) -> bool {
    reply.flags == request.flags | data_flags::REPLY
        && (reply.service, reply.op, reply.lease_id)
            == (request.service, request.op, request.lease_id)
        && (reply.nonce, reply.offset, reply.length)
            == (request.nonce, request.offset, request.length)
        && reply.reserved == request.reserved
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    sent: VecDeque<Outstanding>,
    lost: usize,
    /// A lower bound of the outstanding counters.
    floor: u32,
    /// A lower bound of the times at which requests are due.
    due: Duration,
    /// Number of the next transmission.
    pub(super) next: u64,
}

impl Requests {
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.sent.len() - self.lost
    }

    /// Whether an outstanding request belongs to this operation.
    pub(super) fn has(&self, operation: u64) -> bool {
        self.sent
            .iter()
            .any(|request| request.piece.operation == operation)
    }

    /// The time at which the next request counts as lost.
    pub(super) fn due(&self) -> Option<Duration> {
        let waiting = self.sent.iter().filter(|request| !request.lost);
        waiting.map(|request| request.due).min()
    }

    /// Whether requests with these counters may be sent now: every outstanding request must stay within the window of the
    /// server, since a request that falls out of it is never answered.
    pub(super) fn within(&mut self, counters: RangeInclusive<u32>, window: u32) -> bool {
        let (first, last) = counters.into_inner();
        if last.saturating_sub(self.floor) >= window {
            let oldest = self.sent.iter().map(Outstanding::oldest_counter);
            self.floor = oldest.min().unwrap_or(first);
        }
        last.saturating_sub(self.floor) < window
    }

    /// Records that a request is sent now and counts as lost at `due`.
    pub(super) fn send(
        &mut self,
        mut request: Outstanding,
        now: Duration,
        due: Duration,
    ) -> &Outstanding {
        request.transmission = self.next;
        request.sent = now;
        request.due = due;
        request.passed = 0;
        request.lost = false;
        self.next += 1;
        self.due = self.due.min(due);
        let at = self.sent.len();
        self.sent.push_back(request);
        &self.sent[at]
    }

    /// Removes the first request that has to be sent again.
    pub(super) fn take_lost(&mut self) -> Option<Outstanding> {
        if self.lost == 0 {
            return None;
        }
        let at = self.sent.iter().position(|request| request.lost)?;
        self.lost -= 1;
        self.sent.remove(at)
    }

    /// Index of the request that `reply` answers.
    pub(super) fn find(&self, reply: &DataHeader) -> Option<usize> {
        self.sent
            .iter()
            .position(|request| answers(reply, &request.header))
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Outstanding> {
        self.sent.get_mut(at)
    }

    /// Sets the time at which request `at` is sent again.
    pub(super) fn postpone(&mut self, at: usize, due: Duration) {
        if let Some(request) = self.sent.get_mut(at) {
            request.due = due;
            self.due = self.due.min(due);
        }
    }

    /// Removes an answered request.
    pub(super) fn take(&mut self, at: usize) -> Option<Outstanding> {
        let request = self.sent.remove(at)?;
        self.lost -= usize::from(request.lost);
        Some(request)
    }

    /// Request `at` was answered at its first transmission, so it has passed all requests that were sent before it.
    /// Returns the newest transmission that counts as lost because of that, if there is one.
    pub(super) fn passed(&mut self, at: usize) -> Option<u64> {
        let mut newest = None;
        for request in self
            .sent
            .iter_mut()
            .take(at)
            .filter(|request| !request.lost)
        {
            request.passed += 1;
            if request.passed >= PASSED_MAX {
                request.lost = true;
                self.lost += 1;
                newest = Some(request.transmission);
            }
        }
        newest
    }

    /// Marks requests that are due as lost. Returns the newest of their transmissions and their largest number of
    /// time-outs in a row.
    pub(super) fn expire(&mut self, now: Duration) -> Option<(u64, u32)> {
        if now < self.due {
            return None;
        }
        let mut found = None;
        for request in self.sent.iter_mut().filter(|request| !request.lost) {
            if request.due <= now {
                request.lost = true;
                request.silent += 1;
                self.lost += 1;
                let (newest, silent) = found.unwrap_or_default();
                found = Some((request.transmission.max(newest), request.silent.max(silent)));
            }
        }
        self.due = self.due().unwrap_or(Duration::MAX);
        found
    }

    /// Removes all requests.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Outstanding> + '_ {
        self.lost = 0;
        self.floor = 0;
        self.sent.drain(..)
    }
}
