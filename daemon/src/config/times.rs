//! Lengths of time in the configuration: a number with a unit, such as `"30d"` or `"12 h"`, or `"off"`.

use serde::Deserialize;
use std::str::FromStr;
use std::time::Duration;

/// How old something may become; `None` is `"off"`: as old as it likes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Age(pub(super) Option<Duration>);

/// Seconds of each unit.
const UNITS: [(&str, u64); 4] = [("s", 1), ("min", 60), ("h", 60 * 60), ("d", 24 * 60 * 60)];

fn parse(text: &str) -> Option<Duration> {
    let (number, seconds) =
        UNITS.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, *seconds)))?;
    number.trim().parse::<u64>().ok()?.checked_mul(seconds).map(Duration::from_secs)
}

/// As the configuration would say it.
pub(super) fn in_words(time: Duration) -> String {
    let whole = |&&(_, seconds): &&(&str, u64)| time.as_secs().is_multiple_of(seconds);
    let (unit, seconds) = UNITS.iter().rfind(whole).expect("a second divides all");
    format!("{}{unit}", time.as_secs() / seconds)
}

impl FromStr for Age {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            return Ok(Self(None));
        }
        let age = parse(text).filter(|age| !age.is_zero());
        age.map(|age| Self(Some(age)))
            .ok_or_else(|| format!("{text:?} is no time; one such as 30d, 12h, 90min or 600s works, or off"))
    }
}

impl TryFrom<String> for Age {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let seconds = |text: &str| text.parse::<Age>().expect(text).0.map(|age| age.as_secs());
        assert_eq!(seconds("30d"), Some(2_592_000));
        assert_eq!((seconds("12 h"), seconds("90min"), seconds("1s")), (Some(43_200), Some(5400), Some(1)));
        assert_eq!(seconds("off"), None);
        for text in ["30d", "36h", "90min", "61s"] {
            assert_eq!(in_words(parse(text).expect(text)), text);
        }
        for wrong in
            ["", "d", "0s", "-1d", "1.5h", "30", "3 moons", "99999999999999999999d", "9999999999999999d"]
        {
            let error = wrong.parse::<Age>().expect_err(wrong);
            assert!(error.contains("30d"), "{error}");
        }
    }
}
