//! Sequences of datagrams, time and slow storage on the engine of FBBU.
//!
//! With any datagrams in any order: the engine asks the storage only for whole blocks of the lease, at most
//! once for each WRITE, and never without a valid key, room and remaining time; results after the end are sent
//! to nobody. Half-sent blocks never use more room than allowed, and give all of it back.
#![no_main]

mod lease;
mod script;

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use fabricbios_fallback_udp::{
    Begin, DataKey, Io, Keys, Opened, Pending, Reply, ReplyBuffer, Request, Room, ServedLease,
    Share, Space, StoreFailed, begin, crc32c, finish, open, unauthenticated,
};
use fabricbios_wire::{
    DATA_OVERHEAD, DATA_PAYLOAD_MAX, DATAGRAM_MAX, DataFrame, DataHeader, DataOp, DataService,
    DpKey, LeaseId, Part, data_flags,
};
use lease::Lease;
use libfuzzer_sys::fuzz_target;
use script::Script;

const LEASE: LeaseId = LeaseId(7);
const UNITS: u64 = 256;
const UNIT_BYTES: u32 = 512;

/// Half-sent blocks for which a lease has room.
const HALF_SENT: usize = 2;

struct Blocks(Arc<Share>);

impl Space for Blocks {
    fn units(&self) -> u64 {
        UNITS
    }

    fn unit_bytes(&self) -> u32 {
        UNIT_BYTES
    }

    fn share(&self) -> Option<&Arc<Share>> {
        Some(&self.0)
    }
}

struct World {
    lease: Lease<Blocks>,
    share: Arc<Share>,
    key: DataKey,
    keys: Keys,
    now: Duration,
    sent: Vec<Vec<u8>>,
    /// The operations in the storage.
    waiting: Vec<(Pending, Box<ReplyBuffer>)>,
    /// WRITEs that the engine gave to the storage.
    begun: BTreeSet<Vec<u8>>,
}

fuzz_target!(|bytes: &[u8]| {
    let mut script = Script(bytes);
    let mut world = World::new();
    while let Some(step) = script.byte() {
        world.take(step, &mut script);
    }
    while !world.waiting.is_empty() {
        world.finish(0, true);
    }
    let share = world.share.clone();
    drop(world);
    assert!(!share.is_used(), "room that nobody gives back");
});

impl World {
    fn new() -> Self {
        let key = DataKey::new(&DpKey([0; 32]));
        // A lease may use a 128th of the room.
        let room = Room::new(128 * HALF_SENT * UNIT_BYTES as usize);
        let share = Share::new(&room, Arc::default());
        Self {
            lease: Lease::new(Blocks(share.clone())),
            share,
            keys: Keys::new(key.clone()),
            key,
            now: Duration::ZERO,
            sent: Vec::new(),
            waiting: Vec::new(),
            begun: BTreeSet::new(),
        }
    }

    fn take(&mut self, step: u8, script: &mut Script<'_>) {
        match step % 16 {
            0..=6 => self.send_request(script),
            7 => self.send_again(script),
            8..=10 => self.finish(script.small() as usize, step < 240),
            11 => {
                self.now += Duration::from_millis(script.number());
                let share = Some(&self.share);
                let broken = self.lease.with_sessions(|it| it.tidy(self.now, share));
                assert!(broken.is_none(), "{broken:?}");
            }
            12 => self.deliver(&script.rest(usize::from(step)), true),
            13 => self.rotate(script),
            14 => self.lease.deadline = self.now + Duration::from_millis(script.number()),
            _ => self.lease.stand(script),
        }
    }

    /// The old key continues to work; a second rotation ends it.
    fn rotate(&mut self, script: &mut Script<'_>) {
        self.key = DataKey::new(&DpKey([script.byte().unwrap_or(1); 32]));
        self.keys.rotate(self.key.clone());
    }

    /// A frame under the lease's key, with fields from the script.
    fn send_request(&mut self, script: &mut Script<'_>) {
        let op = script.byte().unwrap_or(0) % 7;
        let shape = script.byte().unwrap_or(0);
        let (session, counter) = (script.small(), script.small());
        let (offset, length) = (script.number(), script.small());
        let part = Part::new(u16::from(shape >> 4), 8).filter(|_| shape & 4 != 0);
        let payload = match op {
            1 => vec![0; 40 + usize::from(script.byte().unwrap_or(0))],
            3 => payload(length, part, shape),
            _ => Vec::new(),
        };
        let header = DataHeader {
            service: DataService::Block,
            op,
            flags: if shape & 2 != 0 {
                data_flags::PAYLOAD_MAC
            } else {
                0
            },
            status: 0,
            lease_id: LEASE,
            nonce: u64::from(session) << 32 | u64::from(counter),
            offset,
            length: if op == 1 { 0 } else { length },
            payload_crc: crc32c(&payload),
            payload_len: payload.len() as u32,
            reserved: part.map_or(0, Part::reserved),
        };
        let tag = self.key.tag(&header, &payload);
        let datagram = [&header.bytes()[..], &tag, &payload].concat();
        self.deliver(&datagram, shape & 8 == 0);
        self.sent.push(datagram);
    }

    fn send_again(&mut self, script: &mut Script<'_>) {
        let which = usize::from(script.byte().unwrap_or(0));
        if let Some(datagram) = self.sent.iter().rev().nth(which).cloned() {
            self.deliver(&datagram, true);
        }
    }

    fn deliver(&mut self, datagram: &[u8], has_room: bool) {
        let mut reply: Box<ReplyBuffer> = Box::new([0; DATAGRAM_MAX]);
        let frame = match open(DataService::Block, datagram) {
            Opened::Nothing => return,
            Opened::Refused(header) => {
                assert!(unauthenticated(&header, &mut reply) <= datagram.len());
                return;
            }
            Opened::Frame(frame) => frame,
        };
        let asked = Request {
            frame: &frame,
            source: IpAddr::from([10, 0, 0, 1]),
            now: self.now,
        };
        let begun = begin(&self.lease, &self.keys, asked, has_room, &mut reply);
        let verifies = |key: &DataKey| key.verifies(&frame);
        let genuine = self.keys.iter().any(verifies);
        assert!(genuine || begun.is_none(), "without a key");
        match begun {
            None | Some(Begin::Nothing) => {}
            Some(Begin::Reply(told)) => check(&frame.header, told, &reply),
            Some(Begin::Pending(pending)) => {
                assert!(
                    has_room && !self.lease.is_over(self.now),
                    "without room or time"
                );
                self.check_io(&pending, &datagram[..DATA_OVERHEAD]);
                self.waiting.push((pending, reply));
            }
        }
    }

    fn check_io(&mut self, pending: &Pending, head: &[u8]) {
        let (offset, bytes) = match *pending.io() {
            Io::Read { offset, bytes } => (offset, bytes),
            Io::Write { offset, bytes } => {
                assert!(self.begun.insert(head.to_vec()), "done twice");
                (offset, bytes)
            }
            Io::Flush => return,
        };
        let unit = UNIT_BYTES as usize;
        assert!(bytes > 0 && bytes % unit == 0 && bytes <= DATA_PAYLOAD_MAX);
        assert!(
            offset + (bytes / unit) as u64 <= UNITS,
            "outside of the lease"
        );
    }

    /// The storage completes one of its operations, with success or failure.
    fn finish(&mut self, which: usize, well: bool) {
        if self.waiting.is_empty() {
            return;
        }
        let which = which % self.waiting.len();
        let (pending, mut reply) = self.waiting.swap_remove(which);
        let result = well.then_some(()).ok_or(StoreFailed);
        let (lease, keys) = (&self.lease, &self.keys);
        if let Some(told) = finish(lease, keys, &pending, result, self.now, &mut reply) {
            assert!(!self.lease.is_over(self.now), "after the end");
            assert!(well || told.length == DATA_OVERHEAD);
            assert!(DataFrame::parse(&reply[..told.length]).is_ok_and(|it| it.header.is_reply()));
        }
    }
}

/// Mostly a valid length.
fn payload(length: u32, part: Option<Part>, shape: u8) -> Vec<u8> {
    let bytes = match part.and_then(|part| part.range(UNIT_BYTES)) {
        Some(range) => range.len(),
        None => length as usize % 20 * UNIT_BYTES as usize,
    };
    vec![shape; bytes + usize::from(shape == 255)]
}

fn check(asked: &DataHeader, told: Reply, reply: &ReplyBuffer) {
    let frame = DataFrame::parse(&reply[..told.length]).expect("a reply is a frame");
    assert!(frame.header.is_reply() && frame.header.nonce == asked.nonce);
    assert_eq!(frame.header.status, told.status as u8);
    let is_hello = asked.op == DataOp::Hello as u8;
    assert!(
        frame.payload.is_empty() || is_hello,
        "bytes come from the storage"
    );
}
