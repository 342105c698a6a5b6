//! One history: the clock, and everything round the core.

use super::super::{Action, Core, Input, Measure, Refusal, Time};
use super::checks::{Bounds, Fault, Idle, Jobs, Order, PaceCheck, Promises, Shares, Starvation};
use super::clients::Client;
use super::device::Device;
use super::disk::Disk;
use super::happening::{Happening, Totals};
use super::job::{Job, Place, Request};
use super::mutants::Sabotage;
use super::rng::Rng;
use super::scenario::{AGING, PACE, Scenario};
use super::store::{Question, Store};
use crate::limits::TICK;
use crate::scheduler::log::is_terminal;
use crate::scheduler::plan::{JobNumber, ModelName, SequenceId, StepOutcome, StepPlan};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;
use zllm_engine::Pool;
use zllm_state::LeaseId;
use zllm_wire::{Event, FinishReason};

/// Ticks at which the index checks itself, of a thousand, and the queue's view is looked at: both are slow.
const SLOW_CHECKS: usize = 50;

pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) rng: Rng,
    pub(super) now: Time,
    timeline: BinaryHeap<Reverse<(Time, u64, u32, Happening)>>,
    happened: u64,
    /// Counts the daemon's starts: what was under way before a kill does not happen.
    pub(super) run: u32,
    pub(super) core: Core,
    pub(super) store: Store,
    pub(super) device: Device,
    pub(super) disk: Disk,
    pub(super) jobs: Jobs,
    pub(super) clients: Vec<Client>,
    last_job: u64,
    connections: u64,
    pub(super) paused: bool,
    pub(super) draining: bool,
    /// Which models are loaded.
    pub(super) loaded: Vec<bool>,
    /// Clients submit nothing more.
    pub(super) closing: bool,
    refusal: Option<Refusal>,
    sabotage: Sabotage,
    bounds: Bounds,
    order: Order,
    starvation: Starvation,
    idle: Idle,
    pub(super) pace: PaceCheck,
    pub(super) promises: Promises,
    pub(super) shares: Shares,
    /// How long jobs waited for their first start, by class.
    pub(super) waits: BTreeMap<u8, Vec<Duration>>,
    pub(super) totals: Totals,
    pub(super) fault: Option<Fault>,
}

impl World {
    pub(super) fn new(scenario: Scenario, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let models = scenario.models.len();
        let clients: Vec<Client> = (0..)
            .zip(scenario.clients.clone())
            .map(|(index, plan)| Client::new(index, plan, rng.fork()))
            .collect();
        let mut world = Self {
            core: Core::new(Sabotage::limits(scenario.mutant, &scenario.limits)),
            store: Store::new(scenario.models.iter().map(|model| model.blocks)),
            device: Device::new(scenario.costs, models),
            disk: Disk::default(),
            bounds: Bounds::new(scenario.limits.clone()),
            order: Order::new(models, scenario.limits.aging),
            starvation: Starvation::new(models, AGING, scenario.longest_job),
            idle: Idle::new(models),
            pace: PaceCheck::new(models, PACE),
            promises: Promises::default(),
            shares: Shares::new(scenario.window),
            connections: clients.len() as u64,
            clients,
            scenario,
            rng,
            now: Time::ZERO,
            timeline: BinaryHeap::new(),
            happened: 0,
            run: 0,
            jobs: Jobs::new(),
            last_job: 0,
            paused: false,
            draining: false,
            loaded: vec![false; models],
            closing: false,
            refusal: None,
            sabotage: Sabotage::default(),
            waits: BTreeMap::new(),
            totals: Totals::default(),
            fault: None,
        };
        (0..models).for_each(|model| world.loaded(model));
        world.at(TICK, Happening::Tick);
        for index in 0..world.clients.len() {
            let pause = world.rng.pause(Duration::from_secs(2));
            world.at(world.clients[index].plan.from + pause, Happening::Wake(index));
        }
        world.plan_trouble();
        world
    }

    // ---- time ----

    /// Has something happen after a while.
    pub(super) fn at(&mut self, after: Duration, happening: Happening) {
        self.happened += 1;
        self.timeline.push(Reverse((self.now + after, self.happened, self.run, happening)));
    }

    /// Lets time pass.
    ///
    /// # Errors
    /// The first fault that a checker finds.
    pub(super) fn run_until(&mut self, end: Time) -> Result<(), Fault> {
        while self.fault.is_none() {
            match self.timeline.peek() {
                Some(Reverse((at, ..))) if *at <= end => {}
                _ => break,
            }
            let Reverse((at, _, run, happening)) = self.timeline.pop().expect("peeked");
            self.now = at;
            if run == self.run || happening.outlives_the_daemon() {
                self.happen(happening);
            }
        }
        self.fault.clone().map_or(Ok(()), Err)
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Tick => self.tick(),
            Happening::Wake(client) => self.wake(client),
            Happening::Fate(job, fate) => self.fate(job, fate),
            Happening::Decide(model) => self.decide(model),
            Happening::Answer(model) => self.answer(model),
            Happening::StepDone(model, took) => self.step_done(model, took),
            Happening::Loaded(model) => self.loaded(model),
            Happening::Stored(job) => self.stored(job),
            Happening::Written(name) => self.written(name),
            Happening::Pause(paused) => self.pause(paused),
            Happening::Restart => self.drain(),
            Happening::Kill => self.kill(),
        }
    }

    fn tick(&mut self) {
        self.at(TICK, Happening::Tick);
        for job in self.jobs.values_mut() {
            let passed =
                |within: Option<Duration>| within.is_some_and(|within| self.now >= job.arrived_at + within);
            if passed(job.request.end_within) || (passed(job.request.start_within) && !job.started) {
                job.cancelled = true;
            }
        }
        self.input(Input::Tick);
        if self.rng.chance(SLOW_CHECKS) {
            let checked = self.store.check();
            self.found("leases", checked);
            let seen = self.check_view();
            self.found("view", seen);
        }
        let stopped = self.paused || self.draining;
        let starvation = self.starvation.check(&self.jobs, stopped, self.now);
        self.found("starvation", starvation);
        if !stopped {
            let works: Vec<bool> = (0..self.scenario.models.len()).map(|model| self.works(model)).collect();
            let has_places = self.places_taken() < self.scenario.limits.running_jobs;
            let idle = self.idle.check(&self.jobs, &works, has_places, self.now);
            self.found("idle", idle);
        }
        if self.draining && self.core.is_idle() && self.disk.is_quiet() {
            self.start_again(false);
        }
    }

    /// The queue as it is told shows every job that waits, once, and no more than may run.
    fn check_view(&self) -> Result<(), String> {
        let view = self.core.view(self.now);
        let mut shown: Vec<JobNumber> = view.waiting.iter().map(|waiting| waiting.job).collect();
        shown.sort();
        let waits = |job: &Job| job.answers.iter().any(|answer| answer.place == Place::Waiting);
        let those = self.jobs.iter().filter(|(_, job)| !job.over && waits(job));
        if !those.map(|(id, _)| id).eq(&shown) {
            return Err(format!("the queue shows {shown:?}"));
        }
        let starts = view.waiting.iter().filter_map(|waiting| waiting.starts_in);
        if !starts.is_sorted() || view.running.len() > view.running_limit {
            return Err(format!("the queue is out of order: {view:?}"));
        }
        Ok(())
    }

    fn works(&self, model: usize) -> bool {
        let runs = |job: &Job| job.request.model == model && job.is_running();
        self.store.is_asked(model) || self.device.computes(model) || self.jobs.values().any(runs)
    }

    fn places_taken(&self) -> usize {
        let running = |job: &Job| job.answers.iter().filter(|answer| answer.place == Place::Running).count();
        let asked = (0..self.scenario.models.len()).filter(|model| self.store.is_asked(*model)).count();
        self.jobs.values().map(running).sum::<usize>() + asked
    }

    /// Keeps the first fault.
    pub(super) fn found<T>(&mut self, checker: &'static str, result: Result<T, String>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(message) => {
                self.fault.get_or_insert(Fault { checker, message });
                None
            }
        }
    }

    // ---- the core ----

    pub(super) fn input(&mut self, mut input: Input) {
        self.sabotage.of_input(self.scenario.mutant, &mut input);
        let actions = self.core.step(input, self.now);
        for action in self.sabotage.of_actions(self.scenario.mutant, actions) {
            if self.fault.is_none() {
                self.carry_out(action);
            }
        }
        if self.fault.is_some() {
            return;
        }
        self.flush_disk();
        self.totals.inputs += 1;
        if self.totals.inputs.is_multiple_of(self.scenario.check_every) {
            self.core.check();
            let (taken, limit) = (self.places_taken(), self.scenario.limits.running_jobs);
            let places =
                if taken > limit { Err(format!("{taken} places are taken of {limit}")) } else { Ok(()) };
            self.found("places", places);
        }
    }

    fn flush_disk(&mut self) {
        for name in self.disk.begin_writes(self.now) {
            let takes = Duration::from_millis(2 + self.rng.below(30) as u64);
            self.at(takes, Happening::Written(name));
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Refused { job, refusal } => self.refused(job, refusal),
            Action::Lease { sequence, model, tenant, tokens, capacity_tokens: capacity } => {
                let question = Question { sequence, tenant, tokens, capacity };
                self.ask(self.model(&model), question);
            }
            Action::Prefetch { .. } => self.totals.prefetches += 1,
            Action::Resume { sequence, generated, state, .. } => {
                let resumed = self.device.resume(sequence, &self.jobs[&sequence.job], &generated, state);
                self.found("resume", resumed);
            }
            Action::Began { job } => self.runs(job, true),
            Action::Parked { job } => self.runs(job, false),
            Action::Commit { lease, tokens } => self.store.commit(lease, &tokens),
            Action::Release { sequence, lease, tokens, parked, .. } => {
                self.release(sequence, lease, &tokens, parked);
            }
            Action::Step(plan) => self.begin_step(plan),
            Action::Forget { sequence, .. } => {
                let forgotten = self.device.forget(sequence);
                self.found("device", forgotten);
            }
            Action::Event { job, event } => self.event(job, event),
            Action::Token { job, token } => {
                self.totals.tokens += 1;
                if self.disk.contains(job) {
                    self.disk.token(job, token);
                }
            }
            Action::Pooled { job, pool } => {
                let pooled = self.pooled(job, &pool);
                self.found("text", pooled);
            }
            Action::Measure(Measure::Parked) => self.totals.parked += 1,
            Action::Measure(_) | Action::Cached { .. } | Action::Moment { .. } => {}
        }
    }

    fn pooled(&mut self, id: JobNumber, pool: &Pool) -> Result<(), String> {
        self.totals.pooled += 1;
        let job = self.jobs.get_mut(&id).filter(|job| !job.over);
        let job = job.ok_or_else(|| format!("{id:?} is pooled and has ended"))?;
        if std::mem::replace(&mut job.pooled, true) || *pool != job.whole_pool() {
            return Err(format!("{id:?} is pooled twice, or is another vector than alone: {pool:?}"));
        }
        Ok(())
    }

    pub(super) fn model(&self, name: &ModelName) -> usize {
        name.parse().expect("models are named by their numbers")
    }

    pub(super) fn name(model: usize) -> ModelName {
        model.to_string().into()
    }

    fn runs(&mut self, job: JobNumber, runs: bool) {
        if self.disk.contains(job) {
            self.disk.runs(job, runs);
        }
    }

    fn event(&mut self, id: JobNumber, event: Event) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.over) else {
            let late = format!("{id:?} has an event after its terminal one: {event:?}");
            self.found::<()>("endings", Err(late));
            return;
        };
        let was_queued = job.is_queued();
        job.over = is_terminal(&event);
        if matches!(event, Event::Started { .. }) {
            job.started = true;
            self.waits.entry(job.class as u8).or_default().push(self.now - job.arrived_at);
        }
        let shrunk = was_queued && !job.is_queued();
        if self.disk.contains(id) {
            self.disk.event(id, event, self.now);
        } else {
            self.show(id, event);
        }
        if shrunk {
            self.promises.shrunk(&self.bounds, &self.jobs, self.now);
        }
    }

    /// A reader sees an event.
    pub(super) fn show(&mut self, id: JobNumber, event: Event) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let ends = is_terminal(&event);
        let shown = job.show(event).map_err(|why| format!("{id:?}: {why}"));
        self.found("log", shown);
        if ends {
            self.ended(id);
        }
    }

    /// A job's terminal event was shown.
    pub(super) fn ended(&mut self, id: JobNumber) {
        let Some(job) = self.jobs.remove(&id) else { return };
        let judged = job.judge().map_err(|why| format!("{id:?} of class {:?}: {why}", job.class));
        self.found("text", judged);
        let totals = &mut self.totals;
        let mut answer: &[u32] = &[];
        match job.shown.last() {
            Some(Event::Finished { reason: FinishReason::Cancelled, .. }) => totals.cancelled += 1,
            Some(Event::Finished { choices, .. }) => {
                totals.finished += 1;
                totals.several_answers += usize::from(choices.len() > 1);
                answer = &job.answers[0].tokens;
            }
            _ => totals.failed += 1,
        }
        self.client_hears(id, &job, answer);
    }

    // ---- leases ----

    fn ask(&mut self, model: usize, question: Question) {
        let sequence = question.sequence;
        let stopped = self.paused || self.draining;
        let order = self.order.asked(&mut self.jobs, sequence.job, stopped, self.now);
        self.found("order", order);
        let asked = self.store.ask(model, question);
        self.found("store", asked);
        let milliseconds = if self.rng.chance(self.scenario.trouble.slow_leases) { 1500 } else { 20 };
        let takes = Duration::from_millis(1 + self.rng.below(milliseconds) as u64);
        self.at(takes, Happening::Decide(model));
    }

    fn decide(&mut self, model: usize) {
        let refuse = self.rng.chance(self.scenario.trouble.not_now);
        let decided = self.store.decide(model, refuse, self.now);
        self.found("store", decided);
        let takes = Duration::from_millis(1 + self.rng.below(20) as u64);
        self.at(takes, Happening::Answer(model));
    }

    fn answer(&mut self, model: usize) {
        let (sequence, result) = self.store.answer(model);
        if result.is_ok()
            && let Some(job) = self.jobs.get_mut(&sequence.job)
        {
            job.answers[sequence.choice as usize].place = Place::Running;
            let class = job.class;
            self.order.started(model, class, self.now);
            self.starvation.started(model, class, self.now);
        }
        self.input(Input::Leased { sequence, result });
    }

    fn release(&mut self, sequence: SequenceId, lease: LeaseId, tokens: &[u32], parked: bool) {
        let Some(job) = self.jobs.get_mut(&sequence.job) else { return };
        job.answers[sequence.choice as usize].place = if parked { Place::Waiting } else { Place::Ended };
        if parked {
            job.waiting_since = self.now;
        }
        let kvs = (0..tokens.len()).map(|at| job.kv(sequence.choice, at));
        let released = self.store.release(lease, sequence, tokens, kvs, self.now);
        self.device.released(sequence);
        self.found("leases", released);
    }

    // ---- steps ----

    fn begin_step(&mut self, plan: StepPlan) {
        let judged = self.judge_plan(&plan);
        self.found("steps", judged);
        let model = self.model(&plan.model);
        let begun = self.device.begin(model, plan, &mut self.rng);
        if let Some(took) = self.found("device", begun) {
            self.at(took, Happening::StepDone(model, took));
        }
    }

    /// Every sequence past its prompt has its row, nobody who was cancelled has one, and prompts progress.
    fn judge_plan(&self, plan: &StepPlan) -> Result<(), String> {
        let cancelled = plan.rows.iter().find(|row| self.jobs[&row.sequence.job].cancelled);
        if let Some(row) = cancelled {
            return Err(format!("{:?} is computed after it was cancelled", row.sequence));
        }
        let of_it = || self.core.running().filter(|(_, job, _)| job.model == plan.model);
        let missing = |sequence: SequenceId| plan.rows.iter().all(|row| row.sequence != sequence);
        let mut decodes = of_it().filter(|(.., running)| running.pending() == 1);
        if let Some((sequence, ..)) = decodes.find(|(sequence, ..)| missing(*sequence)) {
            return Err(format!("{sequence:?} has no decode row"));
        }
        let pending = of_it().map(|(.., running)| running.pending()).max().unwrap_or(0);
        if pending > 1 { self.pace.planned(plan, pending) } else { Ok(()) }
    }

    fn step_done(&mut self, model: usize, took: Duration) {
        let plan = self.device.end(model);
        self.totals.steps += 1;
        self.pace.stepped(model, &plan, &self.device.costs, took);
        let mut rows = Vec::new();
        for row in &plan.rows {
            let Some(job) = self.jobs.get_mut(&row.sequence.job) else {
                self.found::<()>("steps", Err(format!("{:?} ended while it was computed", row.sequence)));
                return;
            };
            self.shares.served(&job.request.tenant, row.tokens.len(), self.now);
            let fails = self.rng.below(100_000) < self.scenario.trouble.device_faults;
            let computed = self.device.compute(row, job, &mut self.store, &mut self.rng, fails);
            let Some(outcome) = self.found("text", computed) else { return };
            rows.push(outcome);
        }
        self.input(Input::StepDone { model: plan.model, outcome: StepOutcome { rows }, took });
    }

    // ---- submitting ----

    /// Submits a job; when to come back, if it is refused.
    pub(super) fn submit(&mut self, mut request: Request) -> Result<JobNumber, Duration> {
        if self.rng.chance(self.scenario.trouble.deadlines) {
            request.end_within = Some(Duration::from_secs(5 + self.rng.below(120) as u64));
        }
        if self.rng.chance(self.scenario.trouble.deadlines) {
            request.start_within = Some(Duration::from_secs(1 + self.rng.below(60) as u64));
        }
        self.last_job += 1;
        self.totals.submitted += 1;
        let id = JobNumber(self.last_job);
        let job = Job::new(request, self.now);
        let new = job.submission(id, Self::name(job.request.model));
        if job.is_durable() {
            self.disk.submit(id, job.class, job.request.choices);
        }
        self.jobs.insert(id, job);
        self.input(Input::Submit(new));
        if let Some(refusal) = self.refusal.take() {
            let Refusal::QueueFull { retry_after, .. } = refusal else { return Err(Duration::from_secs(5)) };
            return Err(retry_after);
        }
        if let Some(job) = self.jobs.get(&id) {
            let taken = self.bounds.taken(&self.jobs, job);
            let is_durable = job.is_durable();
            self.found("bounds", taken);
            if is_durable {
                let takes = Duration::from_millis(2 + self.rng.below(40) as u64);
                self.at(takes, Happening::Stored(id));
            }
        }
        Ok(id)
    }

    fn refused(&mut self, id: JobNumber, refusal: Refusal) {
        self.totals.refused += 1;
        let Some(job) = self.jobs.remove(&id) else { return };
        self.disk.forget(id);
        let is_expected = match refusal {
            Refusal::Stopping => self.draining,
            Refusal::Paused => self.paused && !job.is_durable(),
            Refusal::NoModel { .. } => !self.loaded[job.request.model],
            _ => false,
        };
        if !is_expected {
            let judged = self.bounds.refused(&self.jobs, &job, &refusal);
            self.found("bounds", judged);
        }
        if let Refusal::QueueFull { retry_after, .. } = refusal {
            self.promises.refused(job, retry_after, self.now);
        }
        self.refusal = Some(refusal);
    }

    fn stored(&mut self, id: JobNumber) {
        if self.rng.chance(self.scenario.trouble.failed_writes) && !self.jobs[&id].over {
            self.totals.unstored += 1;
            self.disk.forget(id);
            let job = self.jobs.remove(&id).expect("it is not over");
            self.input(Input::Unstored(id));
            self.client_hears(id, &job, &[]);
            return;
        }
        self.disk.stored(id);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.stored = true;
        }
        self.input(Input::Stored(id));
    }

    fn written(&mut self, name: u64) {
        let fails = self.rng.chance(self.scenario.trouble.failed_writes);
        let (id, events) = self.disk.written(name, fails, self.now);
        for event in events {
            self.show(id, event);
        }
        self.flush_disk();
    }

    /// The daemon was started again: it knows nothing of what started when, and what was promised is void.
    pub(super) fn forget_checks(&mut self) {
        self.order = Order::new(self.scenario.models.len(), self.scenario.limits.aging);
        self.promises.forget();
    }

    /// A connection that nobody had before.
    pub(super) fn next_connection(&mut self) -> u64 {
        self.connections += 1;
        self.connections
    }
}
