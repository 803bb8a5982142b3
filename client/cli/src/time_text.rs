//! Times for people.

use std::time::{SystemTime, UNIX_EPOCH};

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// `2026-11-20T23:09:07Z`, and the last second of the year 9999 for all later times.
pub(crate) fn utc(unix_ms: u64) -> String {
    const LAST_SECOND: i64 = 253_402_300_799;
    let secs = i64::try_from(unix_ms / 1_000).unwrap_or(LAST_SECOND);
    let at = OffsetDateTime::from_unix_timestamp(secs.min(LAST_SECOND));
    // A time up to then has this form.
    at.ok()
        .and_then(|at| at.format(&Rfc3339).ok())
        .unwrap_or_default()
}

/// The wall clock of this machine.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// `59 s`, `2 min 5 s`, `3 h 0 min`.
pub(crate) fn span(ms: u64) -> String {
    let secs = ms / 1_000;
    match secs {
        0 => format!("{ms} ms"),
        1..120 => format!("{secs} s"),
        120..7_200 => format!("{} min {} s", secs / 60, secs % 60),
        _ => format!("{} h {} min", secs / 3_600, secs / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_at_the_edges_of_the_calendar() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_800_000_000, "2027-01-15T08:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (secs, text) in cases {
            assert_eq!(utc(secs * 1_000), text);
        }
        assert!(utc(u64::MAX).ends_with('Z'));
    }

    #[test]
    fn spans() {
        let cases = [
            (7, "7 ms"),
            (59_999, "59 s"),
            (125_000, "2 min 5 s"),
            (10_800_000, "3 h 0 min"),
        ];
        for (ms, text) in cases {
            assert_eq!(span(ms), text);
        }
    }
}
