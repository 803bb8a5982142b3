//! Sequences of datagrams, time and key changes on the engine of the UDP transport.
//!
//! With any datagrams in any order: the engine touches no byte outside the lease, does each WRITE at most once,
//! does nothing without a valid key or after the end, and never sends more bytes than it received to a client
//! without a valid key.
#![no_main]

mod lease;
mod script;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    net::IpAddr,
    time::Duration,
};

use fabricbios_fallback_udp::{
    DataKey, Keys, Opened, ReplyBuffer, Request, Space, Store, StoreFailed, answer, crc32c, open,
    unauthenticated,
};
use fabricbios_wire::{
    DATA_OVERHEAD, DATAGRAM_MAX, DataFrame, DataHeader, DataOp, DataService, DataStatus, DpKey,
    LeaseId, data_flags,
};
use lease::Lease;
use libfuzzer_sys::fuzz_target;
use script::Script;

const LEASE: LeaseId = LeaseId(7);
const UNITS: u64 = 256;

/// The lease's bytes; access outside of them is a defect, not an error.
struct Bytes {
    bytes: RefCell<[u8; UNITS as usize]>,
    writes: Cell<usize>,
}

impl Bytes {
    fn range(offset: u64, length: usize) -> std::ops::Range<usize> {
        let start = usize::try_from(offset).expect("within the lease");
        assert!(start + length <= UNITS as usize, "outside of the lease");
        start..start + length
    }
}

impl Space for Bytes {
    fn units(&self) -> u64 {
        UNITS
    }
}

impl Store for Bytes {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), StoreFailed> {
        let range = Self::range(offset, into.len());
        into.copy_from_slice(&self.bytes.borrow()[range]);
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), StoreFailed> {
        let range = Self::range(offset, from.len());
        self.bytes.borrow_mut()[range].copy_from_slice(from);
        self.writes.set(self.writes.get() + 1);
        Ok(())
    }
}

struct World {
    lease: Lease<Bytes>,
    keys: Keys,
    /// All keys so far; the last one is the current key.
    made: Vec<DataKey>,
    now: Duration,
    sent: Vec<Vec<u8>>,
    /// Distinct WRITEs under a key of the lease: the upper limit of executed WRITEs.
    writes: BTreeSet<Vec<u8>>,
}

fuzz_target!(|bytes: &[u8]| {
    let mut script = Script(bytes);
    let mut world = World::new();
    while let Some(step) = script.byte() {
        world.take(step, &mut script);
    }
});

impl World {
    fn new() -> Self {
        let key = DataKey::new(&DpKey([0; 32]));
        Self {
            lease: Lease::new(Bytes {
                bytes: RefCell::new([0; UNITS as usize]),
                writes: Cell::new(0),
            }),
            keys: Keys::new(key.clone()),
            made: vec![key],
            now: Duration::ZERO,
            sent: Vec::new(),
            writes: BTreeSet::new(),
        }
    }

    fn take(&mut self, step: u8, script: &mut Script<'_>) {
        match step % 16 {
            0..=5 => self.send_request(script),
            6 | 7 => self.send_again(script),
            8 | 9 => self.send_damaged(script),
            10 => self.deliver(&script.rest(usize::from(step)), 1),
            11 => self.now += Duration::from_millis(script.number()),
            12 => self.now += Duration::from_nanos(script.number()),
            13 if self.keys.has_previous() => drop(self.keys.retire()),
            13 => self.rotate(),
            14 => self.lease.deadline = self.now + Duration::from_millis(script.number()),
            _ => self.lease.stand(script),
        }
    }

    fn rotate(&mut self) {
        let number = u8::try_from(self.made.len()).unwrap_or(u8::MAX);
        let key = DataKey::new(&DpKey([number; 32]));
        self.keys.rotate(key.clone());
        self.made.push(key);
    }

    /// A frame under some key of the lease, with fields from the script.
    fn send_request(&mut self, script: &mut Script<'_>) {
        let op = script.byte().unwrap_or(0) % 7;
        let shape = script.byte().unwrap_or(0);
        let (session, counter) = (script.small(), script.small());
        let (offset, length) = (script.number(), script.small());
        let payload = match op {
            1 => vec![0; 40 + usize::from(script.byte().unwrap_or(0))],
            3 => script.rest(length as usize % 64),
            _ => Vec::new(),
        };
        let length = match (op, shape & 1) {
            (1, _) => 0,
            (3, 0) => payload.len() as u32,
            _ => length,
        };
        let header = DataHeader {
            service: DataService::Memory,
            op,
            flags: if shape & 2 != 0 {
                data_flags::PAYLOAD_MAC
            } else {
                0
            },
            status: u8::from(shape & 0xf0 == 0xf0),
            lease_id: LEASE,
            nonce: u64::from(session) << 32 | u64::from(counter),
            offset,
            length,
            payload_crc: 0,
            payload_len: 0,
            reserved: 0,
        };
        let key = &self.made[usize::from(shape >> 2 & 3).min(self.made.len() - 1)];
        let datagram = [&key.seal(header, &payload)[..], &payload].concat();
        if op == DataOp::Write as u8 {
            self.writes.insert(datagram[..DATA_OVERHEAD].to_vec());
        }
        self.deliver(&datagram, script.byte().unwrap_or(1));
        self.sent.push(datagram);
    }

    fn send_again(&mut self, script: &mut Script<'_>) {
        let which = usize::from(script.byte().unwrap_or(0));
        let source = script.byte().unwrap_or(1);
        if let Some(datagram) = self.sent.iter().rev().nth(which).cloned() {
            self.deliver(&datagram, source);
        }
    }

    /// A datagram that was changed in transfer has no effect.
    fn send_damaged(&mut self, script: &mut Script<'_>) {
        let (at, bits) = (script.small() as usize, script.byte().unwrap_or(1).max(1));
        let Some(mut datagram) = self.sent.last().cloned() else {
            return;
        };
        let at = at % datagram.len();
        datagram[at] ^= bits;
        let (before, writes) = (
            *self.lease.space.bytes.borrow(),
            self.lease.space.writes.get(),
        );
        self.deliver(&datagram, 1);
        assert_eq!(before, *self.lease.space.bytes.borrow());
        assert_eq!(writes, self.lease.space.writes.get());
    }

    fn deliver(&mut self, datagram: &[u8], source: u8) {
        let mut reply: ReplyBuffer = [0; DATAGRAM_MAX];
        let before = *self.lease.space.bytes.borrow();
        let over = self.lease.is_over(self.now);
        match open(DataService::Memory, datagram) {
            Opened::Nothing => {}
            Opened::Refused(header) => {
                assert!(unauthenticated(&header, &mut reply) <= datagram.len());
            }
            Opened::Frame(frame) => self.answer(&frame, source, &mut reply),
        }
        if over {
            assert_eq!(before, *self.lease.space.bytes.borrow(), "after the end");
        }
        assert!(
            self.lease.space.writes.get() <= self.writes.len(),
            "done twice"
        );
    }

    fn answer(&self, frame: &DataFrame<'_>, source: u8, reply: &mut ReplyBuffer) {
        let asked = Request {
            frame,
            source: IpAddr::from([10, 0, 0, source % 3]),
            now: self.now,
        };
        let mut keys = self.keys.iter();
        let genuine = keys.any(|key| key.verifies(frame));
        let Some(answered) = answer(&self.lease, &self.keys, asked, reply) else {
            assert!(unauthenticated(&frame.header, reply) <= DATA_OVERHEAD);
            return;
        };
        assert!(genuine, "answered without a key");
        let told = DataFrame::parse(&reply[..answered.length]).expect("a reply is a frame");
        assert!(told.header.is_reply() && told.header.nonce == frame.header.nonce);
        assert_eq!(told.header.status, answered.status as u8);
        assert_eq!(told.header.payload_crc, crc32c(told.payload));
        if answered.status != DataStatus::Ok {
            assert!(told.payload.is_empty());
        }
    }
}
