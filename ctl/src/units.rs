//! Numbers as people read and write them, and columns that line up.

use zllm_wire::{Tier, TokenTiers};

/// `98.4 MiB`; three digits are enough to compare by.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(unit > 0 && value < 100.0);
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// As [`bytes`], and `-` for nothing.
pub(crate) fn bytes_or_dash(count: u64) -> String {
    if count == 0 { "-".into() } else { bytes(count) }
}

/// `0.12 s`, `14 s`, `3 min 5 s`, `2 h 7 min`, `4 d 1 h`.
pub(crate) fn duration_ms(ms: f64) -> String {
    let seconds = ms / 1000.0;
    if seconds < 9.995 {
        return format!("{seconds:.2} s");
    }
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {} min", whole / 3600, whole / 60 % 60),
        _ => format!("{} d {} h", whole / 86_400, whole / 3600 % 24),
    }
}

/// `0.3 s`, `14 s`, `3 min`, `2 h`, `4 d`: at most six characters, for a column.
pub(crate) fn span(ms: u64) -> String {
    match ms {
        0..9_950 => format!("{:.1} s", ms as f64 / 1000.0),
        9_950..59_500 => format!("{} s", (ms + 500) / 1000),
        59_500..3_570_000 => format!("{} min", (ms + 30_000) / 60_000),
        3_570_000..86_400_000 => format!("{} h", (ms + 1_800_000) / 3_600_000),
        _ => format!("{} d", ms / 86_400_000),
    }
}

/// How long to wait, in whole seconds and never less: `2 s`, `3 min 5 s`.
pub(crate) fn wait(ms: u64) -> String {
    match ms.div_ceil(1000).max(1) {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => duration_ms(seconds as f64 * 1000.0),
    }
}

/// `999`, `12.3k`, `1.05M`: three digits are enough to compare by.
pub(crate) fn short(number: u64) -> String {
    const UNITS: [&str; 5] = ["", "k", "M", "G", "T"];
    let (mut value, mut unit) = (number as f64, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = match value {
        _ if unit == 0 => 0,
        0.0..9.995 => 2,
        9.995..99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{}", UNITS[unit])
}

/// Text of so many characters at most; the last one is `…` when it was longer.
pub(crate) fn cut(text: &str, chars: usize) -> String {
    match text.chars().count() {
        count if count <= chars => text.to_owned(),
        _ => text.chars().take(chars.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// The milliseconds of `30s`, `15m` (or `15min`, as in the daemon's configuration), `12h` or `7d`.
pub(crate) fn parse_duration_ms(text: &str) -> Result<u64, String> {
    const UNITS_MS: [(&str, u64); 5] =
        [("s", 1000), ("m", 60_000), ("min", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let not_one = || format!("{text:?} is no duration, such as 30s, 15m, 12h or 7d");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, unit_ms) = UNITS_MS.into_iter().find(|(name, _)| *name == unit).ok_or_else(not_one)?;
    if number.is_empty() {
        return Err(not_one());
    }
    let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms));
    match ms {
        Some(0) => Err(format!("{text:?} is no time at all; at least 1s")),
        Some(ms) => Ok(ms),
        None => Err(format!("{text:?} is too long")),
    }
}

/// Where something lies, as people say it.
pub(crate) fn place(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "on device",
        Tier::Ram => "in RAM",
        Tier::Ssd => "on SSD",
    }
}

/// `10 on device, 6 on SSD`; empty for nothing.
pub(crate) fn by_place(counts: [u64; 3]) -> String {
    let tiers = [Tier::Device, Tier::Ram, Tier::Ssd];
    let parts = counts.into_iter().zip(tiers).filter(|(count, _)| *count > 0);
    parts.map(|(count, tier)| format!("{count} {}", place(tier))).collect::<Vec<_>>().join(", ")
}

/// `0 cached`, `16 cached in RAM`, `16 cached: 10 on device, 6 on SSD`.
pub(crate) fn cached(tokens: u64, by_tier: &TokenTiers) -> String {
    let TokenTiers { device, ram, ssd } = *by_tier;
    let only = [(device, Tier::Device), (ram, Tier::Ram), (ssd, Tier::Ssd)];
    match only.into_iter().find(|(count, _)| *count == tokens) {
        _ if tokens == 0 => "0 cached".into(),
        Some((_, tier)) => format!("{tokens} cached {}", place(tier)),
        None => format!("{tokens} cached: {}", by_place([device, ram, ssd])),
    }
}

/// How long ago something was: `now` below a second.
pub(crate) fn age(ms: u64) -> String {
    match ms / 1000 {
        0 => "now".into(),
        seconds @ 1..10 => format!("{seconds} s ago"),
        _ => format!("{} ago", duration_ms(ms as f64)),
    }
}

/// `1 token`, `2 tokens`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Which side a column's cells lean to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows under a header, as wide as their widest cell, two spaces apart.
pub(crate) struct Table {
    columns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub(crate) fn new<const N: usize>(columns: [(&str, Align); N]) -> Self {
        let header = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        Self { columns: columns.iter().map(|(_, align)| *align).collect(), rows: vec![header] }
    }

    /// Adds a row of as many cells as there are columns.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        assert_eq!(N, self.columns.len(), "a row has a cell for every column");
        self.rows.push(cells.into());
    }

    /// The lines, each ended.
    pub(crate) fn render(&self) -> String {
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), align) in row.iter().zip(&widths).zip(&self.columns) {
                let pad = " ".repeat(width - cell.chars().count());
                match align {
                    Align::Left => line.extend([cell.as_str(), &pad, "  "]),
                    Align::Right => line.extend([&pad, cell.as_str(), "  "]),
                }
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// `name  value` lines with the values in one column.
pub(crate) fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    pairs.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn human_bytes() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 KiB"),
            (98_362_432, "93.8 MiB"),
            (491_400_064, "469 MiB"),
            (1 << 40, "1.0 TiB"),
            (u64::MAX, "16777216 TiB"),
        ];
        for (count, text) in cases {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn human_durations() {
        let cases = [
            (0.0, "0.00 s"),
            (123.4, "0.12 s"),
            (9994.0, "9.99 s"),
            (9996.0, "10 s"),
            (59_400.0, "59 s"),
            (185_000.0, "3 min 5 s"),
            (7_620_000.0, "2 h 7 min"),
            (349_200_000.0, "4 d 1 h"),
        ];
        for (ms, text) in cases {
            assert_eq!(duration_ms(ms), text);
        }
        let spans = [
            (0, "0.0 s"),
            (9_949, "9.9 s"),
            (9_950, "10 s"),
            (59_499, "59 s"),
            (59_500, "1 min"),
            (3_569_999, "59 min"),
            (3_570_000, "1 h"),
            (86_399_999, "24 h"),
            (86_400_000, "1 d"),
        ];
        for (ms, text) in spans {
            assert_eq!(span(ms), text);
        }
        for (ms, text) in [(0, "1 s"), (1001, "2 s"), (59_001, "1 min 0 s"), (185_000, "3 min 5 s")] {
            assert_eq!(wait(ms), text);
        }
        assert_eq!(age(999), "now");
        assert_eq!(age(1500), "1 s ago");
        assert_eq!(age(9999), "9 s ago");
        assert_eq!(age(185_000), "3 min 5 s ago");
        assert_eq!(count(1, "token"), "1 token");
        assert_eq!(count(0, "token"), "0 tokens");
    }

    #[test]
    fn short_numbers_and_texts() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1000, "1.00k"),
            (12_345, "12.3k"),
            (99_960, "100k"),
            (999_600, "1.00M"),
            (1_048_576, "1.05M"),
        ];
        for (number, text) in cases {
            assert_eq!(short(number), text);
        }
        assert_eq!((cut("héé", 3), cut("hééé", 3)), ("héé".into(), "hé…".into()));
    }

    #[test]
    fn durations_that_people_write() {
        let good =
            [("30s", 30_000), ("15m", 900_000), ("2min", 120_000), ("12h", 43_200_000), ("7d", 604_800_000)];
        for (text, ms) in good {
            assert_eq!(parse_duration_ms(text), Ok(ms));
        }
        for text in ["", "12", "h", "1.5h", "-1h", "1 h", "1w", "1h30m", "é"] {
            assert!(parse_duration_ms(text).is_err_and(|error| error.contains("is no duration")), "{text}");
        }
        assert_eq!(parse_duration_ms("0h"), Err("\"0h\" is no time at all; at least 1s".into()));
        for text in ["99999999999999999999s", "18446744073709551615d"] {
            assert!(parse_duration_ms(text).is_err_and(|error| error.contains("too long")), "{text}");
        }
    }

    #[test]
    fn what_was_cached_where() {
        let tiers = |device, ram, ssd| TokenTiers { device, ram, ssd };
        assert_eq!(cached(0, &tiers(0, 0, 0)), "0 cached");
        assert_eq!(cached(16, &tiers(0, 16, 0)), "16 cached in RAM");
        assert_eq!(cached(16, &tiers(10, 0, 6)), "16 cached: 10 on device, 6 on SSD");
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new([("NAME", Align::Left), ("SIZE", Align::Right), ("WHAT", Align::Left)]);
        table.row(["é".into(), "1".into(), "x".into()]);
        table.row(["longer".into(), "12345".into(), String::new()]);
        assert_eq!(table.render(), "NAME     SIZE  WHAT\né           1  x\nlonger  12345\n");
        assert_eq!(pairs(&[("a", "1".into()), ("long", "2".into())]), "a     1\nlong  2\n");
    }
}
