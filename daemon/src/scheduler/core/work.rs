//! Model work: which rows make a step, and what its outcome means.

use super::ending::Cut;
use super::job::{CANCELLED, POOLED, Running, Stop};
use super::{Action, Core, Measure, Time};
use crate::scheduler::plan::{Accepted, ModelName, PlanRow, RowOutcome, SequenceId, StepOutcome, StepPlan};
use std::collections::HashSet;
use std::time::Duration;
use zllm_wire::{ChoiceEnd, FinishReason, MomentKind};

impl Core {
    /// Starts the next steps of the devices that are free; models that share a device take turns.
    pub(super) fn plan(&mut self, now: Time) {
        while let Some(model) = self.next_model() {
            let rows = self.rows(&model, now);
            let plan = StepPlan { model: model.clone(), rows };
            self.last_model = Some(model);
            self.in_flight.push(plan.clone());
            self.actions.push(Action::Step(plan));
        }
    }

    /// The next model with work whose devices are all free.
    fn next_model(&self) -> Option<ModelName> {
        let busy: HashSet<u16> =
            self.in_flight.iter().flat_map(|plan| self.models[&plan.model].devices.iter().copied()).collect();
        let is_free =
            |model: &ModelName| !self.models[model].devices.iter().any(|device| busy.contains(device));
        let mut with_work: Vec<&ModelName> =
            self.running.iter().map(|sequence| &self.jobs[&sequence.job].model).collect();
        with_work.sort();
        with_work.dedup();
        with_work.retain(|model| is_free(model));
        let last = self.last_model.as_ref();
        let after_last = with_work.iter().find(|model| last.is_none_or(|last| **model > last));
        after_last.or(with_work.first()).map(|&model| model.clone())
    }

    /// A row for each sequence that is past its prompt, and prompt tokens within the pace: of the highest class first, of
    /// one class the oldest.
    fn rows(&self, model: &ModelName, now: Time) -> Vec<PlanRow> {
        let of_it = || self.running().filter(|(_, job, _)| job.model == *model);
        let decodes = of_it().filter(|(.., running)| running.pending() == 1).count();
        let mut chunk =
            self.models[model].pace.chunk(decodes, self.limits.pace, self.limits.prefill_chunk_tokens);
        let mut prompts: Vec<_> = of_it().filter(|(.., running)| running.pending() > 1).collect();
        // As what waits, so that no prompt stands still while others come.
        let aged = |running: &Running| {
            let steps = self.limits.aging.map_or(0, |aging| {
                now.saturating_sub(running.started_at).as_millis() / aging.as_millis().max(1)
            });
            running.level.saturating_sub(steps.min(2) as u8)
        };
        prompts.sort_by_key(|(_, _, running)| aged(running));
        let mut counts = Vec::new();
        for (sequence, _, running) in prompts {
            let count = running.pending().min(chunk);
            chunk -= count;
            counts.push((sequence, count));
        }
        let mut rows = Vec::new();
        for (sequence, _, running) in of_it() {
            let pending = running.pending();
            let planned = counts.iter().find(|(of, _)| *of == sequence).map_or(pending, |(_, count)| *count);
            if planned > 0 {
                rows.push(PlanRow {
                    sequence,
                    tokens: running.tokens[running.computed..running.computed + planned].to_vec(),
                    position: running.computed,
                    blocks: running.lease.blocks.clone(),
                    samples: planned == pending && running.pool.is_none(),
                    pool: running.pool.clone(),
                });
            }
        }
        rows
    }

    pub(super) fn step_done(&mut self, model: &ModelName, outcome: StepOutcome, took: Duration, now: Time) {
        let at = self.in_flight.iter().position(|plan| plan.model == *model);
        let plan = self.in_flight.swap_remove(at.expect("a step's outcome answers a step"));
        assert_eq!(plan.rows.len(), outcome.rows.len(), "a step answers each of its rows");
        let prefilled = plan.prefill_tokens();
        let decodes = plan.rows.iter().filter(|row| row.tokens.len() == 1 && row.samples).count();
        let paced = self.models.get_mut(model).expect("a model outlives its steps");
        paced.pace.measured(decodes, prefilled, took);
        let mut failed = Vec::new();
        for (row, result) in plan.rows.into_iter().zip(outcome.rows) {
            assert_eq!(row.sequence, result.sequence, "a step answers its rows in their order");
            assert_eq!(row.samples, result.accepted.is_some(), "a token is sampled exactly where asked for");
            let id = row.sequence.job;
            if matches!(result.accepted, Some(Err(_))) {
                failed.push(id);
            }
            assert_eq!(row.pool.is_some(), result.pool.is_some(), "a pool comes back with its row");
            self.row_done(row, result, now);
        }
        // Only now: a failed job's other answers may have rows of their own in the step.
        for id in failed {
            self.end_idle(id, now);
        }
    }

    fn row_done(&mut self, row: PlanRow, result: RowOutcome, now: Time) {
        let RowOutcome { accepted, pool, .. } = result;
        let SequenceId { job: id, choice } = row.sequence;
        let job = self.jobs.get_mut(&id).expect("a job in a step is kept until the step ends");
        self.line.served(job, row.tokens.len());
        let prompt_tokens = job.prompt.len();
        if row.position < prompt_tokens {
            self.actions.push(Action::Measure(Measure::Prefilled(row.tokens.len())));
        }
        let running = job.running_mut(choice);
        running.computed += row.tokens.len();
        running.pool = pool;
        let prefill_done = choice == 0 && running.computed >= prompt_tokens && row.position < prompt_tokens;
        // A sequence that finished or failed is forgotten by the device; of one that is pooled it keeps nothing.
        running.device_knows = running.pool.is_none();
        for tokens in running.newly_full_blocks() {
            self.actions.push(Action::Commit { lease: running.lease.id, tokens });
        }
        let pool = running.whole_pool().cloned();
        if prefill_done && running.generated() == 0 {
            self.moment(id, MomentKind::PrefillDone);
        }
        let end = match accepted {
            None => pool.map(|pool| {
                self.actions.push(Action::Pooled { job: id, pool });
                POOLED
            }),
            Some(Err(message)) => {
                let job = self.jobs.get_mut(&id).expect("its row was in the step");
                job.running_mut(choice).device_knows = false;
                job.stopping.get_or_insert(Stop::Failed(message));
                None
            }
            Some(Ok(accepted)) => self.token_done(row.sequence, accepted, now),
        };
        let job = &self.jobs[&id];
        let cut_short = job.stopping.is_some().then_some(CANCELLED);
        if let Some(end) = end.or(cut_short) {
            self.cut(row.sequence, Cut::Ended(end), now);
            self.end_if_over(id, now);
        } else if job.running(choice).parking {
            self.cut(row.sequence, Cut::Parked, now);
        }
    }

    /// Takes a sampled token in; the end of its answer, if it is the last.
    fn token_done(&mut self, sequence: SequenceId, mut accepted: Accepted, now: Time) -> Option<ChoiceEnd> {
        let SequenceId { job: id, choice } = sequence;
        let job = self.jobs.get_mut(&id).expect("its row was in the step");
        let measure = job.note_token(choice, accepted.token, now);
        let full = job.running(choice).generated() == job.max_tokens;
        let running = job.running_mut(choice);
        running.device_knows = accepted.finish.is_none();
        if full {
            accepted.finish.get_or_insert(ChoiceEnd { reason: FinishReason::Length, stop: None });
        }
        let end = accepted.finish.clone();
        let (event, token) = running.take_token(accepted);
        if let Some(event) = event {
            self.actions.push(Action::Event { job: id, event });
        }
        self.actions.push(Action::Token { job: id, token });
        self.actions.push(Action::Measure(Measure::Generated));
        if let Some(Measure::FirstToken(_)) = measure {
            self.moment(id, MomentKind::FirstToken);
        }
        self.actions.extend(measure.map(Action::Measure));
        end
    }
}
