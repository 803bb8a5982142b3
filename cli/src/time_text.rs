//! Times for people.

/// `2026-11-20T23:09:07Z`.
pub(crate) fn utc(unix_ms: u64) -> String {
    let secs = unix_ms / 1_000;
    let (year, month, day) = date(secs / 86_400);
    let (hour, minute, second) = (secs / 3_600 % 24, secs / 60 % 60, secs % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
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

/// Gregorian date of a day counted from 1970-01-01: the year begins in March, so that the leap day
/// is its last.
fn date(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468;
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
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
