//! A model of a server by section 8 of the specification, as short as possible: its storage takes time, and waiting
//! requests are executed when the storage is ready.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use fabricbios_fallback_udp::{DataKey, crc32c};
use fabricbios_wire::{
    DataFrame, DataHeader, DataOp, DataStatus, DpKey, HELLO_REPLY_LEN, HelloReply, Part,
};

const WINDOW: u32 = 128;
const HELLO: u8 = DataOp::Hello as u8;
const READ: u8 = DataOp::Read as u8;
const WRITE: u8 = DataOp::Write as u8;
const FLUSH: u8 = DataOp::Flush as u8;

pub(crate) const BLOCK: usize = 4096;

pub(crate) fn key(number: u8) -> DataKey {
    DataKey::new(&DpKey([number; 32]))
}

pub(crate) struct Server {
    pub(crate) disk: Vec<u8>,
    /// The blocks that survive a power cut.
    pub(crate) durable: Vec<u8>,
    pub(crate) read_only: bool,
    /// The block whose reads and writes fail.
    pub(crate) broken: Option<u64>,
    pub(crate) over: bool,
    /// Writes of whole blocks or of parts that completed one.
    pub(crate) written: usize,
    number: u8,
    /// Starts of the machine; the verifier depends on them.
    runs: u64,
    sessions: HashMap<u32, Session>,
    opened: u32,
    waiting: Vec<Waiting>,
}

#[derive(Default)]
struct Session {
    highest: u32,
    /// Requests by counter; `None`: the request is with the storage.
    seen: BTreeMap<u32, ([u8; 8], Option<DataStatus>)>,
    /// Half-sent blocks, by the counter of their first part.
    gathers: BTreeMap<u32, BTreeMap<u16, Vec<u8>>>,
}

/// An I/O in the storage.
struct Waiting {
    ready: Duration,
    header: DataHeader,
    bytes: Vec<u8>,
}

impl Server {
    pub(crate) fn new(blocks: usize) -> Self {
        Self {
            disk: vec![0; blocks * BLOCK],
            durable: vec![0; blocks * BLOCK],
            read_only: false,
            broken: None,
            over: false,
            written: 0,
            number: 0,
            runs: 1,
            sessions: HashMap::new(),
            opened: 0,
            waiting: Vec::new(),
        }
    }

    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    /// Keeps the blocks; drops key, sessions and waiting I/O.
    pub(crate) fn restart(&mut self) {
        self.number += 1;
        self.sessions.clear();
        self.waiting.clear();
    }

    /// As a restart, except that only flushed writes stay.
    pub(crate) fn cut_power(&mut self) {
        self.restart();
        self.runs += 1;
        self.disk.clone_from(&self.durable);
    }

    pub(crate) fn next_ready(&self) -> Option<Duration> {
        self.waiting.iter().map(|waiting| waiting.ready).min()
    }

    /// Answers at once, or hands the request to the storage, which is ready after `later`.
    pub(crate) fn take(
        &mut self,
        datagram: &[u8],
        now: Duration,
        later: Duration,
    ) -> Option<Vec<u8>> {
        let frame = DataFrame::parse(datagram).ok()?;
        let header = frame.header;
        let whole = crc32c(frame.payload) == header.payload_crc;
        if !whole || !key(self.number).verifies(&frame) {
            let refused = header.answered(DataStatus::Invalid);
            return Some([&refused.bytes()[..], &[0; 32]].concat());
        }
        if self.over {
            return Some(self.reply(&header, DataStatus::NoLease, &[]));
        }
        if header.op == HELLO {
            return Some(self.hello(&frame));
        }
        let mut mark = [0; 8];
        mark.copy_from_slice(&frame.tag[..8]);
        match self.enter(&frame, mark) {
            Ok(bytes) => {
                let ready = now + later;
                self.waiting.push(Waiting {
                    ready,
                    header,
                    bytes,
                });
                None
            }
            Err(status) => Some(self.reply(&header, status?, &[])),
        }
    }

    /// The I/O that the storage has finished by now.
    pub(crate) fn ready(&mut self, now: Duration) -> Vec<Vec<u8>> {
        let ready: Vec<_> = self
            .waiting
            .extract_if(.., |waiting| waiting.ready <= now)
            .collect();
        ready
            .into_iter()
            .map(|waiting| self.execute(&waiting))
            .collect()
    }

    fn hello(&mut self, frame: &DataFrame<'_>) -> Vec<u8> {
        let given_up = frame.header.offset as u32;
        // The I/O of the old session ends before the new session begins.
        let begun: Vec<_> = self
            .waiting
            .extract_if(.., |waiting| waiting.header.session() == given_up)
            .collect();
        begun.iter().for_each(|waiting| drop(self.execute(waiting)));
        self.sessions.remove(&given_up);
        self.opened += 1;
        self.sessions.insert(self.opened, Session::default());
        let told = HelloReply {
            resource_len: (self.disk.len() / BLOCK) as u64,
            unit: BLOCK as u32,
            max_read: 9128,
            max_write: 9128,
            session: self.opened,
            window: WINDOW as u16,
            read_only: self.read_only,
            remaining_ms: 60_000,
            datagram_max: 9216,
            write_verifier: self.runs,
        };
        let mut payload = vec![0; frame.payload.len()];
        payload[..HELLO_REPLY_LEN].copy_from_slice(&told.bytes());
        self.reply(&frame.header, DataStatus::Ok, &payload)
    }

    /// The bytes for the storage, or the answer if there is one now.
    fn enter(
        &mut self,
        frame: &DataFrame<'_>,
        mark: [u8; 8],
    ) -> Result<Vec<u8>, Option<DataStatus>> {
        let header = &frame.header;
        let blocks = (self.disk.len() / BLOCK) as u64;
        let counter = header.counter();
        let session = self.sessions.get_mut(&header.session());
        let session = session.ok_or(Some(DataStatus::TooOld))?;
        if counter + WINDOW <= session.highest {
            return Err(Some(DataStatus::TooOld));
        }
        match session.seen.get(&counter) {
            Some((seen, _)) if *seen != mark => return Err(Some(DataStatus::Replay)),
            Some((_, None)) => return Err(None),
            // A repeated READ reads again.
            Some((_, Some(DataStatus::Ok))) if header.op == READ => {}
            Some((_, Some(status))) => return Err(Some(*status)),
            None => {}
        }
        session.highest = session.highest.max(counter);
        let behind = session.highest.saturating_sub(WINDOW - 1);
        session.seen = session.seen.split_off(&behind);
        session.gathers = session.gathers.split_off(&behind);
        let refused = if header.offset + u64::from(header.length) > blocks {
            Some(DataStatus::Range)
        } else if header.op == WRITE && self.read_only {
            Some(DataStatus::ReadOnly)
        } else {
            None
        };
        session.seen.insert(counter, (mark, refused));
        match refused {
            Some(status) => Err(Some(status)),
            None => session.collect(frame).ok_or_else(|| {
                session.seen.insert(counter, (mark, Some(DataStatus::Ok)));
                Some(DataStatus::Ok)
            }),
        }
    }

    fn execute(&mut self, waiting: &Waiting) -> Vec<u8> {
        let header = &waiting.header;
        let blocks = header.offset..header.offset + u64::from(header.length);
        let (mut start, mut length) = (
            header.offset as usize * BLOCK,
            header.length as usize * BLOCK,
        );
        let mut payload = Vec::new();
        let mut status = DataStatus::Ok;
        match header.op {
            FLUSH => self.durable.clone_from(&self.disk),
            _ if self.broken.is_some_and(|broken| blocks.contains(&broken)) => {
                status = DataStatus::Io;
            }
            WRITE => {
                assert_eq!(waiting.bytes.len(), length, "a torn block");
                self.disk[start..start + length].copy_from_slice(&waiting.bytes);
                self.written += 1;
            }
            _ => {
                if let Some(range) = part(header).and_then(|part| part.range(BLOCK as u32)) {
                    (start, length) = (start + range.start, range.len());
                }
                payload = self.disk[start..start + length].to_vec();
            }
        }
        if let Some(session) = self.sessions.get_mut(&header.session())
            && let Some(seen) = session.seen.get_mut(&header.counter())
        {
            seen.1 = Some(status);
        }
        self.reply(header, status, &payload)
    }

    fn reply(&self, request: &DataHeader, status: DataStatus, payload: &[u8]) -> Vec<u8> {
        let sealed = key(self.number).seal(request.answered(status), payload);
        [&sealed[..], payload].concat()
    }
}

impl Session {
    /// The bytes of a request for the storage; `None`: the request is a part of an incomplete block.
    fn collect(&mut self, frame: &DataFrame<'_>) -> Option<Vec<u8>> {
        let header = &frame.header;
        let part = match part(header) {
            Some(part) if header.op == WRITE => part,
            _ => return Some(frame.payload.to_vec()),
        };
        let first = header.counter() - u32::from(part.index());
        let gather = self.gathers.entry(first).or_default();
        gather.insert(part.index(), frame.payload.to_vec());
        if gather.len() < usize::from(part.count()) {
            return None;
        }
        let gather = self.gathers.remove(&first)?;
        Some(gather.into_values().flatten().collect())
    }
}

fn part(header: &DataHeader) -> Option<Part> {
    header.part().unwrap()
}
