//! The engine with a lease, and the actions of a node on it.

use std::{cell::RefCell, net::IpAddr, time::Duration};

use fabricbios_fallback_udp::{
    AccessState, Broken, DataKey, Keys, Opened, Rate, Request, ServedLease, SessionState, Space,
    Store, StoreFailed, answer, open, unauthenticated,
};
use fabricbios_wire::{DATAGRAM_MAX, DataService, DpKey};

use super::LEASE_ID;

pub(crate) fn key(number: u8) -> DataKey {
    DataKey::new(&DpKey([number; 32]))
}

pub(crate) struct Server {
    lease: Lease,
    keys: Keys,
    /// Number of the current key.
    number: u8,
}

struct Lease {
    memory: Memory,
    sessions: RefCell<SessionState>,
    state: AccessState,
}

struct Memory(RefCell<Vec<u8>>);

impl Space for Memory {
    fn units(&self) -> u64 {
        self.0.borrow().len() as u64
    }
}

impl Store for Memory {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), StoreFailed> {
        into.copy_from_slice(&self.0.borrow()[offset as usize..][..into.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), StoreFailed> {
        self.0.borrow_mut()[offset as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }
}

impl ServedLease for Lease {
    type Space = Memory;

    fn state(&self) -> AccessState {
        self.state
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(100_000)
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

impl Server {
    pub(crate) fn new(lease_len: usize) -> Self {
        let lease = Lease {
            memory: Memory(RefCell::new(vec![0; lease_len])),
            sessions: RefCell::new(sessions()),
            state: AccessState::Live,
        };
        Self {
            lease,
            keys: Keys::new(key(0)),
            number: 0,
        }
    }

    pub(crate) fn memory(&self) -> Vec<u8> {
        self.lease.memory.0.borrow().clone()
    }

    pub(crate) fn key(&self) -> DataKey {
        key(self.number)
    }

    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    /// Restarts the server; the bytes stay, keys and sessions do not.
    pub(crate) fn restart(&mut self) {
        self.number += 1;
        self.keys = Keys::new(key(self.number));
        *self.lease.sessions.borrow_mut() = sessions();
    }

    /// Adds a key; the old key goes on working until the next rotation.
    pub(crate) fn rotate(&mut self) {
        self.number += 1;
        self.keys.rotate(key(self.number));
    }

    pub(crate) fn end(&mut self) {
        self.lease.state = AccessState::Over;
    }

    pub(crate) fn limit(&mut self, rate: Rate) {
        *self.lease.sessions.borrow_mut() = SessionState::new(rate);
    }

    pub(crate) fn answer(
        &mut self,
        datagram: &[u8],
        source: IpAddr,
        now: Duration,
    ) -> Option<Vec<u8>> {
        let mut reply = [0; DATAGRAM_MAX];
        let refused = match open(DataService::Memory, datagram) {
            Opened::Nothing => return None,
            Opened::Refused(header) => header,
            Opened::Frame(frame) if frame.header.lease_id != LEASE_ID => frame.header,
            Opened::Frame(frame) => {
                let asked = Request {
                    frame: &frame,
                    source,
                    now,
                };
                if let Some(made) = answer(&self.lease, &self.keys, asked, &mut reply) {
                    return Some(reply[..made.length].to_vec());
                }
                frame.header
            }
        };
        let length = unauthenticated(&refused, &mut reply);
        Some(reply[..length].to_vec())
    }
}

fn sessions() -> SessionState {
    SessionState::new(Rate::new(1_000_000, 1_000_000))
}
