//! The device: what steps cost, and what they compute.

use super::job::Job;
use super::rng::Rng;
use super::store::Store;
use super::text::{Sampler, kv_of, row_of};
use crate::scheduler::plan::{Accepted, PlanRow, RowOutcome, SequenceId, StepPlan};
use std::collections::HashMap;
use std::time::Duration;

/// What a step costs, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Costs {
    /// Once: the weights are read.
    pub(super) step: f64,
    /// Of each row that samples a token after one fed token.
    pub(super) row: f64,
    pub(super) prompt_token: f64,
    /// Of each token, for each 1000 tokens before it.
    pub(super) depth: f64,
    /// Steps take so much more or less than they should, as a share.
    pub(super) noise: f64,
}

impl Costs {
    pub(super) fn of_rows<'p>(&self, rows: impl Iterator<Item = &'p PlanRow>) -> f64 {
        let of_row = |row: &PlanRow| {
            let tokens = row.tokens.len() as f64;
            let each = if is_decode(row) { self.row } else { self.prompt_token };
            tokens * (each + self.depth * row.position as f64 / 1000.0)
        };
        self.step + rows.map(of_row).sum::<f64>()
    }
}

/// A row that is not a part of a prompt.
pub(super) fn is_decode(row: &PlanRow) -> bool {
    row.tokens.len() == 1 && row.samples
}

pub(super) struct Device {
    pub(super) costs: Costs,
    samplers: HashMap<SequenceId, Sampler>,
    /// Made from what was generated, for sequences that go on with their next step.
    prepared: HashMap<SequenceId, Sampler>,
    /// What is computed now, by model.
    steps: Vec<Option<StepPlan>>,
}

impl Device {
    pub(super) fn new(costs: Costs, models: usize) -> Self {
        let steps = (0..models).map(|_| None).collect();
        Self { costs, samplers: HashMap::new(), prepared: HashMap::new(), steps }
    }

    /// Begins a step; how long it takes.
    ///
    /// # Errors
    /// When the model computes one already.
    pub(super) fn begin(&mut self, model: usize, plan: StepPlan, rng: &mut Rng) -> Result<Duration, String> {
        let exact = self.costs.of_rows(plan.rows.iter());
        let noise = 1.0 + self.costs.noise * (2.0 * rng.unit() - 1.0);
        if self.steps[model].replace(plan).is_some() {
            return Err(format!("model {model} computes two steps at a time"));
        }
        Ok(Duration::from_secs_f64(exact * noise / 1000.0))
    }

    pub(super) fn computes(&self, model: usize) -> bool {
        self.steps[model].is_some()
    }

    pub(super) fn end(&mut self, model: usize) -> StepPlan {
        self.steps[model].take().expect("a step ends that has begun")
    }

    /// Makes the sampler of a sequence that goes on.
    ///
    /// # Errors
    /// When these are not its tokens, or not its sampler's state.
    pub(super) fn resume(
        &mut self,
        sequence: SequenceId,
        job: &Job,
        generated: &[u32],
        state: f32,
    ) -> Result<(), String> {
        let known = &job.answers[sequence.choice as usize].tokens;
        if *known != generated {
            let counts = (generated.len(), known.len());
            return Err(format!("{sequence:?} goes on from {} tokens and has drawn {}", counts.0, counts.1));
        }
        let sampler = Sampler::resume(job.request.sampling, sequence.choice, job.prompt_kv(), generated)?;
        if sampler.state != state {
            return Err(format!("{sequence:?} goes on with state {state}, it was {}", sampler.state));
        }
        self.prepared.insert(sequence, sampler);
        Ok(())
    }

    /// # Errors
    /// When nothing is kept for it.
    pub(super) fn forget(&mut self, sequence: SequenceId) -> Result<(), String> {
        let before = self.samplers.remove(&sequence);
        before.map(drop).ok_or_else(|| format!("{sequence:?} is to be forgotten and is not known"))
    }

    /// The sequence does not run any more.
    pub(super) fn released(&mut self, sequence: SequenceId) {
        self.prepared.remove(&sequence);
    }

    pub(super) fn keeps(&self) -> usize {
        self.samplers.len() + self.prepared.len()
    }

    /// Computes a row: reads the KV before it, writes its own, draws a token if one is asked for, or pools.
    ///
    /// # Errors
    /// When the row is not the sequence's next, or the blocks hold something else than its KV.
    pub(super) fn compute(
        &mut self,
        row: &PlanRow,
        job: &mut Job,
        store: &mut Store,
        rng: &mut Rng,
        fails: bool,
    ) -> Result<RowOutcome, String> {
        let PlanRow { sequence, position, .. } = *row;
        let (model, choice) = (job.request.model, sequence.choice);
        let answer = &job.answers[choice as usize];
        let mut known = job.request.prompt.iter().chain(&answer.tokens).skip(position);
        let length = job.request.prompt.len() + answer.tokens.len();
        let fits = row.samples == (position + row.tokens.len() == length && !job.pools());
        let fits = fits && row.pool.is_some() == job.pools();
        if !fits || !row.tokens.iter().all(|token| known.next() == Some(token)) {
            return Err(format!("{row:?} is no part of the {length} tokens that its sequence has"));
        }
        let generated_before = !answer.tokens.is_empty();
        let is_new = !self.samplers.contains_key(&sequence);
        let read = if is_new { 0..position } else { position.saturating_sub(1)..position };
        let by_chance = (position > 0).then(|| rng.below(position));
        for at in read.chain(by_chance) {
            if store.kv(model, &job.request.tenant, &row.blocks, Some(at)) != job.kv(choice, at) {
                return Err(format!("the blocks of {sequence:?} hold another KV at position {at}"));
            }
        }
        let mut kv = store.kv(model, &job.request.tenant, &row.blocks, position.checked_sub(1));
        let next = |token: &u32| {
            kv = kv_of(kv, *token);
            kv
        };
        let kvs: Vec<u64> = row.tokens.iter().map(next).collect();
        store.write(model, row, &kvs);
        if let Some(mut pool) = row.pool.clone() {
            kvs.iter().for_each(|kv| pool.add(&[row_of(*kv)], 1));
            return Ok(RowOutcome { sequence, accepted: None, pool: Some(pool) });
        }
        if is_new {
            let fresh = (!generated_before).then(|| Sampler::new(job.request.sampling, choice));
            let sampler = self.prepared.remove(&sequence).or(fresh);
            let sampler = sampler.ok_or_else(|| format!("{sequence:?} goes on without its sampler"))?;
            self.samplers.insert(sequence, sampler);
        }
        if fails && row.samples {
            self.samplers.remove(&sequence);
            let accepted = Some(Err("the device has a fault".to_owned()));
            return Ok(RowOutcome { sequence, accepted, pool: None });
        }
        let accepted = row.samples.then(|| Ok(self.draw(sequence, job, kv)));
        Ok(RowOutcome { sequence, accepted, pool: None })
    }

    fn draw(&mut self, sequence: SequenceId, job: &mut Job, kv: u64) -> Accepted {
        let accepted = self.samplers.get_mut(&sequence).expect("made before").draw(kv);
        job.push_token(sequence.choice, accepted.token);
        if accepted.finish.is_some() {
            self.samplers.remove(&sequence);
        }
        accepted
    }
}
