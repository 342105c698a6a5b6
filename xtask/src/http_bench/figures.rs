//! What was measured, as a table, and the limits that it must keep.

use anyhow::{Result, bail};

use crate::figures::{median, quantile};

/// Slowest hundredth of `/health` while the model decodes, at most; milliseconds.
const HEALTH_P99_MS: f64 = 20.0;
/// From a token's sampling to its bytes at the client, at the median; milliseconds.
const TOKEN_MS: f64 = 1.0;
/// Processor time of the HTTP thread over all of the daemon's in a decode step, at most.
const HTTP_SHARE: f64 = 0.01;

/// Everything.
#[derive(Debug)]
pub(super) struct Figures {
    pub(super) connections: usize,
    /// Requests a second, and how long each took in milliseconds.
    pub(super) health: Load,
    pub(super) chats: Load,
    /// Of `/health`, asked at leisure while streams decode.
    pub(super) health_while_decoding: Load,
    pub(super) streams: usize,
    pub(super) readers: usize,
    pub(super) bytes_per_reader: f64,
    /// From a token's sampling to its bytes at the client, each; milliseconds.
    pub(super) tokens_ms: Vec<f64>,
    pub(super) step: Step,
}

/// A decode step; milliseconds.
#[derive(Debug)]
pub(super) struct Step {
    /// How long it lasts.
    pub(super) ms: f64,
    /// Processor time of all threads.
    pub(super) all_ms: f64,
    /// Processor time of the HTTP thread.
    pub(super) http_ms: f64,
}

/// Answers to many requests.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub(super) per_s: f64,
    pub(super) took_ms: Vec<f64>,
    /// Of these the ones that were refused for want of room.
    pub(super) refused: usize,
}

impl Figures {
    pub(super) fn table(&self) -> String {
        let load = |what: String, load: &Load| {
            let [p50, p99] = [0.5, 0.99].map(|part| quantile(&load.took_ms, part));
            let refused = match load.refused {
                0 => String::new(),
                refused => format!("; {refused} of {} refused with a time to come back", load.took_ms.len()),
            };
            format!("| {what} | {:.0} a second, median {p50:.2} ms, p99 {p99:.2} ms{refused} |\n", load.per_s)
        };
        let connections = self.connections;
        let mut table = "| | |\n|---|---|\n".to_owned();
        table += &load(
            format!("`/health`, {connections} keep-alive connections as fast as they can"),
            &self.health,
        );
        table +=
            &load(format!("a chat of one token, {connections} connections as fast as they can"), &self.chats);
        table += &load(
            format!(
                "`/health`, {connections} connections twice a second each, while {} streams decode",
                self.streams
            ),
            &self.health_while_decoding,
        );
        table += &format!(
            "| {} streams that wait | {:.1} KiB of memory each, job included |\n",
            self.readers,
            self.bytes_per_reader / 1024.0
        );
        let [p50, p99] = [median(&self.tokens_ms), quantile(&self.tokens_ms, 0.99)];
        table += &format!(
            "| a token, from its sampling to its bytes at the client | median {p50:.3} ms, p99 {p99:.3} ms |\n"
        );
        let Step { ms, all_ms, http_ms } = self.step;
        table += &format!(
            "| HTTP's processor time in a decode step | {http_ms:.4} ms: {:.2} % of the {all_ms:.2} ms that all threads \
             take, {:.2} % of the {ms:.2} ms that it lasts |\n",
            100.0 * http_ms / all_ms,
            100.0 * http_ms / ms
        );
        table
    }

    fn http_share(&self) -> f64 {
        self.step.http_ms / self.step.all_ms
    }

    /// # Errors
    /// Limits that are passed.
    pub(super) fn check(&self) -> Result<()> {
        let rows = [
            (
                "p99 of /health while decoding, ms",
                quantile(&self.health_while_decoding.took_ms, 0.99),
                HEALTH_P99_MS,
            ),
            ("a token to the client, median, ms", median(&self.tokens_ms), TOKEN_MS),
            ("HTTP's share of a decode step", self.http_share(), HTTP_SHARE),
        ];
        let passed: Vec<String> = rows
            .iter()
            .filter(|(_, found, limit)| found >= limit)
            .map(|(what, found, limit)| format!("{what}: {found:.4}, wanted under {limit}"))
            .collect();
        if passed.is_empty() { Ok(()) } else { bail!("{}", passed.join("; ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(http_ms: f64, token_ms: f64, health_ms: f64) -> Figures {
        let load = || Load { per_s: 1.0, took_ms: vec![health_ms; 10], refused: 0 };
        Figures {
            connections: 1,
            health: load(),
            chats: Load { refused: 3, ..load() },
            health_while_decoding: load(),
            streams: 1,
            readers: 1,
            bytes_per_reader: 2048.0,
            tokens_ms: vec![token_ms; 3],
            step: Step { ms: 6.0, all_ms: 10.0, http_ms },
        }
    }

    #[test]
    fn limits_that_are_passed_are_named() {
        let good = figures(0.05, 0.5, 3.0);
        good.check().unwrap();
        assert!(
            good.table().contains("3 of 10 refused") && good.table().contains("0.50 %"),
            "{}",
            good.table()
        );
        for (bad, named) in [
            (figures(0.2, 0.5, 3.0), "share"),
            (figures(0.05, 1.5, 3.0), "token"),
            (figures(0.05, 0.5, 30.0), "/health"),
        ] {
            assert!(bad.check().unwrap_err().to_string().contains(named));
        }
    }
}
