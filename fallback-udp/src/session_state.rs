//! The sessions of one lease and its rate limits. A request that has passed the checks of its key and its lease is
//! handled here: steps 5 to 10 of section 2 of the specification.

use alloc::sync::Arc;
use core::time::Duration;

use fabricbios_wire::{
    DATA_PAYLOAD_MAX, DATAGRAM_MAX, DataHeader, DataOp, DataStatus, HELLO_LEN, HelloReply,
};

use crate::{
    Broken, Invariant, Share,
    engine::Request,
    executor::{Executor, Served},
    invariants::Findings,
    limit::{Allowance, Rate},
    replay::{Mark, ReplayWindow, Seen, mark},
    room::Reservation,
    sessions::{Hello, Session, Sessions},
    space::{Job, Space},
};

/// Rate limit of the HELLOs of a lease, and of its PINGs: per second, and at once. Programs send few; at this rate
/// the session numbers last for a year.
const GREETINGS: (u32, u32) = (100, 200);

/// The sessions of a lease and its rate limits. An attacker who recorded requests can send them again without the
/// key, so repeated requests have limits of their own and never use up those of new requests.
#[derive(Debug)]
pub struct SessionState {
    pub(crate) sessions: Sessions,
    hellos: Allowance,
    pub(crate) pings: Allowance,
    /// New requests in sessions.
    requests: Allowance,
    /// READs that are repeated: their replies are longer than the requests.
    repeats: Allowance,
    /// Writes in flight, including those of sessions that are closed by now.
    pub(crate) writes: u32,
    findings: Findings,
}

impl SessionState {
    /// A state without sessions; later sessions have [`ReplayWindow::LONGEST`]. `rate` limits the new requests, and
    /// separately the repeated READs.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        let greetings = || Allowance::new(Rate::new(GREETINGS.0, GREETINGS.1));
        Self {
            sessions: Sessions::default(),
            hellos: greetings(),
            pings: greetings(),
            requests: Allowance::new(rate),
            repeats: Allowance::new(rate),
            writes: 0,
            findings: Findings::default(),
        }
    }

    /// Sets how many requests each session remembers. To be called before the first session.
    #[must_use]
    pub fn with_window(mut self, window: ReplayWindow) -> Self {
        self.sessions.window = window;
        self
    }

    /// Handles a request; `executor` does its I/O. `remaining` is the rest of the lease's term. Writes the payload of
    /// the reply to `payload`, which has room for the longest one. `None`: no reply now. Also returns the invariant
    /// that failed, if any.
    pub(crate) fn serve(
        &mut self,
        op: DataOp,
        request: Request<'_>,
        (space, remaining): (&impl Space, Duration),
        executor: &mut impl Executor,
        payload: &mut [u8],
    ) -> (Option<Served>, Option<Broken>) {
        let served = match op {
            DataOp::Hello if !self.hellos.take(request.now) => Some(Err(DataStatus::Busy)),
            DataOp::Ping if !self.pings.take(request.now) => Some(Err(DataStatus::Busy)),
            DataOp::Ping if request.frame.payload.is_empty() => Some(Ok(0)),
            DataOp::Ping => Some(Err(DataStatus::Invalid)),
            DataOp::Hello => Some(self.hello(request, remaining, space, payload)),
            DataOp::Read | DataOp::Write | DataOp::Flush => {
                let served = self.in_session(op, request, space, executor, payload);
                served.unwrap_or_else(|status| Some(Err(status)))
            }
        };
        let (within_limits, share) = (self.sessions.are_within_limits(), space.share());
        let detail = "the lease has more sessions than it may have";
        self.findings
            .holds(Invariant::Sessions, within_limits, detail);
        let limits = [&self.hellos, &self.pings, &self.requests, &self.repeats];
        let within_bursts = limits.into_iter().all(Allowance::is_within_burst);
        let detail = "a rate limit lends more than its burst";
        self.findings.holds(Invariant::Rate, within_bursts, detail);
        let adds_up = share.is_none_or(|share| !share.is_broken());
        let detail = "more was given back of half-sent blocks than was held";
        self.findings.holds(Invariant::Room, adds_up, detail);
        (served, self.findings.take())
    }

    /// Closes the sessions in which a block has been half-sent for too long. Returns the invariant that failed.
    #[must_use]
    pub fn tidy(&mut self, now: Duration, share: Option<&Arc<Share>>) -> Option<Broken> {
        self.sessions.close_half_sent(now);
        let held = self.sessions.held();
        let adds_up = share.is_none_or(|share| share.adds_up(held));
        let detail = "the half-sent blocks hold other bytes than are counted";
        self.findings.holds(Invariant::Room, adds_up, detail);
        self.findings.take()
    }

    /// Records the result of a request that was in flight: of this header and mark, and whether it is a write of a whole
    /// block. Returns the invariant that failed.
    pub(crate) fn finish(
        &mut self,
        (header, mark): (&DataHeader, Mark),
        is_write: bool,
        status: DataStatus,
    ) -> Option<Broken> {
        let write = u32::from(is_write);
        let mut was_begun = count_down(&mut self.writes, write);
        if let Some(session) = self.sessions.find_mut(header.session()) {
            was_begun &= count_down(&mut session.writes, write);
            let window = &mut session.window;
            let seen = window.finish(header.counter(), mark, status);
            // A repeated READ was done before.
            was_begun &= match seen {
                Seen::InFlight | Seen::TooOld => true,
                Seen::Same(_) => !is_write,
                Seen::Fresh | Seen::Other => false,
            };
        }
        let detail = "a request has finished that was not in flight";
        self.findings.holds(Invariant::InFlight, was_begun, detail);
        self.findings.take()
    }

    fn hello(
        &mut self,
        request: Request<'_>,
        remaining: Duration,
        space: &impl Space,
        payload: &mut [u8],
    ) -> Served {
        let (header, padding) = (&request.frame.header, request.frame.payload);
        let is_zeros = padding.iter().all(|byte| *byte == 0);
        if header.length != 0 || padding.len() < HELLO_LEN || !is_zeros {
            return Err(DataStatus::Invalid);
        }
        let hello = Hello {
            nonce: header.nonce,
            closes: header.offset,
            payload_mac: header.has_payload_mac(),
            source: request.source,
            now: request.now,
        };
        let session = self.sessions.hello(hello).ok_or(DataStatus::Busy)?;
        let is_its_own = self.sessions.count(session) == 1;
        let detail = "two open sessions have the same number";
        self.findings.holds(Invariant::Numbers, is_its_own, detail);
        let reply = hello_reply(session, remaining, self.sessions.window, space).bytes();
        let room = reply.len().min(padding.len());
        let (head, rest) = payload[..padding.len()].split_at_mut(room);
        head.copy_from_slice(&reply[..room]);
        rest.fill(0);
        Ok(padding.len())
    }

    /// `Err`: nothing was done, and the nonce stays unused.
    fn in_session(
        &mut self,
        op: DataOp,
        request: Request<'_>,
        space: &impl Space,
        executor: &mut impl Executor,
        payload: &mut [u8],
    ) -> Result<Option<Served>, DataStatus> {
        let header = &request.frame.header;
        let session = self.sessions.find(header.session());
        let session = session.ok_or(DataStatus::TooOld)?;
        let has_mac = header.has_payload_mac() || !session.payload_mac;
        let job = Job::read(op, request.frame, space).filter(|_| has_mac);
        let job = job.ok_or(DataStatus::Invalid)?;
        self.sessions.enter(header.session(), request.now)?;
        let has_room = executor.has_room() && self.may_follow(&job);
        let session = self.sessions.find_mut(header.session());
        let session = session.ok_or(DataStatus::TooOld)?;
        let mark = mark(request.frame.tag);
        match session.window.look(header.counter(), mark) {
            Seen::TooOld => Err(DataStatus::TooOld),
            Seen::Other => Err(DataStatus::Replay),
            Seen::InFlight => Ok(None),
            Seen::Same(DataStatus::Ok) if matches!(job, Job::Read(_)) => {
                let same_source = session.source == request.source;
                self.may_repeat(same_source, has_room, request.now)?;
                Ok(executor.execute(job, payload))
            }
            Seen::Same(status) => Ok(Some(if status == DataStatus::Ok {
                Ok(0)
            } else {
                Err(status)
            })),
            Seen::Fresh if session.is_late(&job) => Err(DataStatus::TooOld),
            Seen::Fresh if !has_room || !self.requests.take(request.now) => Err(DataStatus::Busy),
            Seen::Fresh => {
                let is_write = matches!(job, Job::Write(_));
                let room = session.parts.room_for(&job, space.share())?;
                let found = (&mut self.findings, request);
                let served = session.perform((job, room), found, space, executor, payload);
                if served.is_none() && is_write {
                    session.writes += 1;
                    self.writes += 1;
                }
                let status = served.map(status_of);
                session.note(request, mark, status, &mut self.findings);
                Ok(served)
            }
        }
    }

    /// An earlier write of a closed session may still be in flight, and must not overwrite a later one. So a write
    /// waits until all writes in flight are those of open sessions.
    fn may_follow(&mut self, job: &Job<'_>) -> bool {
        if self.writes == 0 || !matches!(job, Job::Write(_)) {
            return true;
        }
        let open = self.sessions.writes();
        let detail = "the open sessions have more writes in flight than the lease";
        self.findings
            .holds(Invariant::InFlight, open <= self.writes, detail);
        open == self.writes
    }

    /// Whether a READ that was done before may be done again. From another source address it may not: an attacker who
    /// recorded the request could have its reply sent to a victim.
    fn may_repeat(
        &mut self,
        same_source: bool,
        has_room: bool,
        now: Duration,
    ) -> Result<(), DataStatus> {
        match same_source {
            false => Err(DataStatus::Replay),
            true if has_room && self.repeats.take(now) => Ok(()),
            true => Err(DataStatus::Busy),
        }
    }
}

impl Session {
    /// Whether earlier parts of the same write may have been dropped from the window.
    fn is_late(&self, job: &Job<'_>) -> bool {
        job.first_part()
            .is_some_and(|first| self.window.is_behind(first))
    }

    /// Executes the job, once all its parts are there. `None`: it is in flight.
    fn perform(
        &mut self,
        (job, room): (Job<'_>, Option<Reservation>),
        (findings, request): (&mut Findings, Request<'_>),
        space: &impl Space,
        executor: &mut impl Executor,
        payload: &mut [u8],
    ) -> Option<Served> {
        let checked = job.check(&request.frame.header, space);
        match checked.and_then(|()| self.parts.gather(job, request.now, room, findings)) {
            Err(status) => Some(Err(status)),
            Ok(None) => Some(Ok(0)),
            Ok(Some(job)) => executor.execute(job, payload),
        }
    }

    /// Remembers a new request. `status` is `None` while it is in flight.
    pub(crate) fn note(
        &mut self,
        request: Request<'_>,
        mark: Mark,
        status: Option<DataStatus>,
        findings: &mut Findings,
    ) {
        let counter = request.frame.header.counter();
        self.heard = request.now;
        if counter > self.window.highest() {
            self.source = request.source;
        }
        let is_new = self.window.commit(counter, mark, status);
        findings.holds(
            Invariant::Once,
            is_new,
            "a counter was used for two requests",
        );
        self.parts.keep_within(&self.window);
    }
}

/// Subtracts `by`. `false`: the counter was smaller.
fn count_down(counter: &mut u32, by: u32) -> bool {
    let left = counter.checked_sub(by);
    *counter = left.unwrap_or(0);
    left.is_some()
}

fn status_of(served: Served) -> DataStatus {
    served.err().unwrap_or(DataStatus::Ok)
}

fn hello_reply(
    session: u32,
    remaining: Duration,
    window: ReplayWindow,
    space: &impl Space,
) -> HelloReply {
    #[allow(clippy::cast_possible_truncation, reason = "below 65536")]
    let (payload_max, datagram_max) = (DATA_PAYLOAD_MAX as u32, DATAGRAM_MAX as u32);
    HelloReply {
        resource_len: space.units(),
        unit: space.unit_bytes(),
        max_read: payload_max,
        max_write: payload_max,
        session,
        window: window.requests(),
        read_only: space.is_read_only(),
        remaining_ms: u32::try_from(remaining.as_millis()).unwrap_or(u32::MAX),
        datagram_max,
        write_verifier: space.write_verifier(),
    }
}
