//! The boot-time clock, on which deadlines run.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Time since boot, suspended time included. If the clock cannot be read, every deadline counts as over, so that no lease
/// is served on a guess.
pub(super) fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::MAX, Duration::from)
}
