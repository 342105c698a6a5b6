//! Times as texts.

use std::time::Duration;

const DAY_S: u64 = 24 * 60 * 60;
/// Days of 400 years, after which the calendar repeats itself.
const ERA_DAYS: u64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH_DAYS: u64 = 719_468;

/// A time since the Unix epoch as RFC 3339 writes it, in UTC, to the microsecond.
pub(super) fn rfc3339(time: Duration) -> String {
    // Years begin in March here, so that the day that some of them have more is the last.
    let days = time.as_secs() / DAY_S + EPOCH_DAYS;
    let (era, day) = (days / ERA_DAYS, days % ERA_DAYS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    let second = time.as_secs() % DAY_S;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let micros = time.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `date -u` writes them.
    #[test]
    fn times_are_written_as_others_write_them() {
        for (second, wanted) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000000Z"),
            (1_796_051_567, "2026-11-30T15:12:47.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(rfc3339(Duration::from_secs(second)), wanted);
        }
        assert_eq!(rfc3339(Duration::from_millis(1)), "1970-01-01T00:00:00.001000Z");
    }
}
