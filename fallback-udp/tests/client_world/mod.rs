//! A server, a network and a clock, all simulated; the engine and the requester are the real ones.

mod random;
mod server;

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    net::{IpAddr, Ipv4Addr},
    ops::Range,
    time::Duration,
};

use fabricbios_fallback_udp::{
    DataKey, Rate,
    transfer::{Failure, Requester, Setup, Transfer, Work},
};
use fabricbios_wire::{DataFrame, DataStatus, LeaseId};

pub(crate) use random::Random;
use server::{Server, key};

pub(crate) const LEASE_ID: LeaseId = LeaseId(0x1ea5e);
/// IPv4 and UDP.
const HEADERS: usize = 28;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    /// Shares of the datagrams.
    pub(crate) loss: f64,
    pub(crate) copies: f64,
    pub(crate) damage: f64,
    pub(crate) late: f64,
    /// How late those are at most.
    pub(crate) latest: Duration,
    pub(crate) delay: Duration,
    pub(crate) mtu: usize,
}

impl Network {
    pub(crate) const GOOD: Self = Self {
        loss: 0.0,
        copies: 0.0,
        damage: 0.0,
        late: 0.0,
        latest: Duration::from_millis(300),
        delay: Duration::from_micros(100),
        mtu: 9000,
    };
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    at: Duration,
    number: u64,
    to_server: bool,
    bytes: Vec<u8>,
}

pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) random: Random,
    pub(crate) network: Network,
    pub(crate) requester: Requester,
    /// When the server starts again, and when it gets another key beside the old one.
    pub(crate) restarts: Vec<Duration>,
    pub(crate) rotations: Vec<Duration>,
    /// Nothing arrives meanwhile.
    pub(crate) partition: Range<Duration>,
    /// The request with this counter is lost until then.
    pub(crate) swallowed: Option<(u32, Duration)>,
    /// Whether somebody can be asked for the key.
    pub(crate) refreshes: bool,
    /// Somebody sends answers to everything, without the key.
    pub(crate) forger: bool,
    server: Server,
    asked_at: Duration,
    /// Which key the client has.
    known: u8,
    flying: BinaryHeap<Reverse<Flying>>,
    number: u64,
}

impl World {
    pub(crate) fn new(seed: u64, lease_len: usize, network: Network) -> Self {
        Self {
            now: Duration::ZERO,
            random: Random(seed),
            network,
            requester: requester(key(0), seed),
            restarts: Vec::new(),
            rotations: Vec::new(),
            partition: Duration::ZERO..Duration::ZERO,
            swallowed: None,
            refreshes: true,
            forger: false,
            server: Server::new(lease_len),
            asked_at: Duration::ZERO,
            known: 0,
            flying: BinaryHeap::new(),
            number: 0,
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
        // Not what the server has, so that a byte which nobody brings is found out.
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

    /// A write that its caller gives up.
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

    /// To the next time at which something happens.
    fn step(&mut self, transfer: &mut Transfer<'_>) {
        let timeout = transfer
            .next_timeout()
            .expect("a transfer that goes on has one");
        let doubt = transfer.doubtful_at().max(self.asked_at);
        let wake = if self.refreshes {
            timeout.min(doubt)
        } else {
            timeout
        };
        let arrival = self.flying.peek().map(|flying| flying.0.at);
        if arrival.is_none_or(|at| at > wake) {
            self.now = self.now.max(wake);
            self.happen();
            self.refresh(transfer);
        } else if let Some(bytes) = self.arrive() {
            transfer.on_datagram(&bytes, self.now);
        }
    }

    fn refresh(&mut self, transfer: &mut Transfer<'_>) {
        if self.refreshes && self.now >= transfer.doubtful_at().max(self.asked_at) {
            self.asked_at = self.now + Duration::from_secs(1);
            if self.known != self.server.number() {
                self.known = self.server.number();
                transfer.set_key(self.server.key(), self.now);
            }
        }
    }

    /// What the operator does.
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

    fn send(&mut self, to_server: bool, bytes: Vec<u8>) {
        let copies = 1 + usize::from(self.random.chance(self.network.copies));
        for _ in 0..copies {
            let cut = self.partition.contains(&self.now) || self.is_swallowed(&bytes);
            let too_long = bytes.len() + HEADERS > self.network.mtu;
            if !cut && !too_long && !self.random.chance(self.network.loss) {
                self.fly(to_server, bytes.clone());
            }
        }
    }

    fn is_swallowed(&self, bytes: &[u8]) -> bool {
        let frame = DataFrame::parse(bytes);
        let counter = frame.map_or(0, |frame| frame.header.counter());
        self.swallowed
            .is_some_and(|(swallowed, until)| counter == swallowed && self.now < until)
    }

    fn fly(&mut self, to_server: bool, mut bytes: Vec<u8>) {
        let mut delay = self.network.delay;
        if self.random.chance(self.network.late) {
            let latest = self.network.latest.as_micros() as u64;
            delay += Duration::from_micros(self.random.below(latest));
        }
        if self.random.chance(self.network.damage) {
            let at = self.random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.random.below(8);
        }
        self.number += 1;
        let (at, number) = (self.now + delay, self.number);
        self.flying.push(Reverse(Flying {
            at,
            number,
            to_server,
            bytes,
        }));
    }

    /// The next datagram arrives; it is returned if it is for the client.
    fn arrive(&mut self) -> Option<Vec<u8>> {
        let Reverse(flying) = self.flying.pop()?;
        self.now = self.now.max(flying.at);
        self.happen();
        if !flying.to_server {
            return Some(flying.bytes);
        }
        if self.forger {
            self.forge(&flying.bytes);
        }
        let source = IpAddr::V4(Ipv4Addr::LOCALHOST);
        if let Some(reply) = self.server.answer(&flying.bytes, source, self.now) {
            self.send(false, reply);
        }
        None
    }

    /// Answers that come before the right one, with everything right but the tag.
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

    /// All that is still on its way, also what nobody waits for any more.
    pub(crate) fn let_everything_arrive(&mut self) {
        while !self.flying.is_empty() {
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
