//! The state that a client keeps between transfers: its session, the path, the pace.

use core::time::Duration;

use fabricbios_wire::{
    DATA_OVERHEAD, DataFrame, DataHeader, DataService, LeaseId, Part, data_flags,
};

use super::{
    Failure, Setup, Statistics, Transfer, Work,
    flow::Flow,
    hello::{Hello, Path},
    piece::{Piece, Sizes},
    requests::{Outstanding, Requests},
    session::OpenSession,
    unsent::Unsent,
};
use crate::{DataKey, crc32c};

/// After an unauthenticated INVALID the client asks for fresh coordinates only if no authentic reply comes for this
/// long.
const DOUBT: Duration = Duration::from_millis(50);
/// Without any reply the client asks for fresh coordinates after this long.
const SILENCE: Duration = Duration::from_secs(3);

/// One client of one lease.
#[derive(Debug)]
pub struct Requester {
    pub(super) service: DataService,
    pub(super) lease_id: LeaseId,
    pub(super) key: DataKey,
    pub(super) flags: u8,
    give_up: Duration,
    pub(super) random: u64,
    pub(super) path: Path,
    pub(super) session: Option<OpenSession>,
    /// Size of a unit in bytes, from the reply to the first HELLO.
    pub(super) unit: Option<u32>,
    /// Number of the session that the next HELLO closes; 0: none.
    pub(super) closing: u32,
    pub(super) hello: Option<Hello>,
    /// Sessions opened since the last progress.
    pub(super) openings: u32,
    pub(super) requests: Requests,
    pub(super) unsent: Unsent,
    pub(super) flow: Flow,
    /// Time of the last progress.
    done: Duration,
    /// Time of the last authentic reply.
    pub(super) authentic: Duration,
    /// Whether an unauthenticated reply since then called the key invalid.
    pub(super) doubt: bool,
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
        self.unsent.add(work.place().whole(0));
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
pub(super) fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
