//! Time as an argument. Deadlines run on the boot-time clock; wall time is for people.

use core::{ops::Add, time::Duration};

use serde::{Deserialize, Serialize};

/// Nanoseconds of `CLOCK_BOOTTIME`: it counts suspended time and never jumps.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct BootTime(pub u64);

impl BootTime {
    /// How long until `later`; zero if it has passed.
    #[must_use]
    pub fn until(self, later: Self) -> Duration {
        Duration::from_nanos(later.0.saturating_sub(self.0))
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

/// Both clocks, read together by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The time for decisions.
    pub boot: BootTime,
    /// The time for people: milliseconds since 1970.
    pub unix_ms: u64,
}

impl Now {
    /// The wall time that corresponds to a boot time, as far as is known now.
    #[must_use]
    pub fn unix_ms_at(self, at: BootTime) -> u64 {
        if at >= self.boot {
            self.unix_ms
                .saturating_add((at.0 - self.boot.0) / 1_000_000)
        } else {
            self.unix_ms
                .saturating_sub((self.boot.0 - at.0) / 1_000_000)
        }
    }
}
