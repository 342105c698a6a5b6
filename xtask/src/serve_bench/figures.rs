//! What the runs of the serving bench add up to: rates while all decode, gaps with and without a prefill, the limits they
//! are held to, and the tables.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::figures::{self, median, or_dash, quantile, spread};

/// How many sessions decode at once.
pub(super) const SESSIONS: [usize; 4] = [1, 2, 4, 8];
/// Ours over llama.cpp's with eight at once, at least.
const LEAST_RATIO: f64 = 2.5;
/// The bound that the decodes' pace is held to: how much longer a gap may be than without a prefill.
pub(super) const PACE: f64 = 2.0;

/// What the load client saw; times are milliseconds.
#[derive(Debug)]
pub(super) struct Load {
    /// Of each session when its pieces of text came, and how many tokens each took.
    sessions: Vec<Vec<(f64, f64)>>,
    /// When the late prompt was sent, and when its first token came.
    arrival: Option<(f64, f64)>,
}

impl Load {
    /// Reads the client's JSON.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let object: Value = serde_json::from_str(text).with_context(|| format!("no JSON: {text:?}"))?;
        let sessions: Vec<Vec<(f64, f64)>> = serde_json::from_value(object["sessions"].clone())?;
        if sessions.is_empty() || sessions.iter().any(|pieces| pieces.len() < 2) {
            bail!("a session without text");
        }
        let time = |key: &str| object["arrival"][key].as_f64();
        Ok(Self { sessions, arrival: time("sent").zip(time("first")) })
    }

    /// When the last session had its first token: from then on all decode.
    fn all_decode_from(&self) -> f64 {
        self.sessions.iter().map(|pieces| pieces[0].0).fold(0.0, f64::max)
    }

    /// Tokens of all sessions per second, while all of them decode.
    pub(super) fn tokens_per_s(&self) -> f64 {
        let from = self.all_decode_from();
        let last = |pieces: &Vec<(f64, f64)>| pieces[pieces.len() - 1].0;
        let to = self.sessions.iter().map(last).fold(f64::INFINITY, f64::min);
        let pieces = self.sessions.iter().flatten().filter(|(when, _)| from < *when && *when <= to);
        1e3 * pieces.map(|(_, tokens)| tokens).sum::<f64>() / (to - from)
    }

    /// The gaps of all sessions without a prefill, those during the late prompt's, and when its first token came.
    pub(super) fn gaps(&self) -> Result<Gaps> {
        let (sent, first) = self.arrival.context("no prompt arrived")?;
        let within = |from: f64, to: f64| -> Vec<f64> {
            let gaps = self.sessions.iter().flat_map(|pieces| pieces.windows(2));
            gaps.filter(|pair| from < pair[1].0 && pair[1].0 <= to)
                .map(|pair| pair[1].0 - pair[0].0)
                .collect()
        };
        let (quiet, busy) = (within(self.all_decode_from(), sent), within(sent, first));
        if quiet.is_empty() || busy.is_empty() {
            bail!("{} gaps without a prefill and {} with one", quiet.len(), busy.len());
        }
        Ok(Gaps { quiet, busy, first_token_ms: vec![first - sent] })
    }
}

/// Inter-token gaps of eight decodes, in milliseconds, of all runs with one setting.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    pub(super) quiet: Vec<f64>,
    pub(super) busy: Vec<f64>,
    /// Of each late prompt.
    pub(super) first_token_ms: Vec<f64>,
}

impl Gaps {
    pub(super) fn extend(&mut self, other: Self) {
        self.quiet.extend(other.quiet);
        self.busy.extend(other.busy);
        self.first_token_ms.extend(other.first_token_ms);
    }
}

/// Rates with so many sessions, each of one run; `peer` has a list for each of llama.cpp's settings.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) sessions: usize,
    pub(super) ours: Vec<f64>,
    pub(super) peer: Vec<Vec<f64>>,
}

impl Row {
    /// The runs of llama.cpp's better setting.
    fn best_peer(&self) -> Option<&Vec<f64>> {
        self.peer.iter().max_by(|a, b| median(a).total_cmp(&median(b)))
    }

    fn ratio(&self) -> Option<f64> {
        Some(median(&self.ours) / median(self.best_peer()?))
    }
}

/// A Markdown table of the rates and their ratios.
pub(super) fn rates_table(rows: &[Row]) -> String {
    let mut text =
        "| sessions | zllm, tokens/s | llama.cpp, tokens/s | ratio | max/min: zllm | llama.cpp |\n\
        |---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
    for row in rows {
        let peer = row.best_peer();
        let [rate, spread] = [median(&row.ours), spread(&row.ours)];
        let peer_rate = or_dash(peer.map(|runs| format!("{:.1}", median(runs))));
        let peer_spread = or_dash(peer.map(|runs| format!("{:.2}", figures::spread(runs))));
        let ratio = or_dash(row.ratio().map(|ratio| format!("{ratio:.2}")));
        let sessions = row.sessions;
        text.push_str(&format!(
            "| {sessions} | {rate:.1} | {peer_rate} | {ratio} | {spread:.2} | {peer_spread} |\n"
        ));
    }
    text
}

/// A Markdown table of the gaps with the bound and without it.
pub(super) fn gaps_table(bounded: &Gaps, unbounded: &Gaps) -> String {
    let mut text = "| gaps between tokens of eight decodes | p50, ms | p99, ms | max, ms | limit of the p99, ms | first token of the prompt, ms |\n\
        |---|---:|---:|---:|---:|---:|\n"
        .to_owned();
    let mut row = |what: &str, gaps: &[f64], limit: Option<f64>, first: Option<&[f64]>| {
        let [middle, high, most] = [0.5, 0.99, 1.0].map(|part| quantile(gaps, part));
        let limit = or_dash(limit.map(|limit| format!("{limit:.1}")));
        let first = or_dash(first.map(|times| format!("{:.0}", median(times))));
        text.push_str(&format!("| {what} | {middle:.1} | {high:.1} | {most:.1} | {limit} | {first} |\n"));
    };
    row("no prefill", &bounded.quiet, None, None);
    let limit = Some(limit(bounded));
    row(&format!("a prefill, `pace = {PACE:.1}`"), &bounded.busy, limit, Some(&bounded.first_token_ms));
    row("no prefill, second daemon", &unbounded.quiet, None, None);
    row("a prefill, `pace = 0`: no bound", &unbounded.busy, None, Some(&unbounded.first_token_ms));
    text
}

/// Fails where ours with eight sessions is less than it should be beside llama.cpp's; without it no ratio can be shown.
pub(super) fn check_rates(rows: &[Row]) -> Result<()> {
    for row in rows.iter().filter(|row| row.sessions == 8) {
        let ratio = row.ratio().context("without ZLLM_PEER_PYTHON there is no llama.cpp to compare with")?;
        if ratio < LEAST_RATIO {
            bail!("8 sessions decode {ratio:.2} times as fast as llama.cpp, {LEAST_RATIO} is wanted");
        }
    }
    Ok(())
}

/// Fails where the bound did not hold.
pub(super) fn check_gaps(bounded: &Gaps) -> Result<()> {
    let (high, limit) = (quantile(&bounded.busy, 0.99), limit(bounded));
    if high > limit {
        bail!("with a prefill beside them the decodes' p99 gap is {high:.1} ms, {limit:.1} are allowed");
    }
    Ok(())
}

/// What the p99 gap may be with a prefill: the pace's factor times the p99 without one, of the same daemon.
fn limit(bounded: &Gaps) -> f64 {
    PACE * quantile(&bounded.quiet, 0.99)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_in_which_all_decode_counts() {
        let text = r#"{"sessions": [[[0, 1], [10, 1], [20, 1], [30, 2]], [[10, 1], [20, 1], [40, 1]]], "arrival": null}"#;
        let load = Load::parse(text).unwrap();
        // From 10 to 30 ms: 1 and 2 tokens of the first, 1 of the second.
        assert_eq!(load.tokens_per_s(), 200.0);
        assert!(load.gaps().is_err());
        for bad in ["", "{}", r#"{"sessions": []}"#, r#"{"sessions": [[[0, 1]]]}"#] {
            assert!(Load::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn gaps_are_those_of_text_before_and_after_the_prompt_was_sent() {
        let text = r#"{"sessions": [[[5, 1], [10, 1], [20, 1], [45, 1], [50, 1], [90, 1]]], "arrival": {"sent": 21, "first": 50}}"#;
        let gaps = Load::parse(text).unwrap().gaps().unwrap();
        assert_eq!(
            (gaps.quiet, gaps.busy, gaps.first_token_ms),
            (vec![5.0, 10.0], vec![25.0, 5.0], vec![29.0])
        );
    }

    fn rows(ours: f64) -> Vec<Row> {
        let row =
            |sessions, ours| Row { sessions, ours: vec![ours; 3], peer: vec![vec![80.0; 3], vec![100.0; 3]] };
        vec![row(1, 20.0), row(8, ours)]
    }

    #[test]
    fn too_slow_beside_the_better_setting_fails_and_so_does_a_missing_peer() {
        check_rates(&rows(251.0)).unwrap();
        let error = check_rates(&rows(249.0)).unwrap_err().to_string();
        assert!(error.contains("2.49"), "{error}");
        let without = [Row { sessions: 8, ours: vec![500.0], peer: vec![] }];
        assert!(check_rates(&without).is_err());
        assert!(rates_table(&rows(250.0)).contains("| 8 | 250.0 | 100.0 | 2.50 | 1.00 | 1.00 |"));
        assert!(rates_table(&without).contains("| 8 | 500.0 | – | – | 1.00 | – |"));
    }

    #[test]
    fn a_gap_over_the_limit_fails() {
        let gaps = |busy| Gaps { quiet: vec![10.0; 9], busy: vec![busy; 9], first_token_ms: vec![2000.0] };
        check_gaps(&gaps(20.0)).unwrap();
        let error = check_gaps(&gaps(20.5)).unwrap_err().to_string();
        assert!(error.contains("20.5 ms, 20.0"), "{error}");
        let table = gaps_table(&gaps(15.0), &gaps(90.0));
        assert!(table.contains("| a prefill, `pace = 2.0` | 15.0 | 15.0 | 15.0 | 20.0 | 2000 |"), "{table}");
        assert!(table.contains("no bound | 90.0 | 90.0 | 90.0 | – | 2000 |"), "{table}");
    }
}
