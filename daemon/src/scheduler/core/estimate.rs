//! When something will be: computed from what steps cost, how long answers get and what waits.
//!
//! A sequence's time is its prompt at the model's prefill rate and its answer at the pace of decodes; an answer is
//! taken to be as long as answers were lately, in proportion to what they might have been.

use super::Core;
use super::job::{Job, Running};
use crate::limits::RETRY_AFTER;
use crate::scheduler::plan::JobNumber;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

/// What ended sequences took.
#[derive(Debug)]
pub(super) struct Rates {
    mean_run: Duration,
    /// Length of answers as a share of what they might have been.
    answer_share: f64,
}

impl Default for Rates {
    fn default() -> Self {
        Self { mean_run: Duration::from_secs(1), answer_share: 1.0 }
    }
}

impl Rates {
    /// A sequence has ended.
    pub(super) fn ended(&mut self, took: Duration, generated: usize, max_tokens: usize) {
        self.mean_run = (self.mean_run * 7 + took) / 8;
        self.answer_share += (generated as f64 / max_tokens as f64 - self.answer_share) / 8.0;
    }
}

impl Core {
    /// About when so much of the jobs that `shares` names will have left the line, by their `size`.
    pub(super) fn time_to_free(
        &self,
        needed: usize,
        size: impl Fn(&Job) -> usize,
        shares: impl Fn(&Job) -> bool,
    ) -> Duration {
        let (mut starts, mut freed) = (0, 0);
        for id in self.line.waiting().filter(|id| !self.jobs[id].has_started()) {
            starts += 1;
            let job = &self.jobs[&id];
            freed += if shares(job) { size(job) } else { 0 };
            if freed >= needed {
                break;
            }
        }
        self.time_of_start(starts).clamp(*RETRY_AFTER.start(), *RETRY_AFTER.end())
    }

    /// When the `count`th start from now will be, about.
    fn time_of_start(&self, count: usize) -> Duration {
        let mut remaining: Vec<Duration> =
            self.running().map(|(_, job, at)| self.remaining(job, at)).collect();
        remaining.sort();
        let free = self.limits.running_jobs - remaining.len();
        let Some(later) = count.checked_sub(free + 1) else { return Duration::ZERO };
        let rounds = (later / remaining.len().max(1)) as u32;
        let first = remaining.get(later % remaining.len().max(1)).copied().unwrap_or_default();
        first + self.rates.mean_run * rounds
    }

    /// When each waiting job will start, about; those that nothing but time keeps.
    pub(super) fn expected_starts(&self, order: &[JobNumber]) -> HashMap<JobNumber, Duration> {
        let running = self.running().map(|(_, job, at)| Reverse(self.remaining(job, at)));
        let mut places: BinaryHeap<Reverse<Duration>> = running.collect();
        places.extend(std::iter::repeat_n(Reverse(Duration::ZERO), self.limits.running_jobs - places.len()));
        let mut starts = HashMap::new();
        for id in order {
            let Some(Reverse(start)) = places.pop() else { break };
            starts.insert(*id, start);
            let job = &self.jobs[id];
            let left = job.max_tokens as f64 * self.rates.answer_share - job.generated() as f64;
            places.push(Reverse(start + self.seconds(job, job.prompt.len() + job.generated(), left)));
        }
        starts
    }

    fn remaining(&self, job: &Job, running: &Running) -> Duration {
        let left = job.max_tokens as f64 * self.rates.answer_share - running.generated() as f64;
        self.seconds(job, running.pending() - 1, left)
    }

    /// How long it takes to compute so many tokens of prompt and to generate so many.
    fn seconds(&self, job: &Job, prompt: usize, answer: f64) -> Duration {
        let Some(model) = self.models.get(&job.model) else { return self.rates.mean_run };
        let rows = self.running.len().max(1);
        let prefill = model.pace.prefill_seconds(self.limits.prefill_chunk_tokens) * prompt as f64;
        let decode = model.pace.decode_seconds(rows) * answer.max(1.0);
        if prefill + decode == 0.0 { self.rates.mean_run } else { Duration::from_secs_f64(prefill + decode) }
    }
}
