//! Opens a session, and finds the longest possible datagram with the same HELLO.

use alloc::vec::Vec;
use core::time::Duration;

use fabricbios_wire::{
    DATA_OVERHEAD, DATAGRAM_MAX, DataHeader, DataOp, DataService, HELLO_REPLY_LEN, LeaseId,
};

use super::requests::answers;
use crate::DataKey;

/// The padding of a HELLO.
pub(super) static ZEROS: [u8; DATAGRAM_MAX] = [0; DATAGRAM_MAX];

/// Times that a HELLO of one size is sent before the next size is tried.
const TRIES: u32 = 2;
/// MTUs that are tried when the MTU of the route does not work.
const MTUS: [usize; 3] = [9000, 1500, 1280];
/// Longest pause between two HELLOs.
const PAUSE_MAX: Duration = Duration::from_secs(2);
const UDP_HEADER: usize = 8;

/// The lengths of datagrams on the way to the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    /// Bytes of the IP header: 20 or 40.
    ip_header: usize,
    /// Longest datagram by the MTU of the route.
    route: usize,
    /// Longest datagram that was answered.
    proven: Option<usize>,
}

impl Path {
    pub(super) fn new(mtu: usize, ip_header: usize) -> Self {
        Self {
            ip_header,
            route: datagram(mtu, ip_header),
            proven: None,
        }
    }

    /// Sets the route. Returns whether datagrams of the proven length have become too long.
    pub(super) fn set_route(&mut self, mtu: usize, ip_header: usize) -> bool {
        self.ip_header = ip_header;
        self.route = datagram(mtu, ip_header);
        let too_long = self.proven.is_some_and(|proven| proven > self.route);
        if too_long {
            self.proven = None;
        }
        too_long
    }

    pub(super) fn prove(&mut self, datagram: usize) {
        self.proven = Some(datagram);
    }

    /// IP and UDP headers included.
    pub(super) fn mtu(&self) -> Option<usize> {
        let headers = self.ip_header + UDP_HEADER;
        self.proven.map(|datagram| datagram + headers)
    }

    /// Lengths to try, the longest first, and where to start.
    fn rungs(&self) -> (Vec<usize>, usize) {
        let lower = MTUS.map(|mtu| datagram(mtu, self.ip_header));
        let lower = lower.into_iter().filter(|&length| length < self.route);
        let mut rungs: Vec<_> = core::iter::once(self.route).chain(lower).collect();
        rungs.dedup();
        let start = rungs.iter().position(|&length| Some(length) == self.proven);
        (rungs, start.unwrap_or(0))
    }
}

/// Longest UDP payload at an MTU, at least the length of a reply to HELLO.
fn datagram(mtu: usize, ip_header: usize) -> usize {
    mtu.saturating_sub(ip_header + UDP_HEADER)
        .clamp(DATA_OVERHEAD + HELLO_REPLY_LEN, DATAGRAM_MAX)
}

/// A HELLO of one length.
#[derive(Debug)]
struct Probe {
    header: DataHeader,
    prefix: [u8; DATA_OVERHEAD],
}

/// The fields that all HELLOs of an attempt share.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) service: DataService,
    pub(super) lease_id: LeaseId,
    pub(super) flags: u8,
    /// Number of the session to close; 0: none.
    pub(super) closing: u32,
}

/// An attempt to open a session. A reply to any of its HELLOs opens the session, even to an earlier and longer HELLO.
#[derive(Debug)]
pub(super) struct Hello {
    opening: Opening,
    rungs: Vec<usize>,
    rung: usize,
    probes: Vec<Option<Probe>>,
    /// Number of times that the HELLO of this length was sent.
    tries: u32,
    pause: Duration,
    pub(super) due: Duration,
    /// When the only HELLO so far was sent; `None` as soon as there are more.
    pub(super) sent_once: Option<Duration>,
    sent: u32,
}

impl Hello {
    pub(super) fn new(opening: Opening, path: &Path, now: Duration, pause: Duration) -> Self {
        let (rungs, rung) = path.rungs();
        Self {
            opening,
            probes: rungs.iter().map(|_| None).collect(),
            rungs,
            rung,
            tries: 0,
            pause: pause.min(PAUSE_MAX),
            due: now,
            sent_once: None,
            sent: 0,
        }
    }

    /// A HELLO, if it is time to send one: header and tag, and the number of zeros after them. `nonce` returns a random
    /// number.
    pub(super) fn poll(
        &mut self,
        now: Duration,
        key: &DataKey,
        nonce: &mut dyn FnMut() -> u64,
    ) -> Option<([u8; DATA_OVERHEAD], usize)> {
        if now < self.due {
            return None;
        }
        if self.tries == TRIES {
            self.next_rung();
        }
        self.due = now + self.pause * (1 << self.tries);
        self.tries += 1;
        self.sent += 1;
        self.sent_once = (self.sent == 1).then_some(now);
        let payload = self.rungs[self.rung] - DATA_OVERHEAD;
        let opening = &self.opening;
        let probe =
            self.probes[self.rung].get_or_insert_with(|| opening.probe(nonce(), key, payload));
        Some((probe.prefix, payload))
    }

    fn next_rung(&mut self) {
        self.tries = 0;
        self.rung += 1;
        if self.rung == self.rungs.len() {
            self.rung = 0;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }

    /// The length of the HELLO that a reply answers.
    pub(super) fn find(&self, reply: &DataHeader) -> Option<usize> {
        let probes = self.probes.iter().zip(&self.rungs);
        let mut sent = probes.filter_map(|(probe, rung)| Some((probe.as_ref()?, rung)));
        let (_, length) = sent.find(|(probe, _)| answers(reply, &probe.header))?;
        Some(*length)
    }

    /// The server answered BUSY: the same HELLO is sent again later.
    pub(super) fn busy(&mut self, now: Duration) {
        self.tries = 0;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.due = now + self.pause;
    }
}

impl Opening {
    fn probe(&self, nonce: u64, key: &DataKey, payload: usize) -> Probe {
        let header = DataHeader {
            flags: self.flags,
            nonce,
            offset: u64::from(self.closing),
            ..DataHeader::request(self.service, DataOp::Hello, self.lease_id)
        };
        Probe {
            prefix: key.seal(header, &ZEROS[..payload]),
            header,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_tried_from_the_route_down_and_a_proven_one_first() {
        let mut path = Path::new(65_536, 20);
        assert_eq!(path.rungs(), (alloc::vec![9216, 8972, 1472, 1252], 0));
        path.prove(1472);
        assert_eq!(path.rungs().1, 2);
        assert_eq!(path.mtu(), Some(1500));
        assert!(path.set_route(1400, 20));
        assert_eq!(path.rungs(), (alloc::vec![1372, 1252], 0));
        assert_eq!(path.mtu(), None);
        assert_eq!(Path::new(1280, 40).rungs(), (alloc::vec![1232], 0));
    }
}
