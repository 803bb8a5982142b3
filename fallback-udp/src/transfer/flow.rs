//! How fast to send: the round-trip time as TCP estimates it (RFC 6298, with Karn's rule) and a
//! congestion window that counts requests.

use core::time::Duration;

/// Time-out until there is an estimate. RFC 6298 says a second; round trips inside a fabric are far shorter, and an
/// unnecessary retry costs one datagram.
const TIMEOUT_FIRST: Duration = Duration::from_millis(250);
/// With a shorter time-out a busy peer would look like a loss.
const TIMEOUT_MIN: Duration = Duration::from_millis(20);
/// With a longer time-out a healed network would go unnoticed.
const TIMEOUT_MAX: Duration = Duration::from_secs(2);
/// The smallest amount that is added to the estimate (G of RFC 6298).
const GRANULARITY: Duration = Duration::from_millis(10);
/// Requests in flight at the start (as in RFC 6928). The window never falls below `WINDOW_MIN`.
const WINDOW_FIRST: u32 = 10;
const WINDOW_MIN: u32 = 2;

#[derive(Debug)]
pub(super) struct Flow {
    smoothed: Option<Duration>,
    variance: Duration,
    /// Time-outs since the last clean sample. New requests start with the longer time-out; otherwise a path that became
    /// slow would never yield a sample again.
    doublings: u32,
    window: u32,
    /// Slow start ends here.
    threshold: u32,
    /// Half of the requests that the server remembers.
    limit: u32,
    /// Answers since the window grew, past slow start.
    credit: u32,
    /// A lost request that was sent before this transmission belongs to a loss that was already counted.
    recovery: u64,
}

impl Flow {
    pub(super) fn new() -> Self {
        Self {
            smoothed: None,
            variance: Duration::ZERO,
            doublings: 0,
            window: WINDOW_FIRST,
            threshold: u32::MAX,
            limit: WINDOW_FIRST,
            credit: 0,
            recovery: 0,
        }
    }

    /// A session remembers `window` requests; at most half of them are in flight.
    pub(super) fn limit(&mut self, window: u16) {
        self.limit = u32::from(window / 2).max(1);
        self.window = self.window.min(self.limit);
    }

    /// An answer came, with a sample if the request was sent only once.
    pub(super) fn answered(&mut self, sample: Option<Duration>) {
        if let Some(sample) = sample {
            self.sampled(sample);
        }
        let grow = if self.window < self.threshold {
            true
        } else {
            self.credit += 1;
            self.credit >= self.window
        };
        if grow {
            self.window = (self.window + 1).min(self.limit);
            self.credit = 0;
        }
    }

    fn sampled(&mut self, sample: Duration) {
        self.doublings = 0;
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(sample);
            self.variance = sample / 2;
            return;
        };
        self.variance = (self.variance * 3 + smoothed.abs_diff(sample)) / 4;
        self.smoothed = Some((smoothed * 7 + sample) / 8);
    }

    /// Records that transmission `lost` was lost; `next` is the number of the next transmission. All losses among
    /// requests that were on their way together count as one event. Returns whether this is a new event.
    pub(super) fn lost(&mut self, lost: u64, next: u64) -> bool {
        let new = lost >= self.recovery;
        if new {
            self.window = (self.window / 2).max(WINDOW_MIN).min(self.limit);
            self.threshold = self.window;
            self.credit = 0;
            self.recovery = next;
        }
        new
    }

    /// As [`Flow::lost`], for a loss that a time-out found.
    pub(super) fn timed_out(&mut self, lost: u64, next: u64) {
        if self.lost(lost, next) {
            self.doublings = (self.doublings + 1).min(8);
        }
    }

    /// How long an answer takes at most, by the estimate alone.
    pub(super) fn estimate(&self) -> Duration {
        self.smoothed.map_or(TIMEOUT_FIRST, |smoothed| {
            (smoothed + GRANULARITY.max(self.variance * 4)).max(TIMEOUT_MIN)
        })
    }

    /// How long to wait for the answer to a request that was sent `tries` times before.
    pub(super) fn timeout(&self, tries: u32) -> Duration {
        let first = self.estimate();
        let doublings = self.doublings.max(tries).min(8);
        (first * (1 << doublings)).min(TIMEOUT_MAX)
    }

    /// Requests that may be in flight.
    pub(super) fn window(&self) -> usize {
        self.window as usize
    }

    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.smoothed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_timeout_follows_the_round_trip_and_doubles() {
        let mut flow = Flow::new();
        assert_eq!(flow.timeout(0), TIMEOUT_FIRST);
        for _ in 0..100 {
            flow.answered(Some(100 * MS));
        }
        let settled = flow.timeout(0);
        assert!((100 * MS..130 * MS).contains(&settled), "{settled:?}");
        assert_eq!(flow.timeout(2), settled * 4);
        assert_eq!(flow.timeout(30), TIMEOUT_MAX);
    }

    #[test]
    fn a_path_that_became_slow_yields_samples_again() {
        let mut flow = Flow::new();
        flow.answered(Some(MS));
        // With 500 ms no reply comes in time, so there is no sample before the time-out has grown.
        let mut rounds = 0;
        while flow.timeout(0) < 500 * MS {
            flow.timed_out(rounds, rounds + 1);
            flow.answered(None);
            rounds += 1;
        }
        assert!(rounds < 8);
        flow.answered(Some(500 * MS));
        assert!(flow.timeout(0) > 60 * MS);
    }

    #[test]
    fn one_loss_halves_once_and_growth_is_bounded() {
        let mut flow = Flow::new();
        flow.limit(128);
        for _ in 0..200 {
            flow.answered(None);
        }
        assert_eq!(flow.window(), 64);
        for lost in 100..130 {
            flow.lost(lost, 164);
        }
        assert_eq!(flow.window(), 32);
        for _ in 0..32 {
            flow.answered(None);
        }
        assert_eq!(flow.window(), 33, "one more for a whole window of answers");
        for lost in 0..20 {
            flow.lost(1000 + lost, 1001 + lost);
        }
        assert_eq!(flow.window(), 2);
    }
}
