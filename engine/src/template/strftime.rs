//! `strftime_now`: dates and times in UTC, with the directives that templates use.

use minijinja::{Error, ErrorKind};
use std::fmt::Write;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const SECONDS_A_DAY: i64 = 86_400;

/// `time.strftime(format)` at `unix_s` in the C locale. Unknown directives are errors.
pub(super) fn format(unix_s: i64, format: &str) -> Result<String, Error> {
    let days = unix_s.div_euclid(SECONDS_A_DAY);
    let second = unix_s.rem_euclid(SECONDS_A_DAY);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let (year, month, day) = civil_from_days(days);
    let month_name = MONTHS[month as usize - 1];
    let weekday = WEEKDAYS[(days + 4).rem_euclid(7) as usize];
    let hour_of_12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let written = match characters.next() {
            Some('Y') => write!(out, "{year}"),
            Some('y') => write!(out, "{:02}", year.rem_euclid(100)),
            Some('m') => write!(out, "{month:02}"),
            Some('d') => write!(out, "{day:02}"),
            Some('e') => write!(out, "{day:2}"),
            Some('j') => write!(out, "{:03}", days - days_from_civil(year, 1, 1) + 1),
            Some('B') => write!(out, "{month_name}"),
            Some('b') => write!(out, "{}", &month_name[..3]),
            Some('A') => write!(out, "{weekday}"),
            Some('a') => write!(out, "{}", &weekday[..3]),
            Some('H') => write!(out, "{hour:02}"),
            Some('I') => write!(out, "{hour_of_12:02}"),
            Some('M') => write!(out, "{minute:02}"),
            Some('S') => write!(out, "{second:02}"),
            Some('p') => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('F') => write!(out, "{year}-{month:02}-{day:02}"),
            Some('T') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => write!(out, "UTC"),
            Some('z') => write!(out, "+0000"),
            Some('%') => write!(out, "%"),
            other => {
                let directive: String = other.into_iter().collect();
                let message = format!("strftime_now does not know the directive %{directive}");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        };
        written.expect("a string takes all text");
    }
    Ok(out)
}

/// Year, month and day of a day since 1970-01-01, in the Gregorian calendar.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    // 400 years have 146097 days; the average year is at most two days off, so one year less is never too late.
    let mut year = 1970 + (days * 400).div_euclid(146_097) - 1;
    while days_from_civil(year + 1, 1, 1) <= days {
        year += 1;
    }
    let month = (1..=12).rev().find(|&month| days_from_civil(year, month, 1) <= days).unwrap_or(1);
    (year, month, days - days_from_civil(year, month, 1) + 1)
}

/// Days since 1970-01-01. Years are counted from March, so that the leap day comes last and months follow a line.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    const DAYS_BEFORE_1970: i64 = 719_468;
    let years = if month <= 2 { year - 1 } else { year };
    let months = (month + 9) % 12;
    365 * years + years.div_euclid(4) - years.div_euclid(100)
        + years.div_euclid(400)
        + (153 * months + 2) / 5
        + day
        - 1
        - DAYS_BEFORE_1970
}

#[cfg(test)]
mod tests {
    use super::{civil_from_days, days_from_civil, format};

    #[test]
    fn formats_as_strftime() {
        // Made with Python: time.strftime(f, time.gmtime(t)).
        let all = "%Y %y %m %d %e %j %B %b %A %a %H %I %M %S %p %F %T %%";
        let expected = "2024 24 07 05  5 187 July Jul Friday Fri 00 12 01 02 AM 2024-07-05 00:01:02 %";
        assert_eq!(format(1_720_137_662, all).unwrap(), expected);
        assert_eq!(format(951_868_799, "%d %b %Y %H:%M:%S %p %j").unwrap(), "29 Feb 2000 23:59:59 PM 060");
        assert_eq!(format(-1, "%A %F %T").unwrap(), "Wednesday 1969-12-31 23:59:59");
        assert!(format(0, "%Q").unwrap_err().to_string().contains("%Q"));
        assert!(format(0, "%").is_err());
    }

    #[test]
    fn calendar_goes_both_ways() {
        for days in (-800_000..800_000).step_by(17) {
            let (year, month, day) = civil_from_days(days);
            assert!((1..=12).contains(&month) && (1..=31).contains(&day), "{year}-{month}-{day}");
            assert_eq!(days_from_civil(year, month, day), days);
        }
    }
}
