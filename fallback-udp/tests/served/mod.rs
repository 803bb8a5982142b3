//! A lease in memory, and the engine's reply to a datagram for it.

use std::{
    cell::{Cell, RefCell},
    net::IpAddr,
    time::Duration,
};

use fabricbios_fallback_udp::{
    AccessState, Broken, Keys, Opened, Rate, Request, ServedLease, SessionState, Space, Store,
    StoreFailed, answer, open, unauthenticated,
};
use fabricbios_wire::{DATAGRAM_MAX, DataService, LeaseId};

pub(crate) struct Lease {
    pub(crate) id: LeaseId,
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

impl Lease {
    /// A lease of `length` bytes in units of `unit` bytes, without an end.
    pub(crate) fn new(id: LeaseId, length: usize, unit: u32) -> Self {
        Self {
            id,
            state: Cell::new(AccessState::Live),
            deadline: Cell::new(Duration::MAX),
            sessions: RefCell::new(SessionState::new(Rate::new(1_000_000, 1_000_000))),
            memory: Memory {
                bytes: RefCell::new(vec![0; length]),
                unit,
                read_only: false,
                is_broken: Cell::new(false),
                writes: Cell::new(0),
                flushes: Cell::new(0),
            },
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.memory.bytes.borrow().clone()
    }

    /// The reply to a datagram, if there is one.
    pub(crate) fn reply(
        &self,
        keys: &Keys,
        service: DataService,
        datagram: &[u8],
        (source, now): (IpAddr, Duration),
    ) -> Option<Vec<u8>> {
        let mut reply = [0xEE; DATAGRAM_MAX];
        let length = match open(service, datagram) {
            Opened::Nothing => return None,
            Opened::Refused(header) => unauthenticated(&header, &mut reply),
            Opened::Frame(frame) => {
                let asked = Request {
                    frame: &frame,
                    source,
                    now,
                };
                let is_known = frame.header.lease_id == self.id;
                let answered = is_known.then(|| answer(self, keys, asked, &mut reply));
                match answered.flatten() {
                    Some(answered) => answered.length,
                    None => unauthenticated(&frame.header, &mut reply),
                }
            }
        };
        Some(reply[..length].to_vec())
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
        match self.is_broken.get() {
            true => Err(StoreFailed),
            false => Ok(()),
        }
    }
}

impl Space for Memory {
    fn units(&self) -> u64 {
        self.bytes.borrow().len() as u64 / u64::from(self.unit)
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
