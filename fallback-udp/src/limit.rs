//! Rate limits. Fixed memory, time as an argument.

use alloc::{boxed::Box, vec};
use core::{net::IpAddr, time::Duration};

/// A burst, and then one request each `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    period: Duration,
    burst: Duration,
}

impl Rate {
    /// `per_second` on average, `at_once` from rest. 0 is taken as 1.
    #[must_use]
    pub fn new(per_second: u32, at_once: u32) -> Self {
        let period = Duration::from_secs(1) / per_second.max(1);
        Self {
            period,
            burst: period.saturating_mul(at_once.max(1) - 1),
        }
    }
}

/// A token bucket, kept as the time at which it will be full again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    full_at: Duration,
}

impl Bucket {
    /// Takes a token, if there is one.
    pub(crate) fn take(&mut self, rate: &Rate, now: Duration) -> bool {
        let from = self.full_at.max(now);
        let allowed = from - now <= rate.burst;
        if allowed {
            self.full_at = from.saturating_add(rate.period);
        }
        allowed
    }
}

/// A rate and its bucket.
#[derive(Debug)]
pub(crate) struct Allowance {
    rate: Rate,
    bucket: Bucket,
    /// The latest time of a request.
    latest: Duration,
}

impl Allowance {
    /// A full bucket.
    #[must_use]
    pub(crate) fn new(rate: Rate) -> Self {
        Self {
            rate,
            bucket: Bucket::default(),
            latest: Duration::ZERO,
        }
    }

    /// Takes a token, if there is one.
    pub(crate) fn take(&mut self, now: Duration) -> bool {
        self.latest = self.latest.max(now);
        self.bucket.take(&self.rate, now)
    }

    /// Whether the bucket lacks no more than a burst, so that a request after a rest is let through.
    pub(crate) fn is_within_burst(&self) -> bool {
        let most = self.rate.burst.saturating_add(self.rate.period);
        self.bucket.full_at <= self.latest.saturating_add(most)
    }

    /// Takes all tokens of the future.
    #[cfg(test)]
    pub(crate) fn forge_debt(&mut self) {
        self.bucket.full_at = Duration::MAX;
    }
}

const SOURCES: usize = 1024;
/// Limits of the replies without a tag to one address: enough for a client to learn that its key is wrong.
const PER_SOURCE: (u32, u32) = (10, 20);

/// Rate limit of the replies to senders without a key, by source address. Addresses share buckets, so that the memory
/// is fixed; with the random seed nobody can guess which addresses share one.
#[derive(Debug)]
pub struct Sources {
    rate: Rate,
    seed: u64,
    buckets: Box<[Bucket]>,
}

impl Sources {
    /// `seed`: random.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            rate: Rate::new(PER_SOURCE.0, PER_SOURCE.1),
            seed,
            buckets: vec![Bucket::default(); SOURCES].into_boxed_slice(),
        }
    }

    /// Takes one reply to `source`, if one is left. IPv6 addresses count by network (/64), since a host can use every
    /// address of its network.
    pub fn take(&mut self, source: IpAddr, now: Duration) -> bool {
        let network = match source.to_canonical() {
            IpAddr::V4(address) => u64::from(address.to_bits()),
            #[allow(
                clippy::cast_possible_truncation,
                reason = "the upper half of 128 bits"
            )]
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        };
        let at = spread(network ^ self.seed);
        self.buckets[at].take(&self.rate, now)
    }
}

/// The finisher of SplitMix64, cut to an index.
fn spread(value: u64) -> usize {
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    #[allow(clippy::cast_possible_truncation, reason = "below 1024")]
    let at = ((value ^ value >> 31) % SOURCES as u64) as usize;
    at
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const START: Duration = Duration::from_secs(1000);

    #[test]
    fn what_was_refused_costs_nothing_and_rest_fills_up() {
        let rate = Rate::new(10, 3);
        let mut bucket = Bucket::default();
        for _ in 0..1000 {
            bucket.take(&rate, START);
        }
        let later = START + Duration::from_millis(300);
        let taken = (0..10).filter(|_| bucket.take(&rate, later)).count();
        assert_eq!(taken, 3);
    }

    #[test]
    fn a_clock_that_lags_on_another_thread_is_no_harm() {
        let rate = Rate::new(1000, 2);
        let mut bucket = Bucket::default();
        assert!(bucket.take(&rate, START));
        assert!(!bucket.take(&rate, START - Duration::from_secs(1)));
        assert!(bucket.take(&rate, START));
    }

    #[test]
    fn one_address_does_not_use_up_what_another_has() {
        let mut sources = Sources::new(7);
        let (a, b) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let taken = (0..1000).filter(|_| sources.take(a.into(), START)).count();
        assert_eq!(taken, 20);
        assert!(sources.take(b.into(), START));
        assert!(!sources.take(a.to_ipv6_mapped().into(), START), "the same");
    }

    #[test]
    fn a_whole_network_counts_as_one() {
        let mut sources = Sources::new(7);
        let host = |n| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n).into();
        let taken = (0..1000).filter(|n| sources.take(host(*n), START));
        assert_eq!(taken.count(), 20);
    }
}
