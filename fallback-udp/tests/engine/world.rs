//! One lease in memory, and a client that can send anything.

use std::{
    cell::Cell,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use fabricbios_fallback_udp::{DataKey, Keys, crc32c};
use fabricbios_wire::{
    DataFrame, DataHeader, DataOp, DataService, DataStatus, DpKey, HelloReply, LeaseId,
};

use crate::served::Lease;

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
        let lease = Lease::new(LEASE, LENGTH as usize, unit);
        lease.deadline.set(DEADLINE);
        Self {
            service,
            keys: Keys::new(key(0)),
            lease,
            now: Cell::new(Duration::from_secs(1000)),
            source: Cell::new(HOME),
            hellos: Cell::new(0),
        }
    }

    /// The raw reply, if there is one.
    pub(crate) fn send_raw(&self, datagram: &[u8]) -> Option<Vec<u8>> {
        let by = (self.source.get(), self.now.get());
        self.lease.reply(&self.keys, self.service, datagram, by)
    }

    /// The reply as a client understands it; checks every reply.
    pub(crate) fn send(&self, datagram: &[u8]) -> Back {
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
        assert!(key(0).verifies(&frame));
        assert_eq!(crc32c(frame.payload), header.payload_crc);
        let status = status_of(header.status);
        assert!(status == DataStatus::Ok || frame.payload.is_empty());
        Back::Status(status, frame.payload.to_vec())
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
            nonce,
            offset,
            length,
            ..DataHeader::request(self.service, op, LEASE)
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
        self.lease.bytes()
    }

    pub(crate) fn writes(&self) -> u32 {
        self.lease.memory.writes.get()
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.now.set(self.now.get() + time);
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
    [&key.seal(header, payload)[..], payload].concat()
}

/// A datagram with a valid tag over the header as it is.
pub(crate) fn as_it_is(key: &DataKey, header: DataHeader, payload: &[u8]) -> Vec<u8> {
    [&header.bytes()[..], &key.tag(&header, payload), payload].concat()
}

pub(crate) fn status_of(number: u8) -> DataStatus {
    DataStatus::from_byte(number).unwrap()
}
