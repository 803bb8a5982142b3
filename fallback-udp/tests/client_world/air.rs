//! The network between client and server, and the clock.

use std::{cmp::Reverse, collections::BinaryHeap, ops::Range, time::Duration};

use fabricbios_wire::DataFrame;

use super::Random;

/// Bytes of the IPv4 and UDP headers.
const HEADERS: usize = 28;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    /// Each of these four is a share of the datagrams, from 0 to 1.
    pub(crate) loss: f64,
    pub(crate) copies: f64,
    pub(crate) damage: f64,
    pub(crate) late: f64,
    /// Longest delay of the late datagrams.
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

pub(crate) struct Air {
    pub(crate) now: Duration,
    pub(crate) random: Random,
    pub(crate) network: Network,
    /// During this time no datagram arrives.
    pub(crate) partition: Range<Duration>,
    /// The request with this counter is lost until this time.
    pub(crate) swallowed: Option<(u32, Duration)>,
    flying: BinaryHeap<Reverse<Flying>>,
    number: u64,
}

impl Air {
    pub(crate) fn new(seed: u64, network: Network) -> Self {
        Self {
            now: Duration::ZERO,
            random: Random(seed),
            network,
            partition: Duration::ZERO..Duration::ZERO,
            swallowed: None,
            flying: BinaryHeap::new(),
            number: 0,
        }
    }

    pub(crate) fn next_arrival(&self) -> Option<Duration> {
        self.flying.peek().map(|flying| flying.0.at)
    }

    /// Delivers the next datagram: whether it is for the server, and its bytes.
    pub(crate) fn land(&mut self) -> Option<(bool, Vec<u8>)> {
        let Reverse(flying) = self.flying.pop()?;
        self.now = self.now.max(flying.at);
        Some((flying.to_server, flying.bytes))
    }

    pub(crate) fn send(&mut self, to_server: bool, bytes: Vec<u8>) {
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
}
