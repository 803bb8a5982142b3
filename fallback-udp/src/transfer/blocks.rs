//! The client's protocol for blocks: many operations at once.
//!
//! Operations run side by side as far as the pace and the session allow. If two operations touch the same block and one
//! of them writes, the later one begins when the earlier one was answered: two requests in flight never name the same
//! block (section 4).

use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};
use core::{ops::Range, time::Duration};

use fabricbios_wire::{DATA_OVERHEAD, DataOp, DataService};

use super::{
    Driven, Failure, Operation, Requester, Setup, Transmit, active::Active, answer::Event,
    each_byte_once, hello::ZEROS, operation::Reach, piece::Piece, unflushed::Unflushed,
};

/// After this many time-outs in a row of one request the client opens a new session. That takes at least five seconds,
/// so a request that waits for a disk is not sent again in a new session any sooner.
const SILENT_MAX: u32 = 8;

/// One client of the blocks of one lease. To drive it, repeat: send each datagram of
/// [`poll_transmit`](Self::poll_transmit) until it returns `None`, take the operations of
/// [`next_finished`](Self::next_finished), and hand in the datagrams that arrive until
/// [`next_timeout`](Driven::next_timeout).
#[derive(Debug)]
pub struct Blocks {
    requester: Requester,
    /// The unfinished operations by id, which is the order of their submission.
    active: BTreeMap<u64, Active>,
    /// Every operation with a smaller id has been checked and placed.
    looked_at: u64,
    next: u64,
    finished: VecDeque<Finished>,
    unflushed: Unflushed,
}

/// A finished operation.
#[derive(Debug)]
pub struct Finished {
    /// The id from [`Blocks::submit`].
    pub id: u64,
    /// The operation with its bytes.
    pub operation: Operation,
    /// Number of bytes whose replies came.
    pub done: u64,
    /// The result.
    pub outcome: Result<(), Failure>,
}

/// A datagram to send; [`Blocks::transmit`] has its bytes.
#[derive(Clone, Debug)]
pub struct Outgoing {
    prefix: [u8; DATA_OVERHEAD],
    payload: Payload,
}

#[derive(Clone, Debug)]
enum Payload {
    Zeros(usize),
    Of(u64, Range<usize>),
}

impl Blocks {
    /// A client that has not sent anything yet.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        Self {
            requester: Requester::of(DataService::Block, setup),
            active: BTreeMap::new(),
            looked_at: 0,
            next: 0,
            finished: VecDeque::new(),
            unflushed: Unflushed::default(),
        }
    }

    /// Submits an operation and returns its id.
    pub fn submit(&mut self, operation: Operation, now: Duration) -> u64 {
        if self.active.is_empty() {
            self.requester.begin(now);
        }
        let id = self.next;
        self.next += 1;
        self.active
            .insert(id, Active::new(operation, self.unflushed.mark()));
        id
    }

    /// The next finished operation.
    pub fn next_finished(&mut self) -> Option<Finished> {
        self.finished.pop_front()
    }

    /// The operation with this id, if it has finished.
    pub fn take_finished(&mut self, id: u64) -> Option<Finished> {
        let at = self
            .finished
            .iter()
            .position(|finished| finished.id == id)?;
        self.finished.remove(at)
    }

    /// Whether an operation has finished and was not taken yet.
    #[must_use]
    pub fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Number of unfinished operations.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.active.len()
    }

    /// The next datagram that may be sent now.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<Outgoing> {
        self.expire(now);
        if self.active.is_empty() {
            return None;
        }
        let outgoing = if self.requester.has_session() {
            self.look_at_arrivals();
            self.send_next(now)
        } else {
            self.requester.say_hello(now).map(Outgoing::hello)
        };
        self.requester.statistics.sent += u64::from(outgoing.is_some());
        outgoing
    }

    /// The bytes of a datagram that has just been polled.
    #[must_use]
    pub fn transmit(&self, outgoing: &Outgoing) -> Transmit<'_> {
        let payload = match &outgoing.payload {
            Payload::Zeros(length) => &ZEROS[..*length],
            Payload::Of(id, range) => {
                let active = self.active.get(id);
                active.map_or(&[][..], |active| active.operation.payload(range))
            }
        };
        Transmit {
            prefix: outgoing.prefix,
            payload,
        }
    }

    /// Whether all writes are flushed and every loss is reported.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.unflushed.is_empty()
    }

    fn expire(&mut self, now: Duration) {
        if !self.active.is_empty() && now >= self.requester.ends_at() {
            let failure = self.requester.silence();
            self.give_up(failure);
        }
        let silent = self.requester.expire(now);
        if silent >= SILENT_MAX && self.requester.has_session() {
            self.requester.reopen(now);
        }
    }

    fn send_next(&mut self, now: Duration) -> Option<Outgoing> {
        let (unit, active) = (self.requester.unit?, &self.active);
        let request = self.requester.next_request(now, true, |piece| {
            let operation = &active.get(&piece.operation)?.operation;
            let extent = operation.place().extent(&piece.range, unit);
            Some((operation.payload(&piece.range), extent))
        })?;
        let payload = Payload::Of(request.piece.operation, request.piece.range.clone());
        Some(Outgoing {
            prefix: self.requester.send(request, now),
            payload,
        })
    }

    /// Checks the new operations, and starts those that wait for no earlier operation.
    fn look_at_arrivals(&mut self) {
        while self.looked_at < self.next {
            let id = self.looked_at;
            self.looked_at += 1;
            let Some(lease) = self.requester.session_parameters() else {
                return;
            };
            let reach = self
                .active
                .get(&id)
                .map(|it| it.operation.place().reach(lease));
            match reach {
                Some(Ok(reach)) => self.place(id, reach),
                Some(Err(failure)) => self.finish(id, Err(failure)),
                None => {}
            }
        }
    }

    fn place(&mut self, id: u64, reach: Reach) {
        let earlier = self.active.range(..id);
        let behind = earlier.filter(|(_, it)| it.conflicts(&reach)).count();
        let Some(active) = self.active.get_mut(&id) else {
            return;
        };
        active.reach = Some(reach);
        active.behind = behind;
        let place = active.operation.place();
        if place.len() == 0 {
            self.finish(id, Ok(()));
        } else if behind == 0 {
            self.requester.unsent.add(place.whole(id));
        }
    }

    pub(super) fn on_done(&mut self, piece: &Piece, bytes: usize, payload: &[u8]) {
        let Some(active) = self.active.get_mut(&piece.operation) else {
            return;
        };
        active.operation.take(&piece.range, payload);
        active.done += bytes;
        if piece.op == DataOp::Write {
            self.unflushed.written();
        }
        self.finish_if_over(piece.operation);
    }

    /// Stops sending requests of a refused operation. The operation ends when its requests in flight are answered,
    /// since no other operation may touch their blocks before.
    fn on_refused(&mut self, piece: &Piece, failure: Failure) {
        if let Some(active) = self.active.get_mut(&piece.operation) {
            active.failure.get_or_insert(failure);
        }
        self.requester.unsent.forget(piece.operation);
        self.finish_if_over(piece.operation);
    }

    /// A new session was opened, so no request of the old one is in flight. Failed operations end here.
    fn on_opened(&mut self) {
        if let Some(parameters) = self.requester.session_parameters() {
            self.unflushed.opened(parameters.write_verifier);
        }
        let failed = self.active.iter().filter(|(_, it)| it.failure.is_some());
        let failed: Vec<_> = failed.map(|(id, _)| *id).collect();
        for id in failed {
            self.requester.unsent.forget(id);
            self.finish_if_over(id);
        }
    }

    fn finish_if_over(&mut self, id: u64) {
        let Some(active) = self.active.get(&id) else {
            return;
        };
        match active.failure {
            Some(failure) if !self.requester.requests.has(id) => self.finish(id, Err(failure)),
            None if active.done >= active.operation.place().len() => {
                let length = active.operation.place().len();
                let checked = each_byte_once(active.done as u64, length);
                let outcome = checked.and_then(|()| match active.operation {
                    Operation::Flush => self.unflushed.flushed(active.mark),
                    _ => Ok(()),
                });
                self.finish(id, outcome);
            }
            _ => {}
        }
    }

    /// Finishes an operation, and starts the operations that waited for this one only.
    fn finish(&mut self, id: u64, outcome: Result<(), Failure>) {
        let Some(over) = self.active.remove(&id) else {
            return;
        };
        for (later, active) in self.active.range_mut(id..) {
            let waits = over.reach.as_ref().is_some_and(|it| active.conflicts(it));
            if waits {
                active.behind -= 1;
                if active.behind == 0 {
                    let whole = active.operation.place().whole(*later);
                    self.requester.unsent.add(whole);
                }
            }
        }
        self.finished.push_back(over.finished(id, outcome));
    }

    /// Fails all operations. The session is closed before a later operation begins, because requests may still be in
    /// flight.
    pub fn give_up(&mut self, failure: Failure) {
        self.requester.abandon();
        self.looked_at = self.next;
        for (id, active) in core::mem::take(&mut self.active) {
            let failure = active.failure.unwrap_or(failure);
            self.finished.push_back(active.finished(id, Err(failure)));
        }
    }
}

impl Driven for Blocks {
    fn requester(&self) -> &Requester {
        &self.requester
    }

    fn requester_mut(&mut self) -> &mut Requester {
        &mut self.requester
    }

    fn next_timeout(&self) -> Option<Duration> {
        if self.active.is_empty() {
            return None;
        }
        let end = self.requester.ends_at();
        let next = self.requester.due(true);
        Some(next.map_or(end, |next| next.min(end)))
    }

    fn on_datagram(&mut self, datagram: &[u8], now: Duration) {
        match self.requester.on_datagram(datagram, now) {
            Some(Event::Done {
                piece,
                bytes,
                payload,
            }) => self.on_done(&piece, bytes, payload),
            Some(Event::Refused {
                piece: Some(piece),
                failure,
            }) if !failure.is_final() => {
                self.requester.progressed(now);
                self.on_refused(&piece, failure);
            }
            Some(Event::Refused { failure, .. }) => self.give_up(failure),
            Some(Event::Opened) => self.on_opened(),
            None => (),
        }
    }
}

impl Outgoing {
    fn hello(hello: Transmit<'_>) -> Self {
        Self {
            prefix: hello.prefix,
            payload: Payload::Zeros(hello.payload.len()),
        }
    }
}
