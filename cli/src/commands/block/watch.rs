//! When a keeper looks at its lease, and when the device has to go.

use std::time::Duration;

use fabricbios_wire::{LeaseInfo, LeasePhase};

/// The device goes this long before the end, or a fiftieth of the term before it if that is more: the
/// kernel writes back what it holds, and the node takes it only until then.
const MARGIN_MIN: Duration = Duration::from_secs(2);
const MARGIN_SHARE: u32 = 50;
/// A lease is looked at twenty times in its term, within these bounds.
const LOOKS: u32 = 20;
const LOOK_AGAIN_MIN: Duration = Duration::from_secs(1);
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(10);

/// For one answer.
const PATIENCE_MAX: Duration = Duration::from_secs(3);

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing, for so long.
    Wait(Duration),
    /// Ask the node about the lease.
    Look,
    /// Take the device away.
    Detach,
}

/// Times are of the clock that goes on while the machine is suspended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    end: Duration,
    term: Duration,
    looked_at: Duration,
}

impl Watch {
    pub(super) fn new(info: &LeaseInfo, now: Duration) -> Self {
        let left = Duration::from_millis(info.remaining_ms);
        Self {
            end: now + left,
            term: left,
            looked_at: now,
        }
    }

    /// The node has answered; whether the lease goes on.
    pub(super) fn told(&mut self, info: &LeaseInfo, now: Duration) -> bool {
        let left = Duration::from_millis(info.remaining_ms);
        self.end = now + left;
        self.term = self.term.max(left);
        self.looked_at = now;
        matches!(info.phase, LeasePhase::Binding | LeasePhase::Active)
    }

    /// The node has not answered.
    pub(super) fn not_told(&mut self, now: Duration) {
        self.looked_at = now;
    }

    pub(super) fn next(&self, now: Duration) -> Next {
        let last_moment = self.end.saturating_sub(self.margin());
        let look_at = self.looked_at + (self.term / LOOKS).clamp(LOOK_AGAIN_MIN, LOOK_AGAIN_MAX);
        if now >= last_moment && self.looked_at >= last_moment {
            return Next::Detach;
        }
        // It may have been renewed since.
        if now >= last_moment || now >= look_at {
            return Next::Look;
        }
        Next::Wait(look_at.min(last_moment) - now)
    }

    /// How long an answer of the node is waited for: not beyond the moment at which the device goes, but for
    /// the last look, and never so long that nobody is heard meanwhile.
    pub(super) fn patience(&self, now: Duration) -> Duration {
        let last_moment = self.end.saturating_sub(self.margin());
        let left = last_moment.saturating_sub(now);
        left.clamp(self.margin() / 4, PATIENCE_MAX.max(self.margin() / 4))
    }

    /// Until the lease ends.
    pub(super) fn left(&self, now: Duration) -> Duration {
        self.end.saturating_sub(now)
    }

    fn margin(&self) -> Duration {
        MARGIN_MIN.max(self.term / MARGIN_SHARE).min(self.term / 2)
    }
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
            resource_type: ResourceType::Block,
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
            binding: Binding::default(),
            tenant: None,
            end: None,
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
        assert_eq!(watch.next(at(3)), Next::Look);
        assert!(watch.told(&lease(ACTIVE, 4), at(56)));
        assert_eq!(watch.next(at(57)), Next::Wait(Duration::from_secs(1)));
        assert_eq!(watch.next(at(58)), Next::Look);
        assert!(watch.told(&lease(ACTIVE, 2), at(58)));
        assert_eq!(watch.next(at(58)), Next::Detach);
    }

    #[test]
    fn a_silent_node_does_not_keep_the_device_past_its_time() {
        let watch = Watch::new(&lease(ACTIVE, 60), at(0));
        assert_eq!(watch.patience(at(3)), PATIENCE_MAX);
        assert_eq!(watch.patience(at(57)), Duration::from_secs(1));
        // The last look: most of the margin is left for the device.
        assert_eq!(watch.patience(at(58)), Duration::from_millis(500));
    }

    #[test]
    fn a_renewal_moves_the_end() {
        let mut watch = Watch::new(&lease(ACTIVE, 60), at(0));
        assert!(watch.told(&lease(ACTIVE, 60), at(58)));
        assert_eq!(watch.next(at(60)), Next::Wait(Duration::from_secs(1)));
        assert_eq!(watch.next(at(116)), Next::Look);
    }

    #[test]
    fn a_silent_node_ends_nothing_before_its_time() {
        let mut watch = Watch::new(&lease(ACTIVE, 60), at(0));
        for secs in [3, 6, 30, 57] {
            watch.not_told(at(secs));
            assert!(matches!(watch.next(at(secs)), Next::Wait(_)), "{secs}");
        }
        watch.not_told(at(58));
        assert_eq!(watch.next(at(58)), Next::Detach);
    }

    #[test]
    fn after_a_long_sleep_the_node_is_asked_first() {
        let watch = Watch::new(&lease(ACTIVE, 60), at(0));
        assert_eq!(watch.next(at(100_000)), Next::Look);
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
            assert_eq!(watch.told(&lease(*phase, 0), at(1)), goes_on, "{phase}");
        }
    }
}
