//! One lease in memory, and a client that can send anything.

use std::{
    cell::{Cell, RefCell},
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use fabricbios_fallback_udp::{
    AccessState, Broken, DataKey, Keys, Opened, Rate, Request, ServedLease, SessionState, Space,
    Store, StoreFailed, answer, crc32c, open, unauthenticated,
};
use fabricbios_wire::{
    DATAGRAM_MAX, DataFrame, DataHeader, DataOp, DataService, DataStatus, DpKey, HelloReply,
    LeaseId,
};

pub(crate) const HOME: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub(crate) const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
pub(crate) const LENGTH: u64 = 20_000;
pub(crate) const LEASE: LeaseId = LeaseId(0xABCD);
pub(crate) const DEADLINE: Duration = Duration::from_secs(2000);

pub(crate) struct World {
    pub(crate) service: DataService,
    pub(crate) keys: Keys,
    pub(crate) lease: Lease,
    pub(crate) now: Cell<Duration>,
    pub(crate) source: Cell<IpAddr>,
    hellos: Cell<u64>,
}

pub(crate) struct Lease {
    pub(crate) state: Cell<AccessState>,
    pub(crate) deadline: Cell<Duration>,
    pub(crate) sessions: RefCell<SessionState>,
    pub(crate) memory: Memory,
}

pub(crate) struct Memory {
    pub(crate) bytes: RefCell<Vec<u8>>,
    pub(crate) unit: u32,
    pub(crate) read_only: bool,
    pub(crate) is_broken: Cell<bool>,
    pub(crate) writes: Cell<u32>,
    pub(crate) flushes: Cell<u32>,
}

/// The reply to a datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Back {
    Nothing,
    Unauthenticated,
    Status(DataStatus, Vec<u8>),
}

impl World {
    pub(crate) fn new() -> Self {
        Self::of(DataService::Memory, 1)
    }

    pub(crate) fn of(service: DataService, unit: u32) -> Self {
        let memory = Memory {
            bytes: RefCell::new(vec![0; LENGTH as usize]),
            unit,
            read_only: false,
            is_broken: Cell::new(false),
            writes: Cell::new(0),
            flushes: Cell::new(0),
        };
        Self {
            service,
            keys: Keys::new(key(0)),
            lease: Lease {
                state: Cell::new(AccessState::Live),
                deadline: Cell::new(DEADLINE),
                sessions: RefCell::new(SessionState::new(Rate::new(1_000_000, 1_000_000))),
                memory,
            },
            now: Cell::new(Duration::from_secs(1000)),
            source: Cell::new(HOME),
            hellos: Cell::new(0),
        }
    }

    /// The raw reply, if there is one.
    pub(crate) fn send_raw(&self, datagram: &[u8]) -> Option<Vec<u8>> {
        let mut reply = [0xEE; DATAGRAM_MAX];
        let length = match open(self.service, datagram) {
            Opened::Nothing => return None,
            Opened::Refused(header) => unauthenticated(&header, &mut reply),
            Opened::Frame(frame) => {
                let asked = Request {
                    frame: &frame,
                    source: self.source.get(),
                    now: self.now.get(),
                };
                let is_known = frame.header.lease_id == LEASE;
                let answered = is_known.then(|| answer(&self.lease, &self.keys, asked, &mut reply));
                match answered.flatten() {
                    Some(answered) => answered.length,
                    None => unauthenticated(&frame.header, &mut reply),
                }
            }
        };
        Some(reply[..length].to_vec())
    }

    /// The reply as a client with this key understands it; checks every reply.
    pub(crate) fn send_as(&self, key: &DataKey, datagram: &[u8]) -> Back {
        let Some(reply) = self.send_raw(datagram) else {
            return Back::Nothing;
        };
        let frame = DataFrame::parse(&reply).unwrap();
        let asked = DataHeader::read(datagram.first_chunk().unwrap()).unwrap();
        let header = frame.header;
        assert!(header.is_reply() && header.reserved == asked.reserved);
        assert_eq!(header.flags & 0x7F, asked.flags & 1);
        assert_eq!(
            (header.op, header.lease_id, header.nonce),
            (asked.op, asked.lease_id, asked.nonce)
        );
        assert_eq!((header.offset, header.length), (asked.offset, asked.length));
        if *frame.tag == [0; 32] {
            assert_eq!(header.status, DataStatus::Invalid as u8);
            assert!(reply.len() == 88 && datagram.len() >= 88);
            assert_eq!((header.payload_crc, header.payload_len), (0, 0));
            return Back::Unauthenticated;
        }
        let payload = header.has_payload_mac().then_some(frame.payload);
        assert!(key.verifies(frame.header_bytes, payload, frame.tag));
        assert_eq!(crc32c(frame.payload), header.payload_crc);
        let status = status_of(header.status);
        assert!(status == DataStatus::Ok || frame.payload.is_empty());
        Back::Status(status, frame.payload.to_vec())
    }

    pub(crate) fn send(&self, datagram: &[u8]) -> Back {
        self.send_as(&key(0), datagram)
    }

    /// The status of an authentic reply.
    pub(crate) fn status(&self, datagram: &[u8]) -> DataStatus {
        match self.send(datagram) {
            Back::Status(status, _) => status,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn header(&self, op: DataOp, nonce: u64, offset: u64, length: u32) -> DataHeader {
        DataHeader {
            service: self.service,
            op: op as u8,
            flags: 0,
            status: 0,
            lease_id: LEASE,
            nonce,
            offset,
            length,
            payload_crc: 0,
            payload_len: 0,
            reserved: 0,
        }
    }

    pub(crate) fn hello_frame(&self, nonce: u64, gives_up: u32) -> Vec<u8> {
        seal(
            self.header(DataOp::Hello, nonce, gives_up.into(), 0),
            &[0; 40],
        )
    }

    pub(crate) fn hello(&self) -> HelloReply {
        self.hellos.set(self.hellos.get() + 1);
        let nonce = 0xF00D_0000_0000 + self.hellos.get();
        match self.send(&self.hello_frame(nonce, 0)) {
            Back::Status(DataStatus::Ok, payload) => HelloReply::read(&payload).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// The number of a new session.
    pub(crate) fn session(&self) -> u32 {
        self.hello().session
    }

    pub(crate) fn write(&self, session: u32, counter: u32, offset: u64, bytes: &[u8]) -> Vec<u8> {
        let units = bytes.len() as u32 / self.lease.memory.unit;
        let header = self.header(DataOp::Write, nonce(session, counter), offset, units);
        seal(header, bytes)
    }

    pub(crate) fn read(&self, session: u32, counter: u32, offset: u64, length: u32) -> Vec<u8> {
        let header = self.header(DataOp::Read, nonce(session, counter), offset, length);
        seal(header, &[])
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.lease.memory.bytes.borrow().clone()
    }

    pub(crate) fn writes(&self) -> u32 {
        self.lease.memory.writes.get()
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.now.set(self.now.get() + time);
    }
}

impl ServedLease for Lease {
    type Space = Memory;

    fn state(&self) -> AccessState {
        self.state.get()
    }

    fn deadline(&self) -> Duration {
        self.deadline.get()
    }

    fn space(&self) -> &Memory {
        &self.memory
    }

    fn with_sessions<R>(&self, work: impl FnOnce(&mut SessionState) -> R) -> R {
        work(&mut self.sessions.borrow_mut())
    }

    fn broken(&self, broken: Broken) {
        panic!("{broken}");
    }
}

impl Memory {
    fn range(&self, offset: u64, bytes: usize) -> std::ops::Range<usize> {
        let start = offset as usize * self.unit as usize;
        start..start + bytes
    }

    fn works(&self) -> Result<(), StoreFailed> {
        if self.is_broken.get() {
            Err(StoreFailed)
        } else {
            Ok(())
        }
    }
}

impl Space for Memory {
    fn units(&self) -> u64 {
        LENGTH / u64::from(self.unit)
    }

    fn unit_bytes(&self) -> u32 {
        self.unit
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }
}

impl Store for Memory {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), StoreFailed> {
        self.works()?;
        into.copy_from_slice(&self.bytes.borrow()[self.range(offset, into.len())]);
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), StoreFailed> {
        self.works()?;
        self.writes.set(self.writes.get() + 1);
        self.bytes.borrow_mut()[self.range(offset, from.len())].copy_from_slice(from);
        Ok(())
    }

    fn flush(&self) -> Result<(), StoreFailed> {
        self.works()?;
        self.flushes.set(self.flushes.get() + 1);
        Ok(())
    }
}

pub(crate) fn key(first: u8) -> DataKey {
    DataKey::new(&DpKey(std::array::from_fn(|i| first.wrapping_add(i as u8))))
}

pub(crate) fn nonce(session: u32, counter: u32) -> u64 {
    u64::from(session) << 32 | u64::from(counter)
}

/// A datagram under the first key, with correct lengths and checksum.
pub(crate) fn seal(header: DataHeader, payload: &[u8]) -> Vec<u8> {
    seal_with(&key(0), header, payload)
}

pub(crate) fn seal_with(key: &DataKey, header: DataHeader, payload: &[u8]) -> Vec<u8> {
    let header = DataHeader {
        payload_crc: crc32c(payload),
        payload_len: payload.len() as u32,
        ..header
    };
    as_it_is(key, header, payload)
}

/// A datagram with a valid tag over the header as it is.
pub(crate) fn as_it_is(key: &DataKey, header: DataHeader, payload: &[u8]) -> Vec<u8> {
    [&header.bytes()[..], &key.tag(&header, payload), payload].concat()
}

pub(crate) fn status_of(number: u8) -> DataStatus {
    use DataStatus::{Busy, Fenced, Invalid, Io, NoLease, Ok, Range, ReadOnly, Replay, TooOld};
    [
        Ok, NoLease, Invalid, Range, Replay, Fenced, TooOld, Busy, ReadOnly, Io,
    ][usize::from(number)]
}
