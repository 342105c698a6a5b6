//! What the runs of a bench add up to: medians, the better of two settings, ratios, and the table.

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// What one run of one program measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Run {
    prefill_tokens_per_s: f64,
    decode_tokens_per_s: f64,
    load_s: f64,
    peak_rss_bytes: f64,
}

/// A rate over several rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rate {
    median_tokens_per_s: f64,
    /// The fastest round over the slowest.
    spread: f64,
}

/// One program's medians over the rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Median {
    prefill: Rate,
    decode: Rate,
    load_s: f64,
    peak_rss_bytes: f64,
}

/// One model's result; `peer` is absent when there is no llama.cpp.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) model: String,
    pub(super) ours: Median,
    pub(super) peer: Option<Median>,
}

impl Run {
    /// Reads the last line of a program's output, one JSON object.
    pub(super) fn parse(stdout: &str) -> Result<Self> {
        let line = stdout.lines().rfind(|line| !line.trim().is_empty()).context("printed nothing")?;
        let object: Value =
            serde_json::from_str(line).with_context(|| format!("no JSON object: {line:?}"))?;
        let number = |key: &str| {
            let value = object[key].as_f64().with_context(|| format!("no number {key:?} in {line:?}"))?;
            if !value.is_finite() || value <= 0.0 {
                bail!("{key:?} is {value}");
            }
            Ok(value)
        };
        Ok(Self {
            prefill_tokens_per_s: number("prefill_tokens_per_s")?,
            decode_tokens_per_s: number("decode_tokens_per_s")?,
            load_s: number("load_s")?,
            peak_rss_bytes: number("peak_rss_bytes")?,
        })
    }
}

impl Rate {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let sorted = sorted(values);
        Self { median_tokens_per_s: middle(&sorted), spread: sorted[sorted.len() - 1] / sorted[0] }
    }

    fn better(self, other: Self) -> Self {
        if self.median_tokens_per_s >= other.median_tokens_per_s { self } else { other }
    }
}

impl Median {
    /// Of at least one run.
    pub(super) fn of(runs: &[Run]) -> Self {
        Self {
            prefill: Rate::of(runs.iter().map(|run| run.prefill_tokens_per_s)),
            decode: Rate::of(runs.iter().map(|run| run.decode_tokens_per_s)),
            load_s: middle(&sorted(runs.iter().map(|run| run.load_s))),
            peak_rss_bytes: middle(&sorted(runs.iter().map(|run| run.peak_rss_bytes))),
        }
    }

    /// The better of two settings, figure by figure.
    pub(super) fn better(&self, other: &Self) -> Self {
        Self {
            prefill: self.prefill.better(other.prefill),
            decode: self.decode.better(other.decode),
            load_s: self.load_s.min(other.load_s),
            peak_rss_bytes: self.peak_rss_bytes.min(other.peak_rss_bytes),
        }
    }
}

impl Row {
    /// (test, ours, the peer's)
    fn rates(&self) -> [(&'static str, Rate, Option<Rate>); 2] {
        [
            ("prefill 512", self.ours.prefill, self.peer.map(|peer| peer.prefill)),
            ("decode 128", self.ours.decode, self.peer.map(|peer| peer.decode)),
        ]
    }
}

/// A Markdown table of the rates and their ratios.
pub(super) fn rates_table(rows: &[Row]) -> String {
    let mut text =
        "| model | test | zllm, tokens/s | llama.cpp, tokens/s | ratio | max/min: zllm | llama.cpp |\n\
        |---|---|---:|---:|---:|---:|---:|\n"
            .to_owned();
    for row in rows {
        for (test, ours, peer) in row.rates() {
            let (model, rate, spread) = (&row.model, ours.median_tokens_per_s, ours.spread);
            let peer_rate = or_dash(peer.map(|peer| format!("{:.1}", peer.median_tokens_per_s)));
            let ratio = or_dash(peer.map(|peer| format!("{:.2}", rate / peer.median_tokens_per_s)));
            let peer_spread = or_dash(peer.map(|peer| format!("{:.2}", peer.spread)));
            text.push_str(&format!(
                "| {model} | {test} | {rate:.1} | {peer_rate} | {ratio} | {spread:.2} | {peer_spread} |\n"
            ));
        }
    }
    text
}

/// A Markdown table of load times and memory.
pub(super) fn resources_table(rows: &[Row]) -> String {
    let mut text = "| model | load, s: zllm | llama.cpp | peak memory, MB: zllm | llama.cpp |\n\
        |---|---:|---:|---:|---:|\n"
        .to_owned();
    for Row { model, ours, peer } in rows {
        let peer_load = or_dash(peer.map(|peer| format!("{:.2}", peer.load_s)));
        let peer_memory = or_dash(peer.map(|peer| format!("{:.0}", peer.peak_rss_bytes / 1e6)));
        let (load, memory) = (ours.load_s, ours.peak_rss_bytes / 1e6);
        text.push_str(&format!("| {model} | {load:.2} | {peer_load} | {memory:.0} | {peer_memory} |\n"));
    }
    text
}

/// Fails when ours is slower than `at_least` times the peer anywhere; without the peer no ratio can be shown.
pub(super) fn check_ratios(rows: &[Row], at_least: f64) -> Result<()> {
    let mut slow = Vec::new();
    for row in rows {
        for (test, ours, peer) in row.rates() {
            let ratio = peer.map_or(0.0, |peer| ours.median_tokens_per_s / peer.median_tokens_per_s);
            if ratio < at_least {
                slow.push(format!("{} {test}: {ratio:.2}", row.model));
            }
        }
    }
    if !slow.is_empty() {
        bail!("below {at_least} of llama.cpp: {}", slow.join("; "));
    }
    Ok(())
}

fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".to_owned())
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn middle(sorted: &[f64]) -> f64 {
    (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(prefill: f64, decode: f64) -> Run {
        Run { prefill_tokens_per_s: prefill, decode_tokens_per_s: decode, load_s: 0.5, peak_rss_bytes: 2e8 }
    }

    fn row(ours: Run, peer: Option<Run>) -> Row {
        Row { model: "m".to_owned(), ours: Median::of(&[ours]), peer: peer.map(|run| Median::of(&[run])) }
    }

    #[test]
    fn takes_medians_and_the_better_setting_of_each_test() {
        let odd = Median::of(&[one(1.0, 9.0), one(100.0, 1.0), one(2.0, 3.0)]);
        assert_eq!(odd.prefill, Rate { median_tokens_per_s: 2.0, spread: 100.0 });
        assert_eq!(odd.decode, Rate { median_tokens_per_s: 3.0, spread: 9.0 });
        assert_eq!(Median::of(&[one(1.0, 1.0), one(3.0, 1.0)]).prefill.median_tokens_per_s, 2.0);
        let best = Median::of(&[one(5.0, 1.0)]).better(&Median::of(&[one(4.0, 2.0)]));
        assert_eq!((best.prefill.median_tokens_per_s, best.decode.median_tokens_per_s), (5.0, 2.0));
    }

    #[test]
    fn bad_output_of_a_program_is_an_error() {
        let good =
            r#"{"prefill_tokens_per_s":10,"decode_tokens_per_s":2.5,"load_s":0.1,"peak_rss_bytes":1000}"#;
        assert_eq!(Run::parse(&format!("{good}\n\n")).unwrap().decode_tokens_per_s, 2.5);
        let zero = good.replace("2.5", "0");
        let text = good.replace("2.5", "\"fast\"");
        for bad in ["", "\n", "fast", "{}", &zero, &text] {
            assert!(Run::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn too_slow_fails_and_so_does_a_missing_peer() {
        let rows = [row(one(10.0, 9.9), Some(one(10.0, 10.0)))];
        check_ratios(&rows, 0.9).unwrap();
        assert_eq!(
            check_ratios(&rows, 1.0).unwrap_err().to_string(),
            "below 1 of llama.cpp: m decode 128: 0.99"
        );
        check_ratios(&[row(one(1.0, 1.0), None)], 0.0).unwrap();
        assert!(check_ratios(&[row(one(1.0, 1.0), None)], 1.0).is_err());
    }

    #[test]
    fn the_tables_name_every_row() {
        let rows = [row(one(20.0, 5.0), Some(one(10.0, 10.0)))];
        let text = rates_table(&rows);
        assert!(text.contains("| m | prefill 512 | 20.0 | 10.0 | 2.00 | 1.00 | 1.00 |"), "{text}");
        assert!(text.contains("| m | decode 128 | 5.0 | 10.0 | 0.50 | 1.00 | 1.00 |"), "{text}");
        assert!(resources_table(&rows).contains("| m | 0.50 | 0.50 | 200 | 200 |"));
        assert!(
            rates_table(&[row(one(20.0, 5.0), None)])
                .contains("| m | prefill 512 | 20.0 | - | - | 1.00 | - |")
        );
    }
}
