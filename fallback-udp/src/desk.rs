//! What a lease remembers of the requests that were made with it, and the rest of a request's way:
//! steps 5 to 10 of section 2.

use core::time::Duration;

use fabricbios_wire::{
    DATA_PAYLOAD_MAX, DATAGRAM_MAX, DataHeader, DataOp, DataStatus, HELLO_LEN, HelloReply,
};

use crate::{
    engine::{Asked, Store},
    limit::{Allowance, Rate},
    replay::{Seen, WINDOW, mark},
    sessions::{Hello, Session, Sessions},
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
}

/// Bytes of payload, or why there are none.
type Served = Result<usize, DataStatus>;

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
        }
    }

    /// Does what is asked, with a lease that has `remaining`. What comes back goes to `payload`,
    /// which has room for the longest.
    pub(crate) fn serve(
        &mut self,
        op: DataOp,
        asked: Asked<'_>,
        remaining: Duration,
        store: &impl Store,
        payload: &mut [u8],
    ) -> Served {
        match op {
            DataOp::Hello if !self.hellos.take(asked.now) => Err(DataStatus::Busy),
            DataOp::Ping if !self.pings.take(asked.now) => Err(DataStatus::Busy),
            DataOp::Ping if asked.frame.payload.is_empty() => Ok(0),
            DataOp::Ping => Err(DataStatus::Invalid),
            DataOp::Hello => self.hello(asked, remaining, store, payload),
            DataOp::Read | DataOp::Write | DataOp::Flush => {
                self.in_session(op, asked, store, payload)
            }
        }
    }

    fn hello(
        &mut self,
        asked: Asked<'_>,
        remaining: Duration,
        store: &impl Store,
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
        let (told, rest) = payload[..padding.len()].split_at_mut(HELLO_LEN);
        told.copy_from_slice(&what_there_is(session, remaining, store).bytes());
        rest.fill(0);
        Ok(padding.len())
    }

    fn in_session(
        &mut self,
        op: DataOp,
        asked: Asked<'_>,
        store: &impl Store,
        payload: &mut [u8],
    ) -> Served {
        let header = &asked.frame.header;
        let session = self.sessions.find(header.session());
        let session = session.ok_or(DataStatus::TooOld)?;
        if session.payload_mac && !header.has_payload_mac() || !fits(op, header, store) {
            return Err(DataStatus::Invalid);
        }
        let session = self.sessions.enter(header.session(), asked.now)?;
        let mark = mark(asked.frame.tag);
        match session.window.look(header.counter(), mark) {
            Seen::TooOld => Err(DataStatus::TooOld),
            Seen::Other => Err(DataStatus::Replay),
            Seen::Same(DataStatus::Ok) => {
                again(session, &mut self.repeats, op, asked, store, payload)
            }
            Seen::Same(status) => Err(status),
            Seen::Fresh if !self.requests.take(asked.now) => Err(DataStatus::Busy),
            Seen::Fresh => {
                let served = perform(op, asked, store, payload);
                session.note(asked, mark, served.err().unwrap_or(DataStatus::Ok));
                served
            }
        }
    }
}

impl Session {
    /// Remembers a request that was new.
    fn note(&mut self, asked: Asked<'_>, mark: [u8; 8], status: DataStatus) {
        let counter = asked.frame.header.counter();
        self.heard = asked.now;
        if counter > self.window.highest() {
            self.source = asked.source;
        }
        self.window.commit(counter, mark, status);
    }
}

/// A request that was done before. Only READ has anything to do again; not for another address, since
/// whoever recorded the request could have the bytes sent to anybody.
fn again(
    session: &Session,
    repeats: &mut Allowance,
    op: DataOp,
    asked: Asked<'_>,
    store: &impl Store,
    payload: &mut [u8],
) -> Served {
    match op {
        DataOp::Read if session.source != asked.source => Err(DataStatus::Replay),
        DataOp::Read if !repeats.take(asked.now) => Err(DataStatus::Busy),
        DataOp::Read => perform(op, asked, store, payload),
        _ => Ok(0),
    }
}

fn perform(op: DataOp, asked: Asked<'_>, store: &impl Store, payload: &mut [u8]) -> Served {
    let header = &asked.frame.header;
    let end = header.offset.checked_add(u64::from(header.length));
    if end.is_none_or(|end| end > store.units()) {
        return Err(DataStatus::Range);
    }
    let done = match op {
        DataOp::Read => {
            let bytes = bytes_of(header, store).unwrap_or(0);
            let read = store.read(header.offset, &mut payload[..bytes]);
            return read.map_or(Err(DataStatus::Io), |()| Ok(bytes));
        }
        DataOp::Write if store.is_read_only() => return Err(DataStatus::ReadOnly),
        DataOp::Write => store.write(header.offset, asked.frame.payload),
        _ => store.flush(),
    };
    done.map_or(Err(DataStatus::Io), |()| Ok(0))
}

/// Whether counter and lengths are as section 5 has them.
fn fits(op: DataOp, header: &DataHeader, store: &impl Store) -> bool {
    let payload_len = usize::try_from(header.payload_len).ok();
    let bytes = bytes_of(header, store);
    let lengths = match op {
        DataOp::Read => header.length > 0 && payload_len == Some(0) && bytes.is_some(),
        DataOp::Write => header.length > 0 && payload_len == bytes,
        _ => header.length == 0 && header.offset == 0 && payload_len == Some(0),
    };
    lengths && header.counter() != 0
}

/// The bytes that `length` stands for, if a datagram carries so many.
fn bytes_of(header: &DataHeader, store: &impl Store) -> Option<usize> {
    let bytes = u64::from(header.length) * u64::from(store.unit_bytes());
    usize::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes <= DATA_PAYLOAD_MAX)
}

fn what_there_is(session: u32, remaining: Duration, store: &impl Store) -> HelloReply {
    #[allow(clippy::cast_possible_truncation, reason = "below 65536")]
    let (payload_max, datagram_max) = (DATA_PAYLOAD_MAX as u32, DATAGRAM_MAX as u32);
    HelloReply {
        resource_len: store.units(),
        unit: store.unit_bytes(),
        max_read: payload_max,
        max_write: payload_max,
        session,
        window: WINDOW,
        read_only: store.is_read_only(),
        remaining_ms: u32::try_from(remaining.as_millis()).unwrap_or(u32::MAX),
        datagram_max,
    }
}
