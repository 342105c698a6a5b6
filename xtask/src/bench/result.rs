//! What the runs of a bench add up to: medians, the better of several settings, ratios, shares of the roofs, and the tables.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::figures::{median, or_dash, spread};

/// What one run of one program measured.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Run {
    load_s: f64,
    peak_rss_bytes: f64,
    /// What a decoded token reads of the weights; ours tells it.
    weight_bytes_a_token: Option<f64>,
    /// Tokens per second of each test.
    tests: BTreeMap<String, f64>,
}

/// What the machine can do at most, at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Roofs {
    memory_gb_per_s: f64,
    vpdpbusd_gmac_per_s: Option<f64>,
}

/// One model's runs.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) model: String,
    pub(super) ours: Vec<Run>,
    /// A list for each of llama.cpp's settings; empty without it.
    pub(super) peer: Vec<Vec<Run>>,
    /// Measured before and after.
    pub(super) roofs: Vec<Roofs>,
}

impl Run {
    /// Reads a program's output.
    pub(super) fn parse(output: &Value) -> Result<Self> {
        let tests = output["tests"].as_object().context("no object \"tests\"")?;
        let tests = tests.iter().map(|(name, rate)| Ok((name.clone(), positive(rate, name)?)));
        let weight_bytes = &output["weight_bytes_a_token"];
        Ok(Self {
            load_s: positive(&output["load_s"], "load_s")?,
            peak_rss_bytes: positive(&output["peak_rss_bytes"], "peak_rss_bytes")?,
            weight_bytes_a_token: (!weight_bytes.is_null())
                .then(|| positive(weight_bytes, "weight_bytes_a_token"))
                .transpose()?,
            tests: tests.collect::<Result<_>>()?,
        })
    }

    /// Tokens per second.
    pub(super) fn rate(&self, test: &str) -> Option<f64> {
        self.tests.get(test).copied()
    }
}

fn positive(value: &Value, name: &str) -> Result<f64> {
    let number = value.as_f64().with_context(|| format!("no number {name:?}"))?;
    if !number.is_finite() || number <= 0.0 {
        bail!("{name:?} is {number}");
    }
    Ok(number)
}

impl Roofs {
    /// Reads the program's output.
    pub(super) fn parse(output: &Value) -> Result<Self> {
        let integer = &output["vpdpbusd_gmac_per_s"];
        Ok(Self {
            memory_gb_per_s: positive(&output["memory_gb_per_s"], "memory_gb_per_s")?,
            vpdpbusd_gmac_per_s: (!integer.is_null())
                .then(|| positive(integer, "vpdpbusd_gmac_per_s"))
                .transpose()?,
        })
    }

    /// How far they moved while all of the rows were measured, in words.
    pub(super) fn told(rows: &[Row]) -> String {
        let all = || rows.iter().flat_map(|row| &row.roofs);
        let range = |values: Vec<f64>, unit| {
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(0.0, f64::max);
            format!("{least:.0} to {most:.0} {unit}")
        };
        let memory = range(all().map(|roofs| roofs.memory_gb_per_s).collect(), "GB/s");
        let integer: Vec<_> = all().filter_map(|roofs| roofs.vpdpbusd_gmac_per_s).collect();
        let integer = if integer.is_empty() { "not there".to_owned() } else { range(integer, "GMAC/s") };
        format!("Roofs, measured before and after each model: memory reads {memory}, `vpdpbusd` {integer}.")
    }
}

impl Row {
    pub(super) fn new(model: &str, roofs: Roofs) -> Self {
        Self { model: model.to_owned(), ours: Vec::new(), peer: Vec::new(), roofs: vec![roofs] }
    }

    /// The tests that were measured: prefills, decodes, sessions; by depth, then by tokens.
    fn tests(&self) -> Vec<&str> {
        let names: BTreeSet<&str> =
            self.ours.iter().flat_map(|run| run.tests.keys()).map(String::as_str).collect();
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_by_key(|name| {
            let numbers: Vec<u64> = name.split(' ').filter_map(|word| word.parse().ok()).collect();
            let kind = ["prefill", "decode"].iter().position(|kind| name.starts_with(kind));
            (kind.unwrap_or(2), numbers.get(1).copied(), numbers.first().copied())
        });
        names
    }

    fn our_rates(&self, test: &str) -> Vec<f64> {
        self.ours.iter().filter_map(|run| run.rate(test)).collect()
    }

    /// Those of llama.cpp's better setting.
    fn peer_rates(&self, test: &str) -> Option<Vec<f64>> {
        let settings = self.peer.iter().map(|runs| runs.iter().filter_map(|run| run.rate(test)).collect());
        let measured = settings.filter(|rates: &Vec<f64>| !rates.is_empty());
        measured.max_by(|a, b| median(a).total_cmp(&median(b)))
    }

    /// Our rate over llama.cpp's.
    pub(super) fn ratio(&self, test: &str) -> Option<f64> {
        let (ours, peer) = (self.our_rates(test), self.peer_rates(test)?);
        (!ours.is_empty()).then(|| median(&ours) / median(&peer))
    }

    /// The part of what the memory gives at most, as the better of the measurements of it saw, that a decode reads of weights.
    pub(super) fn roof_share(&self, test: &str) -> Option<f64> {
        let rates = self.our_rates(test);
        let bytes = self.ours.first()?.weight_bytes_a_token?;
        if rates.is_empty() || !test.starts_with("decode") {
            return None;
        }
        let roof = self.roofs.iter().map(|roofs| roofs.memory_gb_per_s).fold(0.0, f64::max);
        Some(median(&rates) * bytes / 1e9 / roof)
    }

    /// Of ours and of llama.cpp, whose better setting counts.
    pub(super) fn load_s(&self) -> (f64, Option<f64>) {
        self.resource(|run| run.load_s)
    }

    /// The same of memory.
    pub(super) fn peak_rss_bytes(&self) -> (f64, Option<f64>) {
        self.resource(|run| run.peak_rss_bytes)
    }

    fn resource(&self, figure: fn(&Run) -> f64) -> (f64, Option<f64>) {
        let middle = |runs: &[Run]| median(&runs.iter().map(figure).collect::<Vec<_>>());
        let peer = self.peer.iter().map(|runs| middle(runs)).min_by(f64::total_cmp);
        (middle(&self.ours), peer)
    }
}

/// A Markdown table of the rates of some tests, and their ratios.
pub(super) fn rates_table(rows: &[Row], wanted: impl Fn(&str) -> bool) -> String {
    let mut text = "| model | test | zllm, tokens/s | llama.cpp, tokens/s | ratio | of the memory's roof | max/min: zllm | llama.cpp |\n\
        |---|---|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for row in rows {
        for test in row.tests().into_iter().filter(|test| wanted(test)) {
            let (ours, peer) = (row.our_rates(test), row.peer_rates(test));
            text.push_str(&format!(
                "| {} | {test} | {:.1} | {} | {} | {} | {:.2} | {} |\n",
                row.model,
                median(&ours),
                or_dash(peer.as_deref().map(|rates| format!("{:.1}", median(rates)))),
                or_dash(row.ratio(test).map(|ratio| format!("{ratio:.2}"))),
                or_dash(row.roof_share(test).map(|share| format!("{:.0} %", 100.0 * share))),
                spread(&ours),
                or_dash(peer.as_deref().map(|rates| format!("{:.2}", spread(rates)))),
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
    for row in rows {
        let ((load, peer_load), (rss, peer_rss)) = (row.load_s(), row.peak_rss_bytes());
        text.push_str(&format!(
            "| {} | {load:.2} | {} | {:.0} | {} |\n",
            row.model,
            or_dash(peer_load.map(|load| format!("{load:.2}"))),
            rss / 1e6,
            or_dash(peer_rss.map(|rss| format!("{:.0}", rss / 1e6))),
        ));
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// A row of single runs whose tests and rates are given; llama.cpp has two settings, the second one as given and the
    /// first one slower.
    pub(in crate::bench) fn row(model: &str, ours: Value, peer: Option<Value>) -> Row {
        let run = |tests: &Value, factor: f64| {
            let mut tests = tests.clone();
            tests
                .as_object_mut()
                .unwrap()
                .values_mut()
                .for_each(|rate| *rate = json!(rate.as_f64().unwrap() * factor));
            let bytes = 250e6;
            let output =
                json!({"load_s": 0.4, "peak_rss_bytes": 2e8, "weight_bytes_a_token": bytes, "tests": tests});
            Run::parse(&output).unwrap()
        };
        let mut row = Row::new(model, Roofs { memory_gb_per_s: 50.0, vpdpbusd_gmac_per_s: None });
        row.ours = vec![run(&ours, 1.0)];
        row.peer = peer.iter().flat_map(|peer| [vec![run(peer, 0.9)], vec![run(peer, 1.0)]]).collect();
        row
    }

    #[test]
    fn takes_medians_and_the_better_setting_of_each_test() {
        let mut row =
            row("m", json!({"decode 128": 1.0}), Some(json!({"decode 128": 2.0, "prefill 512": 3.0})));
        for rate in [9.0, 5.0] {
            row.ours
                .push(Run { tests: BTreeMap::from([("decode 128".into(), rate)]), ..row.ours[0].clone() });
        }
        assert_eq!(row.ratio("decode 128"), Some(2.5));
        assert_eq!(row.ratio("prefill 512"), None);
        assert!(
            rates_table(&[row], |_| true)
                .contains("| m | decode 128 | 5.0 | 2.0 | 2.50 | 2 % | 9.00 | 1.00 |")
        );
    }

    #[test]
    fn tests_stand_in_an_order_that_reads_well() {
        let tests = json!({"16 sessions": 1, "8 sessions": 1, "decode 128": 1, "decode 128 at 2048": 1,
            "prefill 128": 1, "prefill 2048": 1, "prefill 512": 1, "prefill 512 at 2048": 1});
        let expected = [
            "prefill 128",
            "prefill 512",
            "prefill 2048",
            "prefill 512 at 2048",
            "decode 128",
            "decode 128 at 2048",
            "8 sessions",
            "16 sessions",
        ];
        assert_eq!(row("m", tests, None).tests(), expected);
    }

    #[test]
    fn bad_output_of_a_program_is_an_error() {
        let good = json!({"load_s": 0.1, "peak_rss_bytes": 1000, "tests": {"decode 128": 2.5}});
        assert_eq!(Run::parse(&good).unwrap().rate("decode 128"), Some(2.5));
        for (key, bad) in
            [("tests", json!({"x": 0})), ("tests", json!({"x": "fast"})), ("load_s", json!(null))]
        {
            let mut output = good.clone();
            output[key] = bad;
            assert!(Run::parse(&output).is_err(), "{output}");
        }
        assert!(Roofs::parse(&json!({"vpdpbusd_gmac_per_s": 1})).is_err());
    }

    #[test]
    fn tables_have_dashes_where_there_is_nothing_to_compare_with() {
        let rows = [row("m", json!({"prefill 512": 20.0, "decode 128": 100.0}), None)];
        let text = rates_table(&rows, |test| test == "prefill 512");
        assert!(
            text.contains("| m | prefill 512 | 20.0 | – | – | – | 1.00 | – |") && !text.contains("decode"),
            "{text}"
        );
        // 100 tokens of 250 MB are half of 50 GB/s.
        assert!(rates_table(&rows, |_| true).contains("| m | decode 128 | 100.0 | – | – | 50 % |"));
        assert!(resources_table(&rows).contains("| m | 0.40 | – | 200 | – |"));
        assert!(Roofs::told(&rows).contains("memory reads 50 to 50 GB/s, `vpdpbusd` not there"));
    }
}
