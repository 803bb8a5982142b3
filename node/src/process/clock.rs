//! Reads the boot clock and the wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

use fabricbios_lease::{BootTime, Now};
use nix::time::{ClockId, clock_gettime};

/// Reads both clocks.
#[must_use]
pub fn now() -> Now {
    Now {
        boot: boot(),
        unix_ms: unix_ms(),
    }
}

fn boot() -> BootTime {
    // Every kernel since 2.6.39 has CLOCK_BOOTTIME, and the call cannot fail otherwise.
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("CLOCK_BOOTTIME exists");
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec()).unwrap_or(0);
    BootTime(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

fn unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The id of this boot of the machine; a fence of another boot is verified again. If the kernel does not report an id,
/// each call returns another id, so that two boots never have the same id.
#[must_use]
pub fn boot_id() -> String {
    boot_id_in("/proc/sys/kernel/random/boot_id")
}

fn boot_id_in(path: &str) -> String {
    std::fs::read_to_string(path).map_or_else(
        |_untold| format!("unknown at {} ms, up {} ns", unix_ms(), boot().0),
        |id| id.trim().to_owned(),
    )
}

/// The boot id as a number, never 0. If the kernel does not report an id, each start has another number.
#[must_use]
pub fn boot_number() -> u64 {
    let digits = boot_id().replace('-', "");
    #[allow(clippy::cast_possible_truncation, reason = "both halves are used")]
    let halves = |id: u128| (id >> 64) as u64 ^ id as u64;
    u128::from_str_radix(&digits, 16)
        .map_or_else(|_| unix_ms(), halves)
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_whose_names_are_unknown_are_not_one() {
        let unknown = || boot_id_in("/proc/no/such/file");
        assert_ne!(unknown(), unknown());
        assert_eq!(boot_id(), boot_id());
    }
}
