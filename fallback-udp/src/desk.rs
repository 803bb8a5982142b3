//! What a lease remembers of the requests that were made with it, and the rest of a request's way:
//! steps 5 to 10 of section 2.

use core::time::Duration;

use fabricbios_wire::{
    DATA_PAYLOAD_MAX, DATAGRAM_MAX, DataFrame, DataOp, DataStatus, HELLO_LEN, HelloReply,
};

use crate::{
    engine::Asked,
    hands::{Hands, Io, Served},
    limit::{Allowance, Rate},
    replay::{Mark, Seen, WINDOW, mark},
    room::Taken,
    sessions::{Hello, Session, Sessions},
    space::{Job, Space},
};

/// HELLOs of a lease, and PINGs: so many a second, and at once. Programs send few; at this rate the
/// numbers of sessions last for a year.
const GREETINGS: (u32, u32) = (100, 200);

/// Sessions of a lease and how much it may still ask. Whoever recorded requests can send them again
/// without having the key, so what can come again takes nothing from what is new.
#[derive(Debug)]
pub struct Desk {
    sessions: Sessions,
    hellos: Allowance,
    pings: Allowance,
    /// Requests in sessions that are new.
    requests: Allowance,
    /// READs that are done again: their answers are longer than they are.
    repeats: Allowance,
    /// Writes under way, also those of sessions that are closed by now.
    writes: u32,
}

/// A request under way, as its lease knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) session: u32,
    pub(crate) counter: u32,
    pub(crate) mark: Mark,
    pub(crate) is_write: bool,
}

impl Desk {
    /// No sessions yet; new requests at `rate`, and READs again at the same.
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
        }
    }

    /// Has what is asked done by `hands`, with a lease that has `remaining`. What comes back goes to
    /// `payload`, which has room for the longest. `None`: there is no answer now.
    pub(crate) fn serve(
        &mut self,
        op: DataOp,
        asked: Asked<'_>,
        (space, remaining): (&impl Space, Duration),
        hands: &mut impl Hands,
        payload: &mut [u8],
    ) -> Option<Served> {
        let served = match op {
            DataOp::Hello if !self.hellos.take(asked.now) => Err(DataStatus::Busy),
            DataOp::Ping if !self.pings.take(asked.now) => Err(DataStatus::Busy),
            DataOp::Ping if asked.frame.payload.is_empty() => Ok(0),
            DataOp::Ping => Err(DataStatus::Invalid),
            DataOp::Hello => self.hello(asked, remaining, space, payload),
            DataOp::Read | DataOp::Write | DataOp::Flush => {
                let served = self.in_session(op, asked, space, hands, payload);
                return served.unwrap_or_else(|status| Some(Err(status)));
            }
        };
        Some(served)
    }

    /// Closes the sessions in which a block has been half-sent for too long.
    pub fn tidy(&mut self, now: Duration) {
        self.sessions.close_half_sent(now);
    }

    /// A request that was under way is over.
    pub(crate) fn finish(&mut self, begun: &Begun, status: DataStatus) {
        self.writes -= u32::from(begun.is_write);
        if let Some(session) = self.sessions.find_mut(begun.session) {
            session.writes -= u32::from(begun.is_write);
            session.window.finish(begun.counter, begun.mark, status);
        }
    }

    fn hello(
        &mut self,
        asked: Asked<'_>,
        remaining: Duration,
        space: &impl Space,
        payload: &mut [u8],
    ) -> Served {
        let (header, padding) = (&asked.frame.header, asked.frame.payload);
        let is_zeros = padding.iter().all(|byte| *byte == 0);
        if header.length != 0 || padding.len() < HELLO_LEN || !is_zeros {
            return Err(DataStatus::Invalid);
        }
        let hello = Hello {
            nonce: header.nonce,
            gives_up: header.offset,
            payload_mac: header.has_payload_mac(),
            source: asked.source,
            now: asked.now,
        };
        let session = self.sessions.hello(hello).ok_or(DataStatus::Busy)?;
        let told = what_there_is(session, remaining, space).bytes();
        let room = told.len().min(padding.len());
        let (head, rest) = payload[..padding.len()].split_at_mut(room);
        head.copy_from_slice(&told[..room]);
        rest.fill(0);
        Ok(padding.len())
    }

    /// `Err`: nothing was done, and the nonce was not used.
    fn in_session(
        &mut self,
        op: DataOp,
        asked: Asked<'_>,
        space: &impl Space,
        hands: &mut impl Hands,
        payload: &mut [u8],
    ) -> Result<Option<Served>, DataStatus> {
        let header = &asked.frame.header;
        let session = self.sessions.find(header.session());
        let session = session.ok_or(DataStatus::TooOld)?;
        let has_mac = header.has_payload_mac() || !session.payload_mac;
        let job = Job::read(op, asked.frame, space).filter(|_| has_mac);
        let job = job.ok_or(DataStatus::Invalid)?;
        self.sessions.enter(header.session(), asked.now)?;
        let has_room = hands.has_room() && self.may_follow(&job);
        let session = self.sessions.find_mut(header.session());
        let session = session.ok_or(DataStatus::TooOld)?;
        let mark = mark(asked.frame.tag);
        match session.window.look(header.counter(), mark) {
            Seen::TooOld => Err(DataStatus::TooOld),
            Seen::Other => Err(DataStatus::Replay),
            Seen::UnderWay => Ok(None),
            Seen::Same(DataStatus::Ok) if matches!(job, Job::Read(_)) => {
                let is_home = session.source == asked.source;
                self.may_repeat(is_home, has_room, asked.now)?;
                Ok(hands.take(job, payload))
            }
            Seen::Same(status) => Ok(Some(if status == DataStatus::Ok {
                Ok(0)
            } else {
                Err(status)
            })),
            Seen::Fresh if session.is_late(&job) => Err(DataStatus::TooOld),
            Seen::Fresh if !has_room || !self.requests.take(asked.now) => Err(DataStatus::Busy),
            Seen::Fresh => {
                let is_write = matches!(job, Job::Write(_));
                let room = session.parts.room_for(&job, space.share())?;
                let served = session.perform((job, room), asked, space, hands, payload);
                if served.is_none() && is_write {
                    session.writes += 1;
                    self.writes += 1;
                }
                session.note(asked, mark, served.map(status_of));
                Ok(served)
            }
        }
    }

    /// A write must not be undone by one of a closed session that is still under way.
    fn may_follow(&self, job: &Job<'_>) -> bool {
        self.writes == 0 || !matches!(job, Job::Write(_)) || self.sessions.writes() == self.writes
    }

    /// A READ that was done before; not for another address, since whoever recorded it could have the
    /// bytes sent to a third.
    fn may_repeat(
        &mut self,
        is_home: bool,
        has_room: bool,
        now: Duration,
    ) -> Result<(), DataStatus> {
        match is_home {
            false => Err(DataStatus::Replay),
            true if has_room && self.repeats.take(now) => Ok(()),
            true => Err(DataStatus::Busy),
        }
    }
}

impl Begun {
    pub(crate) fn of(frame: &DataFrame<'_>, io: &Io) -> Self {
        Self {
            session: frame.header.session(),
            counter: frame.header.counter(),
            mark: mark(frame.tag),
            is_write: matches!(io, Io::Write { .. }),
        }
    }
}

impl Session {
    /// Whether others of its parts may have been dropped.
    fn is_late(&self, job: &Job<'_>) -> bool {
        job.first_part()
            .is_some_and(|first| self.window.is_behind(first))
    }

    /// Has it done, once all its parts are there. `None`: it is under way.
    fn perform(
        &mut self,
        (job, room): (Job<'_>, Option<Taken>),
        asked: Asked<'_>,
        space: &impl Space,
        hands: &mut impl Hands,
        payload: &mut [u8],
    ) -> Option<Served> {
        let checked = job.check(&asked.frame.header, space);
        match checked.and_then(|()| self.parts.gather(job, asked.now, room)) {
            Err(status) => Some(Err(status)),
            Ok(None) => Some(Ok(0)),
            Ok(Some(job)) => hands.take(job, payload),
        }
    }

    /// Remembers a request that was new; no status: it is under way.
    fn note(&mut self, asked: Asked<'_>, mark: Mark, status: Option<DataStatus>) {
        let counter = asked.frame.header.counter();
        self.heard = asked.now;
        if counter > self.window.highest() {
            self.source = asked.source;
        }
        self.window.commit(counter, mark, status);
        self.parts.keep_within(&self.window);
    }
}

fn status_of(served: Served) -> DataStatus {
    served.err().unwrap_or(DataStatus::Ok)
}

fn what_there_is(session: u32, remaining: Duration, space: &impl Space) -> HelloReply {
    #[allow(clippy::cast_possible_truncation, reason = "below 65536")]
    let (payload_max, datagram_max) = (DATA_PAYLOAD_MAX as u32, DATAGRAM_MAX as u32);
    HelloReply {
        resource_len: space.units(),
        unit: space.unit_bytes(),
        max_read: payload_max,
        max_write: payload_max,
        session,
        window: WINDOW,
        read_only: space.is_read_only(),
        remaining_ms: u32::try_from(remaining.as_millis()).unwrap_or(u32::MAX),
        datagram_max,
        write_verifier: space.write_verifier(),
    }
}
