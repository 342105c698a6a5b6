//! Numbers as people read them, and columns that line up.

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
        assert_eq!(age(999), "now");
        assert_eq!(age(1500), "1 s ago");
        assert_eq!(age(9999), "9 s ago");
        assert_eq!(age(185_000), "3 min 5 s ago");
        assert_eq!(count(1, "token"), "1 token");
        assert_eq!(count(0, "token"), "0 tokens");
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
