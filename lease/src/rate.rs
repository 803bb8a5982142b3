//! How often each tenant may ask.

use alloc::{collections::BTreeMap, sync::Arc};
use core::time::Duration;

use crate::BootTime;

/// So much of the time ahead may be used up at once.
const AHEAD: Duration = Duration::from_secs(1);

/// With fewer tenants than this, none is dropped.
const KEPT: usize = 1024;

/// The generic cell rate algorithm: each request uses up a part of the time, and nobody may be further ahead of the
/// clock than [`AHEAD`].
#[derive(Debug, Default)]
pub(crate) struct Rates {
    used_until: BTreeMap<Arc<str>, BootTime>,
    /// With so many tenants, those that have not asked lately are dropped.
    drop_at: usize,
}

impl Rates {
    /// Whether one more request is within `per_sec`; if so it counts.
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
        // What was not used is not saved up beyond a second.
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
