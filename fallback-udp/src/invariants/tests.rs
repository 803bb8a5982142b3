//! Planted violations of the engine's invariants: each one is found, and its lease then serves nothing.

use alloc::{sync::Arc, vec::Vec};
use core::{
    cell::{Cell, RefCell},
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use fabricbios_wire::{
    DATAGRAM_MAX, DataFrame, DataHeader, DataOp, DataService, DataStatus, DpKey, LeaseId, Part,
};

use super::*;
use crate::{
    AccessState, Begin, DataKey, Keys, Pending, Rate, ReplyBuffer, Request, Room, ServedLease,
    SessionState, Share, Space, begin, finish,
};

const NOW: Duration = Duration::from_secs(1000);
const UNIT: usize = 512;

/// A lease of blocks with session 1.
struct Lease {
    blocks: Blocks,
    keys: RefCell<Keys>,
    sessions: RefCell<SessionState>,
    broken: Cell<Option<Broken>>,
}

struct Blocks(Arc<Share>);

impl Space for Blocks {
    fn units(&self) -> u64 {
        8
    }

    fn unit_bytes(&self) -> u32 {
        512
    }

    fn share(&self) -> Option<&Arc<Share>> {
        Some(&self.0)
    }
}

impl ServedLease for Lease {
    type Space = Blocks;

    fn state(&self) -> AccessState {
        match self.broken.get() {
            Some(_) => AccessState::Fenced,
            None => AccessState::Live,
        }
    }

    fn deadline(&self) -> Duration {
        NOW * 2
    }

    fn space(&self) -> &Blocks {
        &self.blocks
    }

    fn with_sessions<R>(&self, work: impl FnOnce(&mut SessionState) -> R) -> R {
        work(&mut self.sessions.borrow_mut())
    }

    fn broken(&self, broken: Broken) {
        self.broken.set(Some(broken));
    }
}

fn key() -> DataKey {
    DataKey::new(&DpKey([1; 32]))
}

impl Lease {
    fn new() -> Self {
        let lease = Self {
            blocks: Blocks(Share::new(&Room::new(UNIT * 1024), Arc::default())),
            keys: RefCell::new(Keys::new(key())),
            sessions: RefCell::new(SessionState::new(Rate::new(1000, 1000))),
            broken: Cell::new(None),
        };
        assert_eq!(lease.hello(7), DataStatus::Ok);
        lease
    }

    fn send(&self, op: DataOp, nonce: u64, part: Option<Part>, payload: &[u8]) -> Option<Begin> {
        let bytes = frame(op, nonce, part, payload);
        let frame = DataFrame::parse(&bytes).unwrap();
        begin(
            self,
            &self.keys.borrow(),
            request(&frame),
            true,
            &mut reply(),
        )
    }

    fn status(&self, op: DataOp, nonce: u64, part: Option<Part>, payload: &[u8]) -> DataStatus {
        match self.send(op, nonce, part, payload) {
            Some(Begin::Reply(reply)) => reply.status,
            other => panic!("{other:?}"),
        }
    }

    fn hello(&self, nonce: u64) -> DataStatus {
        self.status(DataOp::Hello, nonce, None, &[0; 40])
    }

    /// A write in session 1 that waits for the storage.
    fn write(&self, counter: u64) -> Pending {
        match self.send(DataOp::Write, 1 << 32 | counter, None, &[1; UNIT]) {
            Some(Begin::Pending(pending)) => pending,
            other => panic!("{other:?}"),
        }
    }

    fn finish(&self, pending: &Pending) -> Option<DataStatus> {
        let keys = self.keys.borrow();
        let reply = finish(self, &keys, pending, Ok(()), NOW, &mut reply());
        reply.map(|reply| reply.status)
    }

    /// Records another request in session 1, as if its counter were new.
    fn note(&self, counter: u64) {
        let bytes = frame(DataOp::Write, 1 << 32 | counter, None, &[1; UNIT]);
        let frame = DataFrame::parse(&bytes).unwrap();
        let (findings, state) = (&mut Findings::default(), &mut self.sessions.borrow_mut());
        let session = state.sessions.find_mut(1).unwrap();
        session.note(request(&frame), [2; 8], None, findings);
        self.broken(findings.take().unwrap());
    }

    /// Takes session 1 of another lease.
    fn take_session(&self) {
        let other = Self::new();
        other.write(1);
        let session = other.sessions.borrow_mut().sessions.used.pop();
        self.sessions.borrow_mut().sessions.used.extend(session);
    }
}

fn frame(op: DataOp, nonce: u64, part: Option<Part>, payload: &[u8]) -> Vec<u8> {
    let header = DataHeader {
        nonce,
        length: u32::from(op == DataOp::Write),
        reserved: part.map_or(0, Part::reserved),
        ..DataHeader::request(DataService::Block, op, LeaseId(7))
    };
    [&key().seal(header, payload)[..], payload].concat()
}

fn request<'a>(frame: &'a DataFrame<'a>) -> Request<'a> {
    Request {
        frame,
        source: IpAddr::V4(Ipv4Addr::LOCALHOST),
        now: NOW,
    }
}

fn reply() -> ReplyBuffer {
    [0; DATAGRAM_MAX]
}

/// A mistake: what it does to a lease.
type Plant = fn(&Lease);

/// The mistakes of which the next step, or the planted one itself, tells. Those of **parts** are found in
/// `parts.rs`, of **generations** and **quiet** in `server/`, of **bytes** in `transfer/tests.rs`.
const PLANTS: [(Invariant, &str, Plant); 12] = [
    (Invariant::End, "a request comes after the end", |lease| {
        lease.keys.borrow_mut().close();
    }),
    (Invariant::End, "an I/O ends after the end", |lease| {
        let pending = lease.write(1);
        lease.keys.borrow_mut().close();
        assert_eq!(lease.finish(&pending), None, "no reply is made");
    }),
    (Invariant::Once, "a counter is used twice", |lease| {
        let _pending = lease.write(1);
        lease.note(1);
    }),
    (Invariant::Once, "a counter behind the window", |lease| {
        let _pending = lease.write(200);
        lease.note(2);
    }),
    (Invariant::InFlight, "a request finishes twice", |lease| {
        let (first, _second) = (lease.write(1), lease.write(2));
        assert_eq!(lease.finish(&first), Some(DataStatus::Ok));
        assert_eq!(lease.finish(&first), None);
    }),
    (Invariant::InFlight, "the lease counts too few", |lease| {
        let pending = lease.write(1);
        lease.sessions.borrow_mut().writes = 0;
        assert_eq!(lease.finish(&pending), None);
    }),
    (Invariant::InFlight, "a session counts too many", |lease| {
        let _pending = lease.write(1);
        lease.sessions.borrow_mut().sessions.used[0].writes += 1;
        let next = lease.status(DataOp::Write, 1 << 32 | 2, None, &[1; UNIT]);
        assert_eq!(next, DataStatus::Fenced);
    }),
    (Invariant::Sessions, "there are 17", |lease| {
        (0..17).for_each(|_| lease.take_session());
    }),
    (Invariant::Numbers, "two are session 1", |lease| {
        lease.take_session();
        assert_eq!(lease.hello(7), DataStatus::Fenced);
    }),
    (Invariant::Rate, "a limit never recovers", |lease| {
        lease.sessions.borrow_mut().pings.forge_debt();
    }),
    (Invariant::Room, "bytes are held for no block", |lease| {
        let part = Part::new(0, 2);
        let sent = lease.status(DataOp::Write, 1 << 32 | 1, part, &[1; UNIT / 2]);
        assert_eq!(sent, DataStatus::Ok);
        let tidy = || lease.with_sessions(|sessions| sessions.tidy(NOW, lease.space().share()));
        assert_eq!(tidy(), None);
        let _of_no_block = lease.space().0.take(UNIT).unwrap();
        lease.broken(tidy().unwrap());
    }),
    (Invariant::Room, "bytes are given back twice", |lease| {
        lease.space().0.take(UNIT).unwrap().forge_another();
        assert!(!lease.space().0.is_used(), "no sum has wrapped");
    }),
];

#[test]
fn each_planted_mistake_is_found_and_its_lease_serves_nothing_any_more() {
    for (invariant, mistake, plant) in PLANTS {
        let lease = Lease::new();
        plant(&lease);
        for _again in 0..2 {
            let ping = lease.status(DataOp::Ping, 0, None, &[]);
            assert_eq!(ping, DataStatus::Fenced, "{mistake}");
        }
        let found = lease.broken.get().map(|broken| broken.invariant);
        assert_eq!(found, Some(invariant), "{mistake}");
    }
}
