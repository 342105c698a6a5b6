//! The scheduler's decisions, without a clock, an actor or a device: `step(input, now) -> actions`.
//!
//! Invariants (`Core::check` verifies them, the simulation calls it after every input):
//!
//! * A job has one sequence for each of its answers. The first computes the prompt; the others start when it has, and find
//!   the prompt's full blocks in the KV cache. The job is over when all of them are.
//! * Jobs start in the order they came, for each model. A sequence that must wait for KV memory of its model, or for a
//!   lease that is read from disk, holds back later ones of that model, never those of another.
//! * Admission takes KV blocks for a sequence's whole length, so one that runs never waits for memory. The lease is given
//!   back on every path.
//! * A step has a decode row for every running sequence of its model that is past its prompt, and at most one prefill chunk.
//! * Each job gets exactly one terminal event, and no event after it.
//! * What waits is bounded in jobs, prompt tokens and bytes; what is over the bound is refused at once.

mod interface;
mod job;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub(crate) use interface::{
    Action, CacheOutcome, CacheReport, ConnectionId, CoreLimits, Input, Lease, Load, Measure, NewJob,
    NoLease, Refusal, Uptime, token_tiers,
};

use super::plan::{Accepted, JobNumber, ModelName, PlanRow, SequenceId, StepOutcome, StepPlan};
use crate::limits::{PREFETCHED_JOBS, RETRY_AFTER};
use job::{CANCELLED, Choice, Job, Stop};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;
use zllm_state::BLOCK_TOKENS;
use zllm_wire::{ChoiceEnd, Event, FinishReason};

#[derive(Debug)]
struct Model {
    total_blocks: u32,
    /// Its first waiting job did not fit; nothing was released since, and no time has passed.
    starved: bool,
    /// Leases given back so far: tells a refusal that a release has overtaken from one that still holds.
    releases: u64,
    /// The sequence whose lease was asked for and not answered, and the releases at that time.
    asking: Option<(SequenceId, u64)>,
}

/// The scheduler's state.
#[derive(Debug)]
pub(crate) struct Core {
    limits: CoreLimits,
    models: BTreeMap<ModelName, Model>,
    jobs: HashMap<JobNumber, Job>,
    /// Jobs with an answer that waits, in order of arrival; those that are asking for a lease are still among them.
    queue: VecDeque<JobNumber>,
    queued_tokens: usize,
    queued_bytes: usize,
    /// Admitted sequences in order of admission.
    running: Vec<SequenceId>,
    /// The step that the device computes now.
    in_flight: Option<StepPlan>,
    /// The model of the last step; the next step goes to the next model that has work.
    last_model: Option<ModelName>,
    drain_deadline: Option<Uptime>,
    /// Mean time from start to end of recent jobs, for the time that refused clients are told.
    mean_run: Duration,
    actions: Vec<Action>,
}

impl Core {
    pub(crate) fn new(limits: CoreLimits) -> Self {
        assert!(limits.running_jobs > 0 && limits.prefill_chunk_tokens > 0 && limits.queued_jobs > 0);
        Self {
            limits,
            models: BTreeMap::new(),
            jobs: HashMap::new(),
            queue: VecDeque::new(),
            queued_tokens: 0,
            queued_bytes: 0,
            running: Vec::new(),
            in_flight: None,
            last_model: None,
            drain_deadline: None,
            mean_run: Duration::from_secs(1),
            actions: Vec::new(),
        }
    }

    /// Takes one input in and returns what is to be done, in order.
    pub(crate) fn step(&mut self, input: Input, now: Uptime) -> Vec<Action> {
        match input {
            Input::ModelUp { model, total_blocks } => {
                let state = Model { total_blocks, starved: false, releases: 0, asking: None };
                self.models.insert(model, state);
            }
            Input::ModelDown { model } => {
                assert!(!self.has_jobs(&model), "a model is unloaded when its jobs have ended");
                self.models.remove(&model);
            }
            Input::Submit(job) => self.submit(job),
            Input::Cancel(job) => self.stop(job, Stop::Cancelled, now),
            Input::OwnerGone(owner) => self.cancel_where(now, |job| job.owner == Some(owner)),
            Input::Leased { sequence, result } => self.leased(sequence, result, now),
            Input::StepDone(outcome) => self.step_done(outcome, now),
            Input::Drain { deadline } => self.drain_deadline = Some(deadline),
            // The KV store may have needed memory for a while for reads and writes of its own.
            Input::Tick => self.models.values_mut().for_each(|model| model.starved = false),
        }
        if self.drain_deadline.is_some_and(|deadline| now >= deadline) {
            self.cancel_where(now, |_| true);
        }
        self.admit();
        self.prefetch();
        self.plan();
        std::mem::take(&mut self.actions)
    }

    pub(crate) fn load(&self) -> Load {
        let running: HashSet<JobNumber> = self.running.iter().map(|sequence| sequence.job).collect();
        Load { queued_jobs: self.queue.len(), running_jobs: running.len() }
    }

    /// Whether no job is left and the device owes nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.in_flight.is_none()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.drain_deadline.is_some()
    }

    pub(crate) fn has_jobs(&self, model: &ModelName) -> bool {
        self.jobs.values().any(|job| job.model == *model)
    }

    /// How many jobs wait before this one; 0 for one that does not wait.
    pub(crate) fn queue_position(&self, job: JobNumber) -> usize {
        self.queue.iter().position(|&queued| queued == job).unwrap_or(0)
    }

    /// KV blocks that a job holds; its answers share those of the prompt.
    pub(crate) fn held_blocks(&self, job: JobNumber) -> usize {
        let choices = self.jobs.get(&job).map_or(&[][..], |job| &job.choices);
        let blocks = choices.iter().flat_map(|choice| match choice {
            Choice::Running(running) => &running.lease.blocks[..],
            Choice::Waiting | Choice::Ended(_) => &[],
        });
        blocks.collect::<HashSet<_>>().len()
    }

    // ---- arrival ----

    fn submit(&mut self, new: NewJob) {
        assert!(
            !new.prompt.is_empty() && new.max_tokens > 0 && new.choices > 0,
            "the caller refuses empty prompts, empty answers and none"
        );
        let id = new.id;
        if let Err(refusal) = self.judge(&new) {
            self.actions.push(Action::Refused { job: id, refusal });
            return;
        }
        let position = self.queue.len() as u32;
        self.queued_tokens += new.prompt.len();
        self.queued_bytes += new.bytes;
        self.queue.push_back(id);
        let previous = self.jobs.insert(id, Job::new(new));
        assert!(previous.is_none(), "job numbers are used once");
        self.actions.push(Action::Event { job: id, event: Event::Queued { position } });
    }

    fn judge(&self, new: &NewJob) -> Result<(), Refusal> {
        if self.is_draining() {
            return Err(Refusal::Draining);
        }
        let Some(model) = self.models.get(&new.model) else {
            return Err(Refusal::NoModel { model: new.model.clone() });
        };
        let needed = job::capacity_tokens(new.prompt.len(), new.max_tokens).div_ceil(BLOCK_TOKENS);
        if needed > model.total_blocks as usize {
            return Err(Refusal::NeverFits {
                model: new.model.clone(),
                prompt_tokens: new.prompt.len(),
                max_tokens: new.max_tokens,
                needed,
                total: model.total_blocks,
            });
        }
        let bounds = [
            ("jobs", self.queue.len(), 1, self.limits.queued_jobs),
            ("prompt tokens", self.queued_tokens, new.prompt.len(), self.limits.queued_prompt_tokens),
            ("request bytes", self.queued_bytes, new.bytes, self.limits.queued_bytes),
        ];
        for (what, queued, added, limit) in bounds {
            if queued + added > limit {
                return Err(Refusal::QueueFull { what, queued, limit, retry_after: self.retry_after() });
            }
        }
        Ok(())
    }

    /// About when a place in the queue will be free: a running job ends every `mean_run / running_jobs`.
    fn retry_after(&self) -> Duration {
        let interval = self.mean_run / self.limits.running_jobs as u32;
        interval.clamp(*RETRY_AFTER.start(), *RETRY_AFTER.end())
    }

    // ---- admission ----

    /// Asks for the leases of the next sequences that may start. One question of a model at a time keeps the order.
    fn admit(&mut self) {
        while self.running.len() + self.asking().count() < self.limits.running_jobs {
            let may_start = |job: &Job| {
                let model = &self.models[&job.model];
                job.may_start_next() && !model.starved && model.asking.is_none()
            };
            let Some(id) = self.queue.iter().copied().find(|id| may_start(&self.jobs[id])) else { return };
            let job = &self.jobs[&id];
            let choice = job.next_waiting().expect("a job in the queue has an answer that waits");
            let sequence = SequenceId { job: id, choice };
            let model = self.models.get_mut(&job.model).expect("models outlive their jobs");
            model.asking = Some((sequence, model.releases));
            self.actions.push(Action::Lease {
                sequence,
                model: job.model.clone(),
                tenant: job.tenant.clone(),
                prompt: job.prompt.clone(),
                capacity_tokens: job::capacity_tokens(job.prompt.len(), job.max_tokens),
            });
        }
    }

    /// The sequences whose leases were asked for and not answered, one of a model at most.
    fn asking(&self) -> impl Iterator<Item = SequenceId> {
        self.models.values().filter_map(|model| model.asking.map(|(sequence, _)| sequence))
    }

    fn is_asking(&self, id: JobNumber) -> bool {
        self.asking().any(|sequence| sequence.job == id)
    }

    /// Has the KV of the next jobs brought nearer while they wait.
    fn prefetch(&mut self) {
        let waits = |id: &JobNumber| !self.jobs[id].has_started() && !self.is_asking(*id);
        let next = self.queue.iter().copied().filter(waits).take(PREFETCHED_JOBS);
        let next: Vec<JobNumber> = next.filter(|id| !self.jobs[id].prefetched).collect();
        for id in next {
            let job = self.jobs.get_mut(&id).expect("what is in the queue is kept");
            job.prefetched = true;
            let (model, tenant, prompt) = (job.model.clone(), job.tenant.clone(), job.prompt.clone());
            self.actions.push(Action::Prefetch { model, tenant, prompt });
        }
    }

    fn leased(&mut self, sequence: SequenceId, result: Result<Lease, NoLease>, now: Uptime) {
        let id = sequence.job;
        let job = self.jobs.get_mut(&id).expect("a job that asks for a lease is kept");
        let model = self.models.get_mut(&job.model).expect("models outlive their jobs");
        let (asked, releases) = model.asking.take().expect("a lease answers a question");
        assert_eq!(asked, sequence, "a lease answers the question that was asked");
        let is_stopping = job.stopping.is_some();
        match result {
            Ok(lease) => {
                let report = lease.cache.clone();
                let cached = report.cached;
                let waited = now.saturating_sub(job.arrived_at);
                let prompt_tokens = job.prompt.len() as u64;
                job.start(sequence.choice, lease, now);
                if job.next_waiting().is_none() {
                    self.unqueue(id);
                }
                self.running.push(sequence);
                if is_stopping {
                    self.end_choice(sequence, CANCELLED, now);
                    self.end_if_over(id, now);
                    return;
                }
                if sequence.choice == 0 {
                    let event = Event::Started {
                        cached_tokens: cached.total(),
                        cached_by_tier: token_tiers(cached),
                        prompt_tokens,
                    };
                    self.actions.push(Action::Cached { job: id, report });
                    self.actions.push(Action::Event { job: id, event });
                    self.actions.push(Action::Measure(Measure::QueueWait(waited)));
                }
                self.actions.push(Action::Measure(Measure::FromCache(cached)));
            }
            Err(_) if is_stopping => self.end_if_over(id, now),
            Err(NoLease::NotNow) => model.starved = model.releases == releases,
            Err(NoLease::Never(message)) => self.stop(id, Stop::Failed(message), now),
        }
    }

    fn unqueue(&mut self, id: JobNumber) {
        let at = self.queue.iter().position(|&queued| queued == id).expect("a waiting job is in the queue");
        self.queue.remove(at);
        let job = &self.jobs[&id];
        self.queued_tokens -= job.prompt.len();
        self.queued_bytes -= job.bytes;
    }

    // ---- model work ----

    /// Starts the next step when the device is free: models take turns, oldest prefill first.
    fn plan(&mut self) {
        if self.in_flight.is_some() {
            return;
        }
        let Some(model) = self.next_model() else { return };
        let mut rows = Vec::new();
        let mut prefills = false;
        for &sequence in &self.running {
            let job = &self.jobs[&sequence.job];
            if job.model != model {
                continue;
            }
            let running = job.running(sequence.choice);
            let pending = running.tokens.len() - running.computed;
            if pending > 1 && std::mem::replace(&mut prefills, true) {
                continue;
            }
            let count = pending.min(self.limits.prefill_chunk_tokens);
            rows.push(PlanRow {
                sequence,
                tokens: running.tokens[running.computed..running.computed + count].to_vec(),
                position: running.computed,
                blocks: running.lease.blocks.clone(),
                samples: count == pending,
            });
        }
        let plan = StepPlan { model: model.clone(), rows };
        self.last_model = Some(model);
        self.in_flight = Some(plan.clone());
        self.actions.push(Action::Step(plan));
    }

    fn next_model(&self) -> Option<ModelName> {
        let mut with_work: Vec<&ModelName> =
            self.running.iter().map(|sequence| &self.jobs[&sequence.job].model).collect();
        with_work.sort();
        let last = self.last_model.as_ref();
        let after_last = with_work.iter().find(|model| last.is_none_or(|last| **model > last));
        after_last.or(with_work.first()).map(|&model| model.clone())
    }

    fn step_done(&mut self, outcome: StepOutcome, now: Uptime) {
        let plan = self.in_flight.take().expect("a step's outcome answers a step");
        assert_eq!(plan.rows.len(), outcome.rows.len(), "a step answers each of its rows");
        let mut failed = Vec::new();
        for (row, result) in plan.rows.into_iter().zip(outcome.rows) {
            assert_eq!(row.sequence, result.sequence, "a step answers its rows in their order");
            assert_eq!(row.samples, result.accepted.is_some(), "a token is sampled exactly where asked for");
            let id = row.sequence.job;
            if matches!(result.accepted, Some(Err(_))) {
                failed.push(id);
            }
            self.row_done(row, result.accepted, now);
        }
        // Only now: a failed job's other answers may have rows of their own in the step.
        for id in failed {
            self.end_idle(id, now);
        }
    }

    fn row_done(&mut self, row: PlanRow, accepted: Option<Result<Accepted, String>>, now: Uptime) {
        let SequenceId { job: id, choice } = row.sequence;
        let job = self.jobs.get_mut(&id).expect("a job in a step is kept until the step ends");
        if row.position < job.prompt.len() {
            self.actions.push(Action::Measure(Measure::Prefilled(row.tokens.len())));
        }
        let running = job.running_mut(choice);
        running.computed += row.tokens.len();
        // A sequence that finished or failed is forgotten by the device.
        running.device_knows = true;
        for tokens in running.newly_full_blocks() {
            self.actions.push(Action::Commit { lease: running.lease.id, tokens });
        }
        let end = match accepted {
            None => None,
            Some(Err(message)) => {
                running.device_knows = false;
                job.stopping.get_or_insert(Stop::Failed(message));
                None
            }
            Some(Ok(accepted)) => self.token_done(row.sequence, accepted, now),
        };
        let cut_short = self.jobs[&id].stopping.is_some().then_some(CANCELLED);
        if let Some(end) = end.or(cut_short) {
            self.end_choice(row.sequence, end, now);
            self.end_if_over(id, now);
        }
    }

    /// Takes a sampled token in; the end of its answer, if it is the last.
    fn token_done(&mut self, sequence: SequenceId, accepted: Accepted, now: Uptime) -> Option<ChoiceEnd> {
        let SequenceId { job: id, choice } = sequence;
        let job = self.jobs.get_mut(&id).expect("its row was in the step");
        self.actions.push(Action::Token { job: id });
        self.actions.push(Action::Measure(Measure::Generated));
        self.actions.extend(job.note_token(choice, accepted.token, now).map(Action::Measure));
        let max_tokens = job.max_tokens;
        let running = job.running_mut(choice);
        running.device_knows = accepted.finish.is_none();
        running.take_text(accepted.logprob, accepted.held);
        if let Some(event) = running.text_event(accepted.text) {
            self.actions.push(Action::Event { job: id, event });
        }
        let full = running.generated == max_tokens;
        accepted.finish.or(full.then_some(ChoiceEnd { reason: FinishReason::Length, stop: None }))
    }

    // ---- endings ----

    fn cancel_where(&mut self, now: Uptime, which: impl Fn(&Job) -> bool) {
        let mut ids: Vec<_> = self.jobs.iter().filter(|(_, job)| which(job)).map(|(&id, _)| id).collect();
        ids.sort();
        for id in ids {
            self.stop(id, Stop::Cancelled, now);
        }
    }

    /// Ends a job now, or as soon as whoever works on it has answered. An unknown job has ended before, and the first reason
    /// counts.
    fn stop(&mut self, id: JobNumber, why: Stop, now: Uptime) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.stopping.get_or_insert(why);
            self.end_idle(id, now);
        }
    }

    /// Ends those answers of a stopping job that are not in a step.
    fn end_idle(&mut self, id: JobNumber, now: Uptime) {
        let in_step = |sequence: &SequenceId| {
            self.in_flight.as_ref().is_some_and(|plan| plan.rows.iter().any(|row| row.sequence == *sequence))
        };
        let idle: Vec<SequenceId> =
            self.running.iter().copied().filter(|other| other.job == id && !in_step(other)).collect();
        for sequence in idle {
            self.end_choice(sequence, CANCELLED, now);
        }
        if self.jobs.contains_key(&id) {
            self.end_if_over(id, now);
        }
    }

    /// Ends one answer of a job.
    fn end_choice(&mut self, sequence: SequenceId, end: ChoiceEnd, now: Uptime) {
        let job = self.jobs.get_mut(&sequence.job).expect("a job outlives its answers");
        let name = job.model.clone();
        let mut running = job.end_choice(sequence.choice, end);
        if running.device_knows {
            self.actions.push(Action::Forget { sequence, model: name.clone() });
        }
        // A generation that ends by itself has let go of all text; one that is cut short has not.
        if let Some(event) = running.last_event() {
            self.actions.push(Action::Event { job: sequence.job, event });
        }
        self.running.retain(|&other| other != sequence);
        self.mean_run = (self.mean_run * 7 + now.saturating_sub(running.started_at)) / 8;
        let mut tokens = running.tokens;
        tokens.truncate(running.computed);
        let (lease, cached_tokens, sampled) =
            (running.lease.id, running.lease.cached_tokens(), running.generated);
        let model = self.models.get_mut(&name).expect("models outlive their jobs");
        model.starved = false;
        model.releases += 1;
        self.actions.push(Action::Release { sequence, lease, tokens, cached_tokens, sampled });
    }

    /// Ends a job of which nothing runs, and nothing waits that is to start.
    fn end_if_over(&mut self, id: JobNumber, now: Uptime) {
        let job = &self.jobs[&id];
        let is_asking = self.is_asking(id);
        let waits = job.next_waiting().is_some();
        if job.is_running() || is_asking || (waits && job.stopping.is_none()) {
            return;
        }
        if waits {
            self.unqueue(id);
        }
        let job = self.jobs.remove(&id).expect("a job ends once");
        self.actions.push(Action::Event { job: id, event: job.terminal_event(now) });
    }
}

impl Core {
    /// Verifies the bookkeeping; the simulation calls it after every input.
    ///
    /// # Panics
    /// At the first broken invariant.
    #[cfg(test)]
    fn check(&self) {
        let sum = |of: fn(&Job) -> usize| self.queue.iter().map(|id| of(&self.jobs[id])).sum::<usize>();
        assert_eq!(self.queued_tokens, sum(|job| job.prompt.len()));
        assert_eq!(self.queued_bytes, sum(|job| job.bytes));
        let started = self.running.len() + self.asking().count();
        assert!(self.queue.len() <= self.limits.queued_jobs && started <= self.limits.running_jobs);
        for (name, model) in &self.models {
            let asks = |(sequence, _): &(SequenceId, u64)| {
                let job = &self.jobs[&sequence.job];
                job.model == *name && job.next_waiting() == Some(sequence.choice)
            };
            assert!(
                model.asking.as_ref().is_none_or(asks),
                "a model's question is about a waiting answer of its own"
            );
        }
        let mut running = 0;
        for (id, job) in &self.jobs {
            let waits = job.next_waiting().is_some();
            assert_eq!(
                self.queue.contains(id),
                waits,
                "{id:?} is in the queue exactly while an answer waits"
            );
            assert!(waits || job.is_running(), "{id:?} waits or runs");
            let started = job.next_waiting().unwrap_or(job.choices.len() as u32) as usize;
            let is_waiting = |choice: &Choice| matches!(choice, Choice::Waiting);
            assert!(job.choices[started..].iter().all(is_waiting), "answers start in order");
            running += job.choices.iter().filter(|choice| matches!(choice, Choice::Running(_))).count();
        }
        assert_eq!(running, self.running.len(), "what runs is listed once");
        assert!(
            self.running
                .iter()
                .all(|at| matches!(self.jobs[&at.job].choices[at.choice as usize], Choice::Running(_)))
        );
        assert!(self.in_flight.is_some() || self.running.is_empty(), "the device idles while jobs run");
    }
}
