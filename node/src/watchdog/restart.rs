//! Decides when the watchdog is pinged, killed and restarted.

use std::time::{Duration, Instant};

/// How long a watchdog may take until it watches: it may have to wait for the end of an earlier watchdog.
pub(super) const START: Duration = Duration::from_secs(10);

/// The watchdog is pinged every second, and replaced after [`UNANSWERED_MAX`] pings without a reply.
pub(super) const TICK: Duration = Duration::from_secs(1);
const UNANSWERED_MAX: u32 = 5;

/// A watchdog that ends after this time is restarted at once; otherwise the pause doubles, up to 64 s.
const LONG: Duration = Duration::from_secs(60);
const DOUBLINGS: u32 = 7;

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    Ask,
    /// Kill it, for this reason.
    Kill(&'static str),
    Start,
}

/// See the module.
#[derive(Debug)]
pub(super) struct RestartPolicy {
    state: WatchdogState,
    /// Consecutive early ends.
    failures: u32,
}

#[derive(Debug)]
enum WatchdogState {
    /// [`Watchdog::begin`](super::Watchdog::begin) was not called yet.
    Unwanted,
    Starting {
        since: Instant,
    },
    /// `unanswered` counts pings, not time: a stopped daemon sends no pings.
    Watching {
        since: Instant,
        unanswered: u32,
    },
    Gone {
        until: Instant,
    },
}

impl RestartPolicy {
    pub(super) fn new() -> Self {
        Self {
            state: WatchdogState::Unwanted,
            failures: 0,
        }
    }

    pub(super) fn started(&mut self, now: Instant) {
        self.state = WatchdogState::Starting { since: now };
    }

    pub(super) fn watches(&mut self, now: Instant) {
        self.state = WatchdogState::Watching {
            since: now,
            unanswered: 0,
        };
    }

    pub(super) fn answered(&mut self) {
        if let WatchdogState::Watching { unanswered, .. } = &mut self.state {
            *unanswered = 0;
        }
    }

    /// The watchdog has ended, was killed, or could not be started.
    pub(super) fn gone(&mut self, now: Instant) {
        let lived_long =
            matches!(self.state, WatchdogState::Watching { since, .. } if now >= since + LONG);
        self.failures = if lived_long { 0 } else { self.failures };
        // The first restart comes at once.
        let pause = match self.failures.min(DOUBLINGS) {
            0 => Duration::ZERO,
            times => TICK * (1 << (times - 1)),
        };
        self.failures += 1;
        self.state = WatchdogState::Gone { until: now + pause };
    }

    /// When to call `step` next.
    pub(super) fn next(&self, now: Instant) -> Instant {
        match self.state {
            WatchdogState::Gone { until } => until,
            _ => now + TICK,
        }
    }

    pub(super) fn step(&mut self, now: Instant) -> Action {
        match &mut self.state {
            WatchdogState::Gone { until } if now >= *until => Action::Start,
            WatchdogState::Starting { since } if now >= *since + START => {
                Action::Kill("it does not say that it watches")
            }
            WatchdogState::Watching { unanswered, .. } if *unanswered >= UNANSWERED_MAX => {
                Action::Kill("it does not answer")
            }
            WatchdogState::Watching { unanswered, .. } => {
                *unanswered += 1;
                Action::Ask
            }
            WatchdogState::Unwanted
            | WatchdogState::Gone { .. }
            | WatchdogState::Starting { .. } => Action::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_started_again_without_end_and_less_and_less_often() {
        let mut now = Instant::now();
        let mut restarts = RestartPolicy::new();
        for pause in [0, 1, 2, 4, 8, 16, 32, 64, 64, 64] {
            restarts.started(now);
            restarts.gone(now);
            if pause > 0 {
                assert_eq!(restarts.step(now), Action::Nothing, "{pause} s");
            }
            now += Duration::from_secs(pause);
            assert_eq!(
                (restarts.next(now), restarts.step(now)),
                (now, Action::Start)
            );
        }
    }

    #[test]
    fn after_one_that_lived_long_the_next_comes_at_once() {
        let now = Instant::now();
        let mut restarts = RestartPolicy::new();
        restarts.watches(now);
        restarts.gone(now);
        restarts.watches(now);
        restarts.gone(now + LONG);
        assert_eq!(restarts.step(now + LONG), Action::Start);
    }

    #[test]
    fn one_that_does_not_answer_is_killed_and_one_that_does_is_not() {
        let now = Instant::now();
        let mut restarts = RestartPolicy::new();
        restarts.watches(now);
        for _ in 0..100 {
            assert_eq!(restarts.step(now), Action::Ask);
            restarts.answered();
        }
        for _ in 0..UNANSWERED_MAX {
            assert_eq!(restarts.step(now), Action::Ask);
        }
        assert!(matches!(restarts.step(now), Action::Kill(_)));
    }

    #[test]
    fn one_that_never_says_that_it_watches_is_killed() {
        let now = Instant::now();
        let mut restarts = RestartPolicy::new();
        assert_eq!(
            restarts.step(now),
            Action::Nothing,
            "it is not to be there yet"
        );
        restarts.started(now);
        assert_eq!(restarts.step(now), Action::Nothing);
        assert!(matches!(restarts.step(now + START), Action::Kill(_)));
    }
}
