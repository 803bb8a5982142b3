//! The engine with a lease, and the actions of a node on it.

use std::{net::IpAddr, time::Duration};

use fabricbios_fallback_udp::{AccessState, DataKey, Keys, Rate, SessionState};
use fabricbios_wire::{DataService, DpKey};

use super::LEASE_ID;
use crate::served::Lease;

pub(crate) fn key(number: u8) -> DataKey {
    DataKey::new(&DpKey([number; 32]))
}

pub(crate) struct Server {
    lease: Lease,
    keys: Keys,
    /// Number of the current key.
    number: u8,
}

impl Server {
    pub(crate) fn new(lease_len: usize) -> Self {
        Self {
            lease: Lease::new(LEASE_ID, lease_len, 1),
            keys: Keys::new(key(0)),
            number: 0,
        }
    }

    pub(crate) fn memory(&self) -> Vec<u8> {
        self.lease.bytes()
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
        self.limit(Rate::new(1_000_000, 1_000_000));
    }

    /// Adds a key; the old key goes on working until the next rotation.
    pub(crate) fn rotate(&mut self) {
        self.number += 1;
        self.keys.rotate(key(self.number));
    }

    pub(crate) fn end(&mut self) {
        self.lease.state.set(AccessState::Over);
    }

    pub(crate) fn limit(&mut self, rate: Rate) {
        *self.lease.sessions.borrow_mut() = SessionState::new(rate);
    }

    pub(crate) fn answer(&self, datagram: &[u8], source: IpAddr, now: Duration) -> Option<Vec<u8>> {
        let service = DataService::Memory;
        self.lease
            .reply(&self.keys, service, datagram, (source, now))
    }
}
