//! When something will be: computed from what steps cost, how long answers get, what runs and what waits.
//!
//! A sequence's time is its prompt at the model's prefill rate and its answer at the pace of decodes. An answer is taken to
//! be as long as answers were lately, in proportion to what they might have been; and all of it is taken to last so much
//! longer than that as sequences did lately, which is what others on the same device cost. Jobs start in the order of the
//! line, when a place and memory are given back; batch work gives both to the classes above it.

use super::job::{self, Job, Running};
use super::{Core, Time};
use crate::limits::RETRY_AFTER;
use crate::scheduler::plan::{JobNumber, ModelName};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;
use zllm_state::BLOCK_TOKENS;
use zllm_wire::Class;

/// How much a sequence that ends counts among those before it.
const NEWER: f64 = 1.0 / 8.0;
/// Least and most that sequences are taken to last longer than computed.
const STRETCH: std::ops::RangeInclusive<f64> = 0.1..=50.0;

/// What ended sequences took.
#[derive(Debug)]
pub(super) struct Rates {
    mean_run: Duration,
    /// Length of answers as a share of what they might have been.
    answer_share: f64,
    /// What sequences took over what was computed for them.
    stretch: f64,
}

impl Default for Rates {
    fn default() -> Self {
        Self { mean_run: Duration::from_secs(1), answer_share: 1.0, stretch: 1.0 }
    }
}

/// What runs, as it gives back what it has.
struct Forecast<'c> {
    core: &'c Core,
    now: Duration,
    places: usize,
    /// Blocks that nothing runs in, of each model.
    free: HashMap<&'c ModelName, usize>,
    ends: Vec<End<'c>>,
}

struct End<'c> {
    at: Duration,
    level: u8,
    model: &'c ModelName,
    blocks: usize,
}

impl Core {
    /// A sequence of a job has ended.
    pub(super) fn learn_run(&mut self, id: JobNumber, running: &Running, now: Time) {
        let job = &self.jobs[&id];
        let took = now.saturating_sub(running.started_at);
        let (prompt, generated) = running.work();
        let computed = self.seconds(job, prompt, generated as f64);
        let max_tokens = job.max_tokens;
        let rates = &mut self.rates;
        rates.mean_run = rates.mean_run.mul_f64(1.0 - NEWER) + took.mul_f64(NEWER);
        if max_tokens > 0 {
            rates.answer_share +=
                (running.generated() as f64 / max_tokens as f64 - rates.answer_share) * NEWER;
        }
        if computed > 0.0 && generated > 0 {
            let stretch = (took.as_secs_f64() / computed).clamp(*STRETCH.start(), *STRETCH.end());
            rates.stretch += (stretch - rates.stretch) * NEWER;
        }
    }

    /// About when so much of the jobs that `shares` names will have left the line, by their `size`.
    pub(super) fn time_to_free(
        &self,
        needed: usize,
        size: impl Fn(&Job) -> usize,
        shares: impl Fn(&Job) -> bool,
        now: Time,
    ) -> Duration {
        if self.paused {
            return *RETRY_AFTER.end();
        }
        let (mut forecast, mut freed) = (Forecast::new(self), 0);
        for (level, id) in self.expected_order(now) {
            let start = forecast.start(level, &self.jobs[&id]);
            let job = &self.jobs[&id];
            freed += if shares(job) && !job.has_started() { size(job) } else { 0 };
            if freed >= needed {
                return start.clamp(*RETRY_AFTER.start(), *RETRY_AFTER.end());
            }
        }
        // What has to go waits for something else than time.
        *RETRY_AFTER.end()
    }

    /// When each waiting job will start, about; those that nothing but time keeps.
    pub(super) fn expected_starts(&self, now: Time) -> Vec<(JobNumber, Duration)> {
        let mut forecast = Forecast::new(self);
        let start = |(level, id)| (id, forecast.start(level, &self.jobs[&id]));
        self.expected_order(now).into_iter().map(start).collect()
    }

    /// The jobs that nothing but time keeps, in the order in which they will start if none comes: by level, what has risen
    /// and what has started first, and by turns of the tenants.
    fn expected_order(&self, now: Time) -> Vec<(u8, JobNumber)> {
        let mut lanes: BTreeMap<(u8, bool, bool), BTreeMap<&str, VecDeque<JobNumber>>> = BTreeMap::new();
        for id in self.line.waiting().filter(|id| self.waits_for_time_alone(&self.jobs[id])) {
            let job = &self.jobs[&id];
            let level = self.line.level(job, &self.limits, now);
            let lane = (level, level == job.class as u8, !job.has_started());
            lanes.entry(lane).or_default().entry(&job.tenant).or_default().push_back(id);
        }
        let mut served = self.line.served_with(self.running().map(|(_, job, running)| (job, running)));
        let mut order = Vec::new();
        for ((level, ..), mut tenants) in lanes {
            let mut turns: BTreeSet<(u64, &str)> =
                tenants.keys().map(|tenant| (served.get(*tenant).copied().unwrap_or(0), *tenant)).collect();
            while let Some((before, tenant)) = turns.pop_first() {
                let waiting = tenants.get_mut(tenant).expect("a lane of its own");
                let Some(id) = waiting.pop_front() else { continue };
                let after = before + self.capacity_of(&self.jobs[&id]) as u64;
                served.insert(tenant, after);
                turns.insert((after, tenant));
                order.push((level, id));
            }
        }
        order
    }

    fn capacity_of(&self, job: &Job) -> usize {
        job::capacity_tokens(job.prompt.len(), job.max_tokens)
    }

    fn remaining(&self, job: &Job, running: &Running) -> Duration {
        let left = job.max_tokens as f64 * self.rates.answer_share - running.generated() as f64;
        self.expected(job, running.pending() - 1, left)
    }

    /// How long a sequence is expected to take that has so many tokens of its prompt left, and of its answer.
    fn expected(&self, job: &Job, prompt: usize, answer: f64) -> Duration {
        match self.seconds(job, prompt, answer.max(1.0)) {
            0.0 => self.rates.mean_run,
            seconds => Duration::from_secs_f64(seconds * self.rates.stretch),
        }
    }

    /// The time of so many tokens of prompt and so many decodes, in seconds; 0 when nothing is known.
    fn seconds(&self, job: &Job, prompt: usize, answer: f64) -> f64 {
        let Some(model) = self.models.get(&job.model) else { return 0.0 };
        let rows = self.running.len().max(1);
        let prefill = model.pace.prefill_seconds(self.limits.prefill_chunk_tokens) * prompt as f64;
        prefill + model.pace.decode_seconds(rows) * answer
    }
}

impl<'c> Forecast<'c> {
    fn new(core: &'c Core) -> Self {
        let blocks = |job: &Job| core.capacity_of(job).div_ceil(BLOCK_TOKENS);
        let end = |(_, job, running): (_, &'c Job, &'c Running)| End {
            at: core.remaining(job, running),
            level: running.level,
            model: &job.model,
            blocks: blocks(job),
        };
        let ends: Vec<End<'c>> = core.running().map(end).collect();
        let free = core.models.keys().map(|name| (name, core.free_blocks(name)));
        let places = core.limits.running_jobs - ends.len();
        Self { core, now: Duration::ZERO, places, free: free.collect(), ends }
    }

    /// When a job starts that is the next one; it has its place and its memory from then on.
    fn start(&mut self, level: u8, job: &'c Job) -> Duration {
        let blocks = self.core.capacity_of(job).div_ceil(BLOCK_TOKENS);
        while self.places == 0 || self.free[&job.model] < blocks {
            let of_model = (self.places > 0).then_some(&job.model);
            let Some(end) = self.next_end(level, of_model) else { break };
            self.places += 1;
            *self.free.get_mut(end.model).expect("of a model that is there") += end.blocks;
        }
        let answers = job.choices.len() as f64;
        let left = job.max_tokens as f64 * self.core.rates.answer_share * answers - job.generated() as f64;
        let takes = self.core.expected(job, job.prompt.len() + job.generated(), left);
        let free = self.free.get_mut(&job.model).expect("it waits for time alone");
        let blocks = blocks.min(*free);
        *free -= blocks;
        self.places = self.places.saturating_sub(1);
        self.ends.push(End { at: self.now + takes, level, model: &job.model, blocks });
        self.now
    }

    /// The next sequence that makes room: batch work at once where it gives way, else whatever ends first.
    fn next_end(&mut self, level: u8, of_model: Option<&ModelName>) -> Option<End<'c>> {
        let batch = Class::Batch as u8;
        let helps = |end: &End<'_>| of_model.is_none_or(|model| end.model == model);
        let gives_way = |end: &End<'_>| level < batch && end.level == batch && helps(end);
        if let Some(at) = self.ends.iter().rposition(gives_way) {
            return Some(self.ends.swap_remove(at));
        }
        let those = self.ends.iter().enumerate().filter(|(_, end)| helps(end));
        let (at, _) = those.min_by_key(|(_, end)| end.at)?;
        let end = self.ends.swap_remove(at);
        self.now = self.now.max(end.at);
        Some(end)
    }
}
