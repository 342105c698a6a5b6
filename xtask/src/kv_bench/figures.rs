//! What the runs of the KV bench add up to: medians, the limits they are held to, and the tables.

use anyhow::{Result, bail};

use crate::figures::{median, or_dash, quantile};

/// Where the keys and values of the prompt are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Nowhere,
    Device,
    Ram,
    /// On the SSD, after a restart; the system may have the file in memory.
    Ssd,
    /// The same without that.
    ColdSsd,
}

/// One request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) way: Way,
    /// The daemon's own figure.
    pub(super) own_ms: f64,
    /// What the client saw.
    pub(super) seen_ms: f64,
}

/// Tokens per second of several prompts in a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rates {
    pub(super) prefill: f64,
    pub(super) decode: f64,
}

/// The same with the store and without it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) with: Rates,
    pub(super) without: Rates,
}

/// Of throughput, in percent.
const MOST_COST: f64 = 2.0;

const WAYS: [Way; 5] = [Way::Nowhere, Way::Device, Way::Ram, Way::Ssd, Way::ColdSsd];

impl Way {
    /// Tokens that are found: on the device, in RAM, on the SSD.
    pub(super) fn expected(self, tokens: u64) -> (u64, u64, u64) {
        match self {
            Self::Nowhere => (0, 0, 0),
            Self::Device => (tokens, 0, 0),
            Self::Ram => (0, tokens, 0),
            Self::Ssd | Self::ColdSsd => (0, 0, tokens),
        }
    }

    fn limit_ms(self) -> Option<f64> {
        match self {
            Self::Nowhere => None,
            Self::Device => Some(40.0),
            Self::Ram => Some(80.0),
            Self::Ssd | Self::ColdSsd => Some(200.0),
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Self::Nowhere => "cold",
            Self::Device => "warm, on the device",
            Self::Ram => "in RAM, evicted from the device",
            Self::Ssd => "on the SSD, after a restart",
            Self::ColdSsd => "the same, the file not in the system's cache",
        }
    }

    /// llama-server on the machine of the first table, same model and length of prompt; it keeps nothing over a restart.
    fn peer(self) -> &'static str {
        match self {
            Self::Nowhere => "8700",
            Self::Device => "37",
            Self::Ram => "–",
            Self::Ssd | Self::ColdSsd => "8700, nothing found",
        }
    }
}

/// A Markdown table of the times to the first token.
pub(super) fn tiers_table(samples: &[Sample]) -> String {
    let mut text = "| keys and values are | first token seen by the client, ms | slowest | by the daemon's clock, ms | limit, ms | llama-server, ms |\n\
         |---|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for way in WAYS {
        let seen = of(samples, way, |sample| sample.seen_ms);
        let (own, slowest) = (median(&of(samples, way, |sample| sample.own_ms)), quantile(&seen, 1.0));
        let limit = or_dash(way.limit_ms().map(|limit| format!("{limit:.0}")));
        text.push_str(&format!(
            "| {} | {:.1} | {slowest:.1} | {own:.1} | {limit} | {} |\n",
            way.in_words(),
            median(&seen),
            way.peer()
        ));
    }
    text
}

/// A Markdown table of what the store costs.
pub(super) fn cost_table(costs: &[Cost]) -> String {
    let mut text =
        "| nothing to find | with the store, tokens/s | without | cost, median of the pairs | of each pair |\n\
         |---|---:|---:|---:|---|\n"
            .to_owned();
    for (name, rate) in RATES {
        let rates = |side: fn(&Cost) -> Rates| {
            median(&costs.iter().map(|cost| rate(&side(cost))).collect::<Vec<_>>())
        };
        let each: Vec<String> = percents(costs, rate).iter().map(|cost| format!("{cost:.1}")).collect();
        text.push_str(&format!(
            "| {name} | {:.1} | {:.1} | {:.2} % | {} |\n",
            rates(|cost| cost.with),
            rates(|cost| cost.without),
            median(&percents(costs, rate)),
            each.join(", ")
        ));
    }
    text
}

/// Fails when a median is over its limit.
pub(super) fn check(samples: &[Sample], costs: &[Cost]) -> Result<()> {
    for way in WAYS {
        let seen = median(&of(samples, way, |sample| sample.seen_ms));
        if let Some(limit) = way.limit_ms().filter(|limit| seen > *limit) {
            bail!("{}: the first token came after {seen:.1} ms, {limit} are allowed", way.in_words());
        }
    }
    for (name, rate) in RATES {
        let cost = median(&percents(costs, rate));
        if cost > MOST_COST {
            bail!("the store costs {cost:.2} % of {name}, {MOST_COST} % are allowed");
        }
    }
    Ok(())
}

type Rate = fn(&Rates) -> f64;
const RATES: [(&str, Rate); 2] = [("prefill", |rates| rates.prefill), ("decode", |rates| rates.decode)];

/// What each pair says that the store costs.
fn percents(costs: &[Cost], rate: Rate) -> Vec<f64> {
    costs.iter().map(|cost| 100.0 * (1.0 - rate(&cost.with) / rate(&cost.without))).collect()
}

fn of(samples: &[Sample], way: Way, figure: fn(&Sample) -> f64) -> Vec<f64> {
    samples.iter().filter(|sample| sample.way == way).map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(device_ms: f64) -> Vec<Sample> {
        let times = [5000.0, device_ms, 60.0, 150.0, 180.0];
        WAYS.iter().zip(times).map(|(way, ms)| Sample { way: *way, own_ms: ms - 5.0, seen_ms: ms }).collect()
    }

    fn costs(decode: f64) -> Vec<Cost> {
        let without = Rates { prefill: 1000.0, decode: 100.0 };
        vec![Cost { with: Rates { prefill: 995.0, decode }, without }; 3]
    }

    #[test]
    fn what_is_over_a_limit_is_an_error_that_names_it() {
        check(&samples(39.0), &costs(98.5)).unwrap();
        let error = check(&samples(41.0), &costs(98.5)).unwrap_err().to_string();
        assert!(error.contains("warm") && error.contains("41.0 ms"), "{error}");
        let error = check(&samples(39.0), &costs(97.0)).unwrap_err().to_string();
        assert!(error.contains("3.00 % of decode"), "{error}");
    }

    #[test]
    fn tables_tell_medians_and_the_slowest() {
        let mut all = samples(30.0);
        all.extend(samples(20.0));
        all.extend(samples(39.5));
        let table = tiers_table(&all);
        assert!(table.contains("| warm, on the device | 30.0 | 39.5 | 25.0 | 40 | 37 |"), "{table}");
        let table = cost_table(&costs(98.0));
        assert!(table.contains("| decode | 98.0 | 100.0 | 2.00 % | 2.0, 2.0, 2.0 |"), "{table}");
    }
}
