//! How often something may be done.

use std::time::{Duration, Instant};

/// One thing each `every`, after `burst` at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    every: Duration,
    burst: u32,
    /// When all that was taken is paid for.
    paid: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(every: Duration, burst: u32) -> Self {
        Self {
            every,
            burst,
            paid: None,
        }
    }

    /// Whether it may be done now.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let paid = self.paid.map_or(now, |it| it.max(now));
        let may = paid + self.every <= now + self.every * self.burst;
        if may {
            self.paid = Some(paid + self.every);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_burst_there_is_one_each_period() {
        let begin = Instant::now();
        let mut pace = Pace::new(Duration::from_millis(100), 4);
        let at = |ms| begin + Duration::from_millis(ms);
        let mut taken = |ms| (0..50).filter(|_| pace.take(at(ms))).count();
        assert_eq!([taken(0), taken(99), taken(100), taken(350)], [4, 0, 1, 2]);
        assert_eq!(taken(100_000), 4);
    }
}
