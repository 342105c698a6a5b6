//! How far a batch is, on stderr: a line that changes at a terminal, else a line now and then.

use crate::limits::{PROGRESS_LINE_PERIOD, PROGRESS_PERIOD};
use crate::units;
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

/// What is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Requests.
    pub(crate) total: usize,
    /// Those that are jobs, whatever came of them.
    pub(crate) submitted: usize,
    /// Those that are answered.
    pub(crate) done: usize,
    /// Those that failed.
    pub(crate) failed: usize,
}

/// Results that came while we looked on; what was done before says nothing of the pace.
#[derive(Debug, Clone, Copy)]
struct Pace {
    since: Instant,
    results: u32,
    tokens: u64,
}

/// Tells how far it is.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    pace: Pace,
    /// What was told last, and when.
    told: Option<(Counts, Instant)>,
}

impl Progress {
    /// Nothing is told yet.
    pub(crate) fn new(total: usize, now: Instant) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:24} {msg}").expect("the template is constant");
            let bar = ProgressBar::new(total as u64);
            bar.set_style(style.progress_chars("━━ "));
            bar
        });
        Self { bar, pace: Pace { since: now, results: 0, tokens: 0 }, told: None }
    }

    /// Counts a result that was computed while we looked on.
    pub(crate) fn result(&mut self, tokens: u64) {
        self.pace.results += 1;
        self.pace.tokens += tokens;
    }

    /// Tells how far it is, if it is time and there is news.
    pub(crate) fn show(&mut self, counts: Counts, now: Instant) {
        let period = if self.bar.is_some() { PROGRESS_PERIOD } else { PROGRESS_LINE_PERIOD };
        if self.told.is_some_and(|(told, at)| told == counts || now.duration_since(at) < period) {
            return;
        }
        self.told = Some((counts, now));
        let line = line(counts, self.pace, now);
        match &self.bar {
            Some(bar) => {
                bar.set_position((counts.done + counts.failed) as u64);
                bar.set_message(line);
            }
            None => eprintln!("{line}"),
        }
    }

    /// Says something beside it.
    pub(crate) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// `120 of 500 done, 2 failed, 81.2 tokens/s, 3 min 5 s left`.
fn line(counts: Counts, pace: Pace, now: Instant) -> String {
    let Counts { total, submitted, done, failed } = counts;
    let mut line = format!("{done} of {total} done");
    if failed > 0 {
        line.push_str(&format!(", {failed} failed"));
    }
    if submitted < total {
        line.push_str(&format!(", {submitted} submitted"));
    }
    let elapsed = now.duration_since(pace.since);
    if pace.results > 0 && elapsed > Duration::ZERO {
        let left = (total - done - failed) as f64 / f64::from(pace.results) * elapsed.as_secs_f64();
        let rate = pace.tokens as f64 / elapsed.as_secs_f64();
        line.push_str(&format!(", {rate:.1} tokens/s, {} left", units::duration_ms(left * 1000.0)));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line() {
        let since = crate::clock::now();
        let now = since + Duration::from_secs(10);
        let nothing = Pace { since, results: 0, tokens: 0 };
        let mut counts = Counts { total: 500, submitted: 20, done: 0, failed: 0 };
        assert_eq!(line(counts, nothing, now), "0 of 500 done, 20 submitted");
        // 18 of 20 came before.
        let pace = Pace { since, results: 2, tokens: 812 };
        counts = Counts { submitted: 500, done: 18, failed: 2, ..counts };
        assert_eq!(line(counts, pace, now), "18 of 500 done, 2 failed, 81.2 tokens/s, 40 min 0 s left");
        assert_eq!(line(counts, pace, since), "18 of 500 done, 2 failed");
    }
}
