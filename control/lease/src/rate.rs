//! Limits the rate of requests of each tenant.

use alloc::{collections::BTreeMap, sync::Arc};
use core::time::Duration;

use crate::BootTime;

/// Requests may use up this much time ahead of the clock.
const AHEAD: Duration = Duration::from_secs(1);

/// Idle tenants are dropped only above this number.
const KEPT: usize = 1024;

/// The generic cell rate algorithm: each request uses up a part of the time, and no tenant may be further ahead of the
/// clock than [`AHEAD`].
#[derive(Debug, Default)]
pub(crate) struct Rates {
    used_until: BTreeMap<Arc<str>, BootTime>,
    /// At this number of tenants, idle ones are dropped.
    drop_at: usize,
}

impl Rates {
    /// Counts one more request if it is within `per_sec`; returns whether it is.
    pub(crate) fn take(&mut self, now: BootTime, tenant: &Arc<str>, per_sec: u32) -> bool {
        if self.used_until.len() >= self.drop_at.max(KEPT) {
            self.used_until.retain(|_, used_until| *used_until > now);
            self.drop_at = self.used_until.len() * 2;
        }
        let used_until = self.used_until.entry(tenant.clone()).or_insert(now);
        let next = (*used_until).max(now) + Duration::from_secs(1) / per_sec.max(1);
        let within = next <= now + AHEAD;
        if within {
            *used_until = next;
        }
        within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_too_often_waits_and_nobody_else_does() {
        let mut rates = Rates::default();
        let (loud, quiet): (Arc<str>, Arc<str>) = ("loud".into(), "quiet".into());
        let now = BootTime(5_000_000_000);
        assert_eq!((0..100).filter(|_| rates.take(now, &loud, 10)).count(), 10);
        assert!(rates.take(now, &quiet, 10));
        let later = now + Duration::from_millis(250);
        assert_eq!((0..100).filter(|_| rates.take(later, &loud, 10)).count(), 2);
        // Unused time is saved up for a second at most.
        let much_later = now + Duration::from_secs(60);
        assert_eq!(
            (0..100)
                .filter(|_| rates.take(much_later, &loud, 10))
                .count(),
            10
        );
    }

    #[test]
    fn tenants_of_long_ago_take_no_room() {
        let mut rates = Rates::default();
        for number in 0..10_000u64 {
            let name: Arc<str> = alloc::format!("{number}").into();
            assert!(rates.take(BootTime(number * 1_000_000_000), &name, 5));
        }
        assert!(rates.used_until.len() <= KEPT);
    }
}
