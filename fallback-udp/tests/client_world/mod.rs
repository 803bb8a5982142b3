//! A simulated server, network and clock with the real engine and the real requester.

mod air;
mod random;
mod server;

use std::{
    net::{IpAddr, Ipv4Addr},
    ops::{Deref, DerefMut, Range},
    time::Duration,
};

use fabricbios_fallback_udp::{
    DataKey, Rate,
    transfer::{Driven, Failure, Requester, Setup, Transfer, Work},
};
use fabricbios_wire::{DataFrame, DataStatus, LeaseId};

pub(crate) use air::{Air, Network};
pub(crate) use random::Random;
use server::{Server, key};

pub(crate) const LEASE_ID: LeaseId = LeaseId(0x1ea5e);
pub(crate) struct World {
    air: Air,
    pub(crate) requester: Requester,
    /// Times at which the server restarts, and times at which it gets a new key beside the old one.
    pub(crate) restarts: Vec<Duration>,
    pub(crate) rotations: Vec<Duration>,
    /// Whether the client can ask for the current key.
    pub(crate) refreshes: bool,
    /// Whether an attacker without the key sends answers to everything.
    pub(crate) forger: bool,
    server: Server,
    asked_at: Duration,
    /// The number of the client's key.
    known: u8,
}

impl Deref for World {
    type Target = Air;

    fn deref(&self) -> &Air {
        &self.air
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Air {
        &mut self.air
    }
}

impl World {
    pub(crate) fn new(seed: u64, lease_len: usize, network: Network) -> Self {
        Self {
            air: Air::new(seed, network),
            requester: requester(key(0), seed),
            restarts: Vec::new(),
            rotations: Vec::new(),
            refreshes: true,
            forger: false,
            server: Server::new(lease_len),
            asked_at: Duration::ZERO,
            known: 0,
        }
    }

    /// Another client, and the number of its key.
    pub(crate) fn another_client(&mut self) -> (Requester, u8) {
        let requester = requester(self.server.key(), self.random.next());
        (requester, self.server.number())
    }

    pub(crate) fn swap_client(&mut self, (requester, known): &mut (Requester, u8)) {
        std::mem::swap(&mut self.requester, requester);
        std::mem::swap(&mut self.known, known);
    }

    pub(crate) fn memory(&self) -> Vec<u8> {
        self.server.memory()
    }

    pub(crate) fn restart(&mut self) {
        self.server.restart();
    }

    pub(crate) fn end_lease(&mut self) {
        self.server.end();
    }

    pub(crate) fn limit_rate(&mut self, per_second: u32, at_once: u32) {
        self.server.limit(Rate::new(per_second, at_once));
    }

    pub(crate) fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), Failure> {
        let offset = offset as u64;
        self.run(|| Work::Write { offset, from })
    }

    pub(crate) fn read(&mut self, range: Range<usize>) -> Result<Vec<u8>, Failure> {
        // Other bytes than the server has, so that a byte that was never read is found.
        let mut into = vec![0xee; range.len()];
        let offset = range.start as u64;
        self.run(|| Work::Read {
            offset,
            into: &mut into,
        })?;
        Ok(into)
    }

    pub(crate) fn run<'a>(&mut self, work: impl FnOnce() -> Work<'a>) -> Result<(), Failure> {
        self.drive(work(), Duration::MAX).expect("no end was set")
    }

    /// A write that its caller gives up after `time`.
    pub(crate) fn give_up_within(&mut self, time: Duration, from: &[u8]) {
        let end = self.now + time;
        let _given_up = self.drive(Work::Write { offset: 0, from }, end);
    }

    fn drive(&mut self, work: Work<'_>, end: Duration) -> Option<Result<(), Failure>> {
        let mut requester = std::mem::replace(&mut self.requester, requester(key(0), 0));
        let mut transfer = requester.transfer(work, self.now);
        let outcome = loop {
            while let Some(datagram) = transfer.poll_transmit(self.now) {
                self.send(true, [&datagram.prefix[..], datagram.payload].concat());
            }
            if let Some(outcome) = transfer.outcome() {
                break Some(outcome);
            }
            if self.now >= end {
                break None;
            }
            self.step(&mut transfer);
        };
        self.requester = requester;
        outcome
    }

    /// Goes on to the time of the next event.
    fn step(&mut self, transfer: &mut Transfer<'_>) {
        let timeout = transfer
            .next_timeout()
            .expect("a transfer that goes on has one");
        let doubt = transfer.requester().doubtful_at().max(self.asked_at);
        let wake = if self.refreshes {
            timeout.min(doubt)
        } else {
            timeout
        };
        let arrival = self.next_arrival();
        if arrival.is_none_or(|at| at > wake) {
            self.now = self.now.max(wake);
            self.happen();
            self.refresh(transfer);
        } else if let Some(bytes) = self.arrive() {
            transfer.on_datagram(&bytes, self.now);
        }
    }

    fn refresh(&mut self, transfer: &mut Transfer<'_>) {
        if self.refreshes && self.now >= transfer.requester().doubtful_at().max(self.asked_at) {
            self.asked_at = self.now + Duration::from_secs(1);
            if self.known != self.server.number() {
                self.known = self.server.number();
                transfer
                    .requester_mut()
                    .set_key(self.server.key(), self.now);
            }
        }
    }

    /// Does the actions of the operator that are due.
    fn happen(&mut self) {
        let now = self.now;
        let is_due = |at: &mut Duration| *at <= now;
        for _ in self.restarts.extract_if(.., is_due) {
            self.server.restart();
        }
        for _ in self.rotations.extract_if(.., is_due) {
            self.server.rotate();
        }
    }

    /// Delivers the next datagram; returns it if it is for the client.
    fn arrive(&mut self) -> Option<Vec<u8>> {
        let (to_server, bytes) = self.land()?;
        self.happen();
        if !to_server {
            return Some(bytes);
        }
        if self.forger {
            self.forge(&bytes);
        }
        let source = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let now = self.now;
        if let Some(reply) = self.server.answer(&bytes, source, now) {
            self.send(false, reply);
        }
        None
    }

    /// Sends answers ahead of the correct one, correct except for the tag.
    fn forge(&mut self, request: &[u8]) {
        let Ok(frame) = DataFrame::parse(request) else {
            return;
        };
        for status in [
            DataStatus::Ok,
            DataStatus::NoLease,
            DataStatus::Invalid,
            DataStatus::TooOld,
        ] {
            for tag in [[0; 32], *frame.tag] {
                let header = frame.header.answered(status).bytes();
                self.send(false, [&header[..], &tag[..]].concat());
            }
        }
    }

    /// Delivers everything that is still on its way, even if nobody waits for it.
    pub(crate) fn let_everything_arrive(&mut self) {
        while self.next_arrival().is_some() {
            self.arrive();
        }
    }
}

fn requester(key: DataKey, seed: u64) -> Requester {
    Requester::new(Setup {
        lease_id: LEASE_ID,
        key,
        payload_mac: seed % 2 == 1,
        give_up: Duration::from_secs(30),
        seed,
        route_mtu: 9000,
        ip_header: 20,
    })
}
