//! When a watchdog is started again, and when one that does not answer is taken for dead.

use std::time::{Duration, Instant};

/// How long one may take until it says that it watches: it may have to wait for the end of another one.
pub(super) const START: Duration = Duration::from_secs(10);

/// It is asked every second, and replaced when it has not answered so often.
pub(super) const TICK: Duration = Duration::from_secs(1);
const UNANSWERED_MAX: u32 = 5;

/// After one that has lived so long the next is started at once; else the pause doubles so often, up to 64 s.
const LONG: Duration = Duration::from_secs(60);
const DOUBLINGS: u32 = 7;

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    Ask,
    /// It is to be killed, for this reason.
    Kill(&'static str),
    Start,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Pace {
    state: State,
    /// Ends that came soon, one after the other.
    failures: u32,
}

#[derive(Debug)]
enum State {
    /// It is not to be there yet.
    Unwanted,
    Starting {
        since: Instant,
    },
    /// Counted in ticks of this process: one that was stopped itself has asked nothing meanwhile.
    Watching {
        since: Instant,
        unanswered: u32,
    },
    Gone {
        until: Instant,
    },
}

impl Pace {
    pub(super) fn new() -> Self {
        Self {
            state: State::Unwanted,
            failures: 0,
        }
    }

    pub(super) fn started(&mut self, now: Instant) {
        self.state = State::Starting { since: now };
    }

    pub(super) fn watches(&mut self, now: Instant) {
        self.state = State::Watching {
            since: now,
            unanswered: 0,
        };
    }

    pub(super) fn answered(&mut self) {
        if let State::Watching { unanswered, .. } = &mut self.state {
            *unanswered = 0;
        }
    }

    /// It has ended or was killed, or could not be started.
    pub(super) fn gone(&mut self, now: Instant) {
        let lived_long = matches!(self.state, State::Watching { since, .. } if now >= since + LONG);
        self.failures = if lived_long { 0 } else { self.failures };
        // The first time at once.
        let pause = match self.failures.min(DOUBLINGS) {
            0 => Duration::ZERO,
            times => TICK * (1 << (times - 1)),
        };
        self.failures += 1;
        self.state = State::Gone { until: now + pause };
    }

    /// When to ask for the next step.
    pub(super) fn next(&self, now: Instant) -> Instant {
        match self.state {
            State::Gone { until } => until,
            _ => now + TICK,
        }
    }

    pub(super) fn step(&mut self, now: Instant) -> Step {
        match &mut self.state {
            State::Gone { until } if now >= *until => Step::Start,
            State::Starting { since } if now >= *since + START => {
                Step::Kill("it does not say that it watches")
            }
            State::Watching { unanswered, .. } if *unanswered >= UNANSWERED_MAX => {
                Step::Kill("it does not answer")
            }
            State::Watching { unanswered, .. } => {
                *unanswered += 1;
                Step::Ask
            }
            State::Unwanted | State::Gone { .. } | State::Starting { .. } => Step::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_started_again_without_end_and_less_and_less_often() {
        let mut now = Instant::now();
        let mut pace = Pace::new();
        for pause in [0, 1, 2, 4, 8, 16, 32, 64, 64, 64] {
            pace.started(now);
            pace.gone(now);
            if pause > 0 {
                assert_eq!(pace.step(now), Step::Nothing, "{pause} s");
            }
            now += Duration::from_secs(pause);
            assert_eq!((pace.next(now), pace.step(now)), (now, Step::Start));
        }
    }

    #[test]
    fn after_one_that_lived_long_the_next_comes_at_once() {
        let now = Instant::now();
        let mut pace = Pace::new();
        pace.watches(now);
        pace.gone(now);
        pace.watches(now);
        pace.gone(now + LONG);
        assert_eq!(pace.step(now + LONG), Step::Start);
    }

    #[test]
    fn one_that_does_not_answer_is_killed_and_one_that_does_is_not() {
        let now = Instant::now();
        let mut pace = Pace::new();
        pace.watches(now);
        for _ in 0..100 {
            assert_eq!(pace.step(now), Step::Ask);
            pace.answered();
        }
        for _ in 0..UNANSWERED_MAX {
            assert_eq!(pace.step(now), Step::Ask);
        }
        assert!(matches!(pace.step(now), Step::Kill(_)));
    }

    #[test]
    fn one_that_never_says_that_it_watches_is_killed() {
        let now = Instant::now();
        let mut pace = Pace::new();
        assert_eq!(pace.step(now), Step::Nothing, "it is not to be there yet");
        pace.started(now);
        assert_eq!(pace.step(now), Step::Nothing);
        assert!(matches!(pace.step(now + START), Step::Kill(_)));
    }
}
