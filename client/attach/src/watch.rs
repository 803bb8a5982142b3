//! When the block daemon asks for its lease, and when it has to detach the device.

use std::time::Duration;

use fabricbios_wire::{LeaseInfo, LeasePhase};
use nix::time::{ClockId, clock_gettime};

/// The device is detached this long before the end of the lease, or a fiftieth of the term if that is longer: the kernel
/// writes its cache back, and the node takes writes only until the end.
const MARGIN_MIN: Duration = Duration::from_secs(2);
const MARGIN_SHARE: u32 = 50;
/// The node is asked for the lease twenty times in a term, within these bounds.
const QUERIES_PER_TERM: u32 = 20;
const QUERY_INTERVAL_MIN: Duration = Duration::from_secs(1);
const QUERY_INTERVAL_MAX: Duration = Duration::from_secs(10);

/// Longest wait for one answer.
const ANSWER_TIMEOUT_MAX: Duration = Duration::from_secs(3);

/// The next action of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Wait this long.
    Wait(Duration),
    /// Ask the node about the lease.
    Query,
    /// Detach the device.
    Detach,
}

/// The schedule of one lease. Times are those of the boot-time clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    end: Duration,
    term: Duration,
    queried_at: Duration,
}

impl Watch {
    pub(crate) fn new(info: &LeaseInfo, now: Duration) -> Self {
        let left = Duration::from_millis(info.remaining_ms);
        Self {
            end: now + left,
            term: left,
            queried_at: now,
        }
    }

    /// Takes the answer of the node; returns whether the lease goes on.
    pub(crate) fn answered(&mut self, info: &LeaseInfo, now: Duration) -> bool {
        let left = Duration::from_millis(info.remaining_ms);
        self.end = now + left;
        self.term = self.term.max(left);
        self.queried_at = now;
        matches!(info.phase, LeasePhase::Binding | LeasePhase::Active)
    }

    /// The node has not answered.
    pub(crate) fn no_answer(&mut self, now: Duration) {
        self.queried_at = now;
    }

    pub(crate) fn next(&self, now: Duration) -> Next {
        let last_moment = self.end.saturating_sub(self.margin());
        let query_at = self.queried_at
            + (self.term / QUERIES_PER_TERM).clamp(QUERY_INTERVAL_MIN, QUERY_INTERVAL_MAX);
        if now >= last_moment && self.queried_at >= last_moment {
            return Next::Detach;
        }
        // The lease may have been renewed since the last answer.
        if now >= last_moment || now >= query_at {
            return Next::Query;
        }
        Next::Wait(query_at.min(last_moment) - now)
    }

    /// How long to wait for an answer of the node: not beyond the time of detaching, except for the last query, and never so
    /// long that the control socket has to wait.
    pub(crate) fn answer_timeout(&self, now: Duration) -> Duration {
        let last_moment = self.end.saturating_sub(self.margin());
        let left = last_moment.saturating_sub(now);
        left.clamp(self.margin() / 4, ANSWER_TIMEOUT_MAX.max(self.margin() / 4))
    }

    /// Time until the lease ends.
    pub(crate) fn remaining(&self, now: Duration) -> Duration {
        self.end.saturating_sub(now)
    }

    fn margin(&self) -> Duration {
        MARGIN_MIN.max(self.term / MARGIN_SHARE).min(self.term / 2)
    }
}

/// The boot-time clock, which goes on while the machine is suspended, as the lease does.
pub(crate) fn now() -> Duration {
    // This fails only for an unknown clock, and Linux has this one since 2.6.39.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::{
        Binding, Effective, Generation, LeaseId, LeaseStatus, ResourceId, ResourceType,
    };

    use super::*;

    fn lease(phase: LeasePhase, secs: u64) -> LeaseInfo {
        LeaseInfo {
            lease_id: LeaseId(1),
            resource_id: ResourceId(1),
            status: LeaseStatus::Active,
            phase,
            generation: Generation(1),
            capacity: 1,
            granted_at_unix_ms: 0,
            expires_at_unix_ms: 0,
            renewable_at_unix_ms: 0,
            grace_ends_unix_ms: 0,
            remaining_ms: secs * 1_000,
            effective: Effective::default(),
            binding: Binding::plain(ResourceType::Block),
            tenant: None,
            end: None,
            intent: None,
            request_token: None,
        }
    }

    const ACTIVE: LeasePhase = LeasePhase::Active;

    fn at(secs: u64) -> Duration {
        Duration::from_secs(1_000 + secs)
    }

    #[test]
    fn the_last_look_comes_before_the_device_goes() {
        let mut watch = Watch::new(&lease(ACTIVE, 60), at(0));
        assert_eq!(watch.next(at(0)), Next::Wait(Duration::from_secs(3)));
        assert_eq!(watch.next(at(3)), Next::Query);
        assert!(watch.answered(&lease(ACTIVE, 4), at(56)));
        assert_eq!(watch.next(at(57)), Next::Wait(Duration::from_secs(1)));
        assert_eq!(watch.next(at(58)), Next::Query);
        assert!(watch.answered(&lease(ACTIVE, 2), at(58)));
        assert_eq!(watch.next(at(58)), Next::Detach);
    }

    #[test]
    fn a_silent_node_does_not_keep_the_device_past_its_time() {
        let watch = Watch::new(&lease(ACTIVE, 60), at(0));
        assert_eq!(watch.answer_timeout(at(3)), ANSWER_TIMEOUT_MAX);
        assert_eq!(watch.answer_timeout(at(57)), Duration::from_secs(1));
        // The last query: most of the margin is left for the device.
        assert_eq!(watch.answer_timeout(at(58)), Duration::from_millis(500));
    }

    #[test]
    fn a_renewal_moves_the_end() {
        let mut watch = Watch::new(&lease(ACTIVE, 60), at(0));
        assert!(watch.answered(&lease(ACTIVE, 60), at(58)));
        assert_eq!(watch.next(at(60)), Next::Wait(Duration::from_secs(1)));
        assert_eq!(watch.next(at(116)), Next::Query);
    }

    #[test]
    fn a_silent_node_ends_nothing_before_its_time() {
        let mut watch = Watch::new(&lease(ACTIVE, 60), at(0));
        for secs in [3, 6, 30, 57] {
            watch.no_answer(at(secs));
            assert!(matches!(watch.next(at(secs)), Next::Wait(_)), "{secs}");
        }
        watch.no_answer(at(58));
        assert_eq!(watch.next(at(58)), Next::Detach);
    }

    #[test]
    fn after_a_long_sleep_the_node_is_asked_first() {
        let watch = Watch::new(&lease(ACTIVE, 60), at(0));
        assert_eq!(watch.next(at(100_000)), Next::Query);
    }

    #[test]
    fn long_leases_have_long_margins_and_short_ones_are_of_some_use() {
        let day = Watch::new(&lease(ACTIVE, 100_000), at(0));
        assert_eq!(day.margin(), Duration::from_secs(2_000));
        let short = Watch::new(&lease(ACTIVE, 2), at(0));
        assert_eq!(short.margin(), Duration::from_secs(1));
        assert_eq!(short.next(at(0)), Next::Wait(Duration::from_secs(1)));
    }

    #[test]
    fn a_lease_that_is_over_does_not_go_on() {
        for phase in LeasePhase::ALL {
            let mut watch = Watch::new(&lease(ACTIVE, 60), at(0));
            let goes_on = matches!(phase, LeasePhase::Binding | LeasePhase::Active);
            assert_eq!(watch.answered(&lease(*phase, 0), at(1)), goes_on, "{phase}");
        }
    }
}
