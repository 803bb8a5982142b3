//! Requests that wait for their answer, in the order in which they were last sent.

use alloc::collections::VecDeque;
use core::{ops::RangeInclusive, time::Duration};

use fabricbios_wire::{DATA_HEADER_LEN, DATA_OVERHEAD, DataHeader, Part, data_flags};

use super::piece::Piece;
use crate::DataKey;

/// Answers to later requests after which one counts as lost (as TCP's three duplicates).
const PASSED_MAX: u8 = 3;

/// One request. Its first bytes are kept, so a retry is the same datagram.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) header: DataHeader,
    pub(super) prefix: [u8; DATA_OVERHEAD],
    pub(super) piece: Piece,
    /// Which transmission the last one was.
    pub(super) transmission: u64,
    pub(super) sent: Duration,
    /// When it counts as lost.
    pub(super) due: Duration,
    /// Retries.
    pub(super) tries: u32,
    /// Time-outs in a row.
    pub(super) silent: u32,
    passed: u8,
    /// Waits for room to be sent again.
    pub(super) lost: bool,
}

impl Request {
    pub(super) fn new(header: DataHeader, key: &DataKey, payload: &[u8], piece: Piece) -> Self {
        Self {
            header,
            prefix: prefix(&header, key, payload),
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

    /// A server that has not all parts of a block forgets the first of them first.
    fn oldest_counter(&self) -> u32 {
        let index = self.piece.part.map_or(0, Part::index);
        self.header.counter().saturating_sub(index.into())
    }
}

/// Header and tag.
pub(super) fn prefix(header: &DataHeader, key: &DataKey, payload: &[u8]) -> [u8; DATA_OVERHEAD] {
    let mut prefix = [0; DATA_OVERHEAD];
    prefix[..DATA_HEADER_LEN].copy_from_slice(&header.bytes());
    prefix[DATA_HEADER_LEN..].copy_from_slice(&key.tag(header, payload));
    prefix
}

/// Whether `reply` can be the answer to `request` (section 7), its tag apart.
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
    sent: VecDeque<Request>,
    lost: usize,
    /// No outstanding counter is below this.
    floor: u32,
    /// No request is due before this.
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

    /// Whether any of them is of this operation.
    pub(super) fn has(&self, operation: u64) -> bool {
        self.sent
            .iter()
            .any(|request| request.piece.operation == operation)
    }

    /// When the next one counts as lost.
    pub(super) fn due(&self) -> Option<Duration> {
        let waiting = self.sent.iter().filter(|request| !request.lost);
        waiting.map(|request| request.due).min()
    }

    /// Whether requests with these counters, the next ones, are within what a server remembers behind which
    /// nothing is outstanding: a request that falls out of the window could never be answered.
    pub(super) fn within(&mut self, counters: RangeInclusive<u32>, window: u32) -> bool {
        let (first, last) = counters.into_inner();
        if last.saturating_sub(self.floor) >= window {
            let oldest = self.sent.iter().map(Request::oldest_counter);
            self.floor = oldest.min().unwrap_or(first);
        }
        last.saturating_sub(self.floor) < window
    }

    /// It goes out now and is due at `due`.
    pub(super) fn send(&mut self, mut request: Request, now: Duration, due: Duration) -> &Request {
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

    /// The first that has to be sent again.
    pub(super) fn take_lost(&mut self) -> Option<Request> {
        if self.lost == 0 {
            return None;
        }
        let at = self.sent.iter().position(|request| request.lost)?;
        self.lost -= 1;
        self.sent.remove(at)
    }

    /// Which of them this is the answer to.
    pub(super) fn find(&self, reply: &DataHeader) -> Option<usize> {
        self.sent
            .iter()
            .position(|request| answers(reply, &request.header))
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Request> {
        self.sent.get_mut(at)
    }

    /// It is to be sent again at `due`.
    pub(super) fn postpone(&mut self, at: usize, due: Duration) {
        if let Some(request) = self.sent.get_mut(at) {
            request.due = due;
            self.due = self.due.min(due);
        }
    }

    /// Answered.
    pub(super) fn take(&mut self, at: usize) -> Option<Request> {
        let request = self.sent.remove(at)?;
        self.lost -= usize::from(request.lost);
        Some(request)
    }

    /// Number `at` was answered at its first try: those that were sent before it have been passed
    /// once more. The newest transmission that is lost by that, if any.
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

    /// Marks what is due as lost: the newest transmission of them, and the longest silence.
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

    /// All of them, given up.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Request> + '_ {
        self.lost = 0;
        self.floor = 0;
        self.sent.drain(..)
    }
}
