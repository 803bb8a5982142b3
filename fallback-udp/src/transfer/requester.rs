//! The state that a client keeps between transfers: its session, the path, the pace.

use core::time::Duration;

use fabricbios_wire::{
    DATA_OVERHEAD, DataFrame, DataHeader, DataService, HelloReply, LeaseId, Part, data_flags,
};

use super::{
    Failure, Setup, Statistics, Transfer, Transmit, Work,
    flow::Flow,
    hello::{Hello, Opening, Path, ZEROS},
    piece::{Piece, Sizes},
    requests::{Outstanding, Requests},
    unsent::Unsent,
};
use crate::{DataKey, crc32c};

/// After an unauthenticated INVALID the client asks for fresh coordinates only if no authentic reply comes for this
/// long.
const DOUBT: Duration = Duration::from_millis(50);
/// Without any reply the client asks for fresh coordinates after this long.
const SILENCE: Duration = Duration::from_secs(3);
/// First pause between sessions without progress.
const REOPEN_PAUSE: Duration = Duration::from_millis(25);

/// An open session.
#[derive(Debug)]
struct Session {
    parameters: HelloReply,
    /// The next request's counter; `None`: all are used.
    next: Option<u32>,
    sizes: Sizes,
}

/// One client of one lease.
#[derive(Debug)]
pub struct Requester {
    pub(super) service: DataService,
    lease_id: LeaseId,
    key: DataKey,
    flags: u8,
    give_up: Duration,
    random: u64,
    path: Path,
    session: Option<Session>,
    /// Size of a unit in bytes, from the reply to the first HELLO.
    pub(super) unit: Option<u32>,
    /// Number of the session that the next HELLO closes; 0: none.
    closing: u32,
    pub(super) hello: Option<Hello>,
    /// Sessions opened since the last progress.
    openings: u32,
    pub(super) requests: Requests,
    pub(super) unsent: Unsent,
    pub(super) flow: Flow,
    /// Time of the last progress.
    done: Duration,
    /// Time of the last authentic reply.
    authentic: Duration,
    /// Whether an unauthenticated reply since then called the key invalid.
    doubt: bool,
    /// The last refusal that did not end the transfer.
    pub(super) refusal: Option<u8>,
    pub(super) statistics: Statistics,
}

impl Requester {
    /// A client that has not sent anything yet.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        Self::of(DataService::Memory, setup)
    }

    /// A client of either service.
    pub(super) fn of(service: DataService, setup: Setup) -> Self {
        Self {
            service,
            lease_id: setup.lease_id,
            key: setup.key,
            flags: if setup.payload_mac {
                data_flags::PAYLOAD_MAC
            } else {
                0
            },
            give_up: setup.give_up,
            random: setup.seed,
            path: Path::new(setup.route_mtu, setup.ip_header),
            session: None,
            unit: None,
            closing: 0,
            hello: None,
            openings: 0,
            requests: Requests::default(),
            unsent: Unsent::default(),
            flow: Flow::new(),
            done: Duration::ZERO,
            authentic: Duration::ZERO,
            doubt: false,
            refusal: None,
            statistics: Statistics::default(),
        }
    }

    /// Begins a transfer. If the last one has unanswered requests, they may still be in the network, so its session is
    /// given up.
    pub fn transfer<'a>(&'a mut self, work: Work<'a>, now: Duration) -> Transfer<'a> {
        self.abandon();
        self.unsent.add(Piece {
            operation: 0,
            op: work.op(),
            range: 0..work.len(),
            part: None,
        });
        self.begin(now);
        Transfer::new(self, work)
    }

    /// Drops all requests. If some were sent, they may still be in the network, so the session is given up.
    pub(super) fn abandon(&mut self) {
        if !self.requests.is_empty() {
            self.abandon_session();
            self.requests.drain().for_each(drop);
        }
        self.unsent = Unsent::default();
    }

    /// Starts the clocks of progress after an idle time.
    pub(super) fn begin(&mut self, now: Duration) {
        self.openings = 0;
        self.done = now;
        self.authentic = now;
        self.doubt = false;
        self.refusal = None;
    }

    /// The reply to the last HELLO, if a session is open.
    #[must_use]
    pub fn session_parameters(&self) -> Option<&HelloReply> {
        self.session.as_ref().map(|session| &session.parameters)
    }

    /// Proven path MTU in bytes, IP header included; `None`: not proven.
    #[must_use]
    pub fn path_mtu(&self) -> Option<usize> {
        self.path.mtu()
    }

    /// The statistics.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics {
            round_trip: self.flow.round_trip(),
            window: self.flow.window(),
            ..self.statistics
        }
    }

    /// Sets another key. The session may have survived the change (a rotation) or not (a restart of the node). A HELLO
    /// that closes the session is right in both cases: either the server closes it, or the old key is dead with all
    /// requests that were made with it.
    pub fn set_key(&mut self, key: DataKey, now: Duration) {
        self.key = key;
        self.abandon_session();
        self.put_back();
        self.doubt = false;
        self.authentic = now;
        self.openings = 0;
    }

    /// A HELLO that closes the session of a client that ends. The client does not wait for its reply. The server then has
    /// room for another session and refuses delayed requests of this one. `None`: no session is open.
    pub fn close_session(&mut self, now: Duration) -> Option<Transmit<'static>> {
        self.abandon_session();
        let opening = self.opening();
        let shortest = Path::new(0, 0);
        let mut hello = Hello::new(opening, &shortest, now, Duration::ZERO);
        let random = &mut self.random;
        let nonce = &mut || next_random(random);
        let (prefix, length) = hello.poll(now, &self.key, nonce)?;
        let payload = &ZEROS[..length];
        (self.closing != 0).then_some(Transmit { prefix, payload })
    }

    /// Sets MTU and IP header of the route, as in [`Setup`].
    pub fn set_route(&mut self, mtu: usize, ip_header: usize, now: Duration) {
        if self.path.set_route(mtu, ip_header) {
            self.reopen(now);
        }
    }

    pub(super) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Whether no piece is to be sent and no request is outstanding.
    pub(super) fn is_idle(&self) -> bool {
        self.unsent.is_empty() && self.requests.is_empty()
    }

    pub(super) fn ends_at(&self) -> Duration {
        self.done.saturating_add(self.give_up)
    }

    /// From this time on the client should ask for fresh coordinates, if it has something to do. Every authentic reply
    /// moves the time on.
    #[must_use]
    pub fn doubtful_at(&self) -> Duration {
        self.authentic + if self.doubt { DOUBT } else { SILENCE }
    }

    /// The failure of a transfer without progress.
    pub(super) fn silence(&self) -> Failure {
        let doubtful = self.doubt;
        let silent = Failure::Silent { doubtful };
        self.refusal
            .map_or(silent, |status| Failure::Refused { status })
    }

    /// The next time at which a datagram is to be sent.
    pub(super) fn due(&self, needs_session: bool) -> Option<Duration> {
        if needs_session && self.session.is_none() {
            self.hello.as_ref().map(|hello| hello.due)
        } else {
            self.requests.due()
        }
    }

    /// Marks lost requests; returns the longest row of time-outs of one request.
    pub(super) fn expire(&mut self, now: Duration) -> u32 {
        let Some((newest, silent)) = self.requests.expire(now) else {
            return 0;
        };
        self.flow.timed_out(newest, self.requests.next);
        silent
    }

    /// Stops using the session; the next HELLO closes it.
    fn abandon_session(&mut self) {
        if let Some(session) = self.session.take() {
            self.closing = session.parameters.session;
        }
        self.hello = None;
    }

    /// Gives up all outstanding requests; their pieces are sent again.
    fn put_back(&mut self) {
        let carried = self.requests.drain().map(|request| request.piece);
        self.unsent.put_back(carried);
    }

    /// Opens another session. Outstanding requests stay until the new session is open: late replies count.
    pub(super) fn reopen(&mut self, now: Duration) {
        self.abandon_session();
        let wait = match self.openings {
            0 | 1 => Duration::ZERO,
            more => REOPEN_PAUSE * (1 << more.min(6)),
        };
        self.start_hello(now + wait);
    }

    fn start_hello(&mut self, at: Duration) {
        let pause = self.flow.estimate();
        self.hello = Some(Hello::new(self.opening(), &self.path, at, pause));
    }

    fn opening(&self) -> Opening {
        Opening {
            service: self.service,
            lease_id: self.lease_id,
            flags: self.flags,
            closing: self.closing,
        }
    }

    pub(super) fn say_hello<'a>(&mut self, now: Duration) -> Option<Transmit<'a>> {
        if self.hello.is_none() {
            self.start_hello(now);
        }
        let random = &mut self.random;
        let hello = self.hello.as_mut()?;
        let (prefix, length) = hello.poll(now, &self.key, &mut || next_random(random))?;
        let payload = &ZEROS[..length];
        Some(Transmit { prefix, payload })
    }

    /// A session was opened by a HELLO of `datagram` bytes.
    pub(super) fn opened(&mut self, parameters: HelloReply, datagram: usize) {
        let path = datagram - DATA_OVERHEAD;
        let most = |bound: u32| usize::try_from(bound).map_or(path, |bound| bound.min(path));
        self.path.prove(datagram);
        self.flow.limit(parameters.window);
        self.put_back();
        self.hello = None;
        self.closing = 0;
        self.openings += 1;
        self.statistics.sessions += 1;
        self.unit = Some(parameters.unit);
        self.session = Some(Session {
            sizes: Sizes {
                unit: usize::try_from(parameters.unit).unwrap_or(usize::MAX),
                max_read: most(parameters.max_read),
                max_write: most(parameters.max_write),
            },
            next: Some(1),
            parameters,
        });
    }

    /// The session of this request is closed or shared with another client: the result of the request is unknown.
    pub(super) fn session_lost(&mut self, request: &DataHeader, now: Duration) {
        let open = self
            .session_parameters()
            .map(|parameters| parameters.session);
        if open == Some(request.session()) {
            self.reopen(now);
        }
    }

    /// Records progress.
    pub(super) fn progressed(&mut self, now: Duration) {
        self.done = now;
        self.openings = 0;
        self.refusal = None;
    }

    /// Request `at` was answered. If it was sent only once, it is a sample of the round-trip time.
    pub(super) fn on_answered(&mut self, at: usize, now: Duration) -> Option<Piece> {
        let request = self.requests.get_mut(at)?;
        let sample = (request.tries == 0).then(|| now.saturating_sub(request.sent));
        if sample.is_some()
            && self.is_answered_in_order()
            && let Some(lost) = self.requests.passed(at)
        {
            self.flow.lost(lost, self.requests.next);
        }
        self.flow.answered(sample);
        Some(self.requests.take(at)?.piece)
    }

    /// Whether replies come in the order of the requests. Replies for memory do, if none is lost. A disk replies in any
    /// order, so a reply out of order says nothing about losses.
    fn is_answered_in_order(&self) -> bool {
        self.service == DataService::Memory
    }

    /// Request `at` was refused with BUSY: it is sent again later, and slower.
    pub(super) fn on_busy(&mut self, at: usize, now: Duration) {
        let next = self.requests.next;
        let Some(request) = self.requests.get_mut(at) else {
            return;
        };
        self.flow.lost(request.transmission, next);
        request.silent = 0;
        let due = now + self.flow.timeout(request.tries + 1);
        self.requests.postpone(at, due);
    }

    /// Takes a sample of the round-trip time, if only one HELLO was sent.
    pub(super) fn sample_hello(&mut self, now: Duration) {
        let sent = self.hello.as_ref().and_then(|hello| hello.sent_once);
        if let Some(sent) = sent {
            self.flow.answered(Some(now.saturating_sub(sent)));
        }
    }

    /// The request to send now, if the congestion window allows one: a lost one, or one for the next piece. `describe`
    /// returns payload, and offset and length in units, of a piece. A PING needs no session.
    pub(super) fn next_request<'p>(
        &mut self,
        now: Duration,
        needs_session: bool,
        describe: impl FnOnce(&Piece) -> Option<(&'p [u8], (u64, u64))>,
    ) -> Option<Outstanding> {
        if self.requests.in_flight() >= self.flow.window() {
            return None;
        }
        if let Some(mut lost) = self.requests.take_lost() {
            lost.tries += 1;
            self.statistics.retried += 1;
            return Some(lost);
        }
        let (nonce, piece) = match needs_session {
            true => self.next_piece(now)?,
            false => (
                next_random(&mut self.random),
                self.unsent.take(&Sizes::NONE)?,
            ),
        };
        let (payload, (offset, length)) = describe(&piece)?;
        #[allow(clippy::cast_possible_truncation, reason = "shorter than a datagram")]
        let length = length as u32;
        let header = DataHeader {
            flags: self.flags,
            nonce,
            offset,
            length,
            reserved: piece.part.map_or(0, Part::reserved),
            ..DataHeader::request(self.service, piece.op, self.lease_id)
        };
        Some(Outstanding::new(header, &self.key, payload, piece))
    }

    /// Nonce and piece of a new request in the session.
    fn next_piece(&mut self, now: Duration) -> Option<(u64, Piece)> {
        if self.unsent.is_empty() {
            return None;
        }
        let session = self.session.as_mut()?;
        let last = |counter: u32| counter.checked_add(self.unsent.reserve(&session.sizes));
        let counters = session.next.and_then(|next| Some((next, last(next)?)));
        let Some((counter, last)) = counters else {
            self.reopen(now);
            return None;
        };
        let window = u32::from(session.parameters.window);
        if !self.requests.within(counter..=last, window) {
            return None;
        }
        let piece = self.unsent.take(&session.sizes)?;
        session.next = counter.checked_add(1);
        let nonce = u64::from(session.parameters.session) << 32 | u64::from(counter);
        Some((nonce, piece))
    }

    pub(super) fn send(&mut self, request: Outstanding, now: Duration) -> [u8; DATA_OVERHEAD] {
        let due = now + self.flow.timeout(request.tries);
        self.requests.send(request, now, due).prefix
    }

    /// Whether a reply to an outstanding request has a valid tag and checksum. A reply without a valid tag may still be
    /// a hint that the key is invalid.
    pub(super) fn is_authentic(&mut self, frame: &DataFrame<'_>, now: Duration) -> bool {
        let header = &frame.header;
        if self.key.verifies(frame) {
            let whole = crc32c(frame.payload) == header.payload_crc;
            if whole {
                self.authentic = now;
                self.doubt = false;
            }
            return whole;
        }
        self.doubt |= frame.tag.iter().all(|byte| *byte == 0);
        false
    }
}

/// SplitMix64: every number once in 2^64 calls.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
