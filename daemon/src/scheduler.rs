//! The scheduler actor: carries messages to the pure core and carries the core's actions out. It is the only writer of
//! jobs and their logs, in memory and on disk.
//!
//! Invariant: operations reach the KV store in the order the core gave them, one batch at a time. A lease may be answered
//! after its batch, and nobody waits for it but its job and those behind. A device has one step at a time. A fault of
//! a device, or of a fellow actor, ends the process; a disk that fails does not.

pub(crate) mod core;
mod durable;
pub(crate) mod jobs;
mod journal;
pub(crate) mod log;
mod messages;
pub(crate) mod models;
pub(crate) mod plan;
mod steering;

pub(crate) use durable::{Durable, Recover};
pub(crate) use messages::{
    ConnectionGone, DetailOf, Drain, HasRoom, JobsOf, ModelStates, ReadLog, SchedulerSnapshot, Snapshot,
    StoryOf, SubmitJob, Submitted, Unload, WantModel, WantedModels, Work,
};
pub(crate) use steering::{BatchJobsOf, CancelJobs, HoldJob, Pause, QueueAnswer, QueueOf, SetClass};

use crate::clock::Clock;
use crate::config::ModelSettings;
use crate::device::Devices;
use crate::device::port::{Generate, Loaded, NoSampler, Resumed};
use crate::kv_store::{AddModel, Apply, CloseModel, KvOp, KvStoreActor, RemoveModel};
use crate::limits::{FORGET_INTERVAL, JOURNAL_GRACE, MAILBOX_MESSAGES, MEASURED_TOKENS, TICK};
use crate::metrics::{Metrics, Outcome};
use crate::pulse::{AliveGuard, Organ, Pulses};
use actix::prelude::*;
use core::{Action, Core, CoreLimits, Input, Refusal, Time};
use jobs::JobTable;
use journal::Journal;
use models::{LoadState, ModelTable};
use plan::{JobNumber, ModelName, SequenceId, StepPlan};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio::sync::{oneshot, watch};
use zllm_engine::Pool;
use zllm_state::{BLOCK_TOKENS, SessionName, SessionUse};
use zllm_wire::Event;

/// The actor.
pub(crate) struct SchedulerActor {
    core: Core,
    jobs: JobTable,
    models: ModelTable,
    /// Samplers of sequences that have not been in a step yet.
    samplers: HashMap<SequenceId, Box<dyn Generate>>,
    /// Who waits for what is pooled of a job's prompt.
    pools: HashMap<JobNumber, oneshot::Sender<Pool>>,
    /// Sequences that the device may forget; told with the next step.
    forgets: HashMap<ModelName, Vec<SequenceId>>,
    kv_ops: Vec<KvOp>,
    kv_busy: bool,
    /// The number of the latest job.
    last_job: u64,
    durable: Durable,
    journal: Journal,
    /// New jobs that are on their way to the disk.
    storing: usize,
    /// Jobs that ran when the daemon died, until that is on disk.
    interrupted: HashSet<JobNumber>,
    /// Since when a stopping daemon waits for nothing but the job disk.
    idle_since: Option<Time>,
    forgot_at: Time,
    /// Jobs that cannot go on, with the reason; the core is told when it has said all.
    failures: Vec<(JobNumber, String)>,
    /// Whoever waits for the last job's end.
    drained: Vec<oneshot::Sender<()>>,
    refusal: Option<Refusal>,
    fellows: Fellows,
    _alive: AliveGuard,
}

/// Whom the scheduler works with.
#[derive(Clone)]
pub(crate) struct Fellows {
    pub(crate) kv: Addr<KvStoreActor>,
    pub(crate) devices: Devices,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
    pub(crate) pulses: Pulses,
}

impl SchedulerActor {
    pub(crate) fn spawn(limits: CoreLimits, durable: Durable, fellows: Fellows) -> Addr<Self> {
        Self::create(|ctx| {
            ctx.set_mailbox_capacity(MAILBOX_MESSAGES);
            Self {
                core: Core::new(limits),
                jobs: JobTable::default(),
                models: ModelTable::default(),
                samplers: HashMap::new(),
                pools: HashMap::new(),
                forgets: HashMap::new(),
                kv_ops: Vec::new(),
                kv_busy: false,
                last_job: 0,
                durable,
                journal: Journal::default(),
                storing: 0,
                interrupted: HashSet::new(),
                idle_since: None,
                forgot_at: Time::ZERO,
                failures: Vec::new(),
                drained: Vec::new(),
                refusal: None,
                _alive: fellows.pulses.guard(Organ::Scheduler),
                fellows,
            }
        })
    }

    /// Takes one input in and carries out what follows from it.
    fn input(&mut self, input: Input, ctx: &mut Context<Self>) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let now = self.fellows.clock.time();
            for action in self.core.step(input, now) {
                self.carry_out(action, ctx);
            }
            inputs.extend(self.failures.drain(..).map(|(job, message)| Input::Fail { job, message }));
        }
        self.settle(ctx);
    }

    /// Sends what the KV store is to do; once it has all of that, closed models may go and a drain may end.
    fn settle(&mut self, ctx: &mut Context<Self>) {
        self.flush_kv(ctx);
        self.flush_journal(ctx);
        if self.kv_busy {
            return;
        }
        self.unload_closed(ctx);
        if self.core.is_draining() && self.core.is_idle() && self.journal_may_be_left() {
            for heard in self.drained.drain(..) {
                let _ = heard.send(());
            }
        }
    }

    /// Whether a stopping daemon need not wait for the job disk: everything is there, or it hangs.
    fn journal_may_be_left(&mut self) -> bool {
        let now = self.fellows.clock.time();
        let since = *self.idle_since.get_or_insert(now);
        self.journal.is_quiet() || now.saturating_sub(since) >= JOURNAL_GRACE
    }

    fn carry_out(&mut self, action: Action, ctx: &mut Context<Self>) {
        match action {
            Action::Refused { job, refusal } => {
                self.jobs.remove(job);
                self.journal.forget(job);
                self.drop_work(job);
                self.fellows.metrics.request(Outcome::Refused);
                self.refusal = Some(refusal);
            }
            Action::Lease { sequence, model, tenant, tokens, capacity_tokens } => {
                // What a durable job computes is wanted again after a crash, as a session's is.
                let has_session = self.session_of(sequence).is_some() || self.journal.contains(sequence.job);
                let lease =
                    KvOp::Lease { sequence, model, tenant, prompt: tokens, capacity_tokens, has_session };
                self.kv_ops.push(lease);
            }
            Action::Prefetch { model, tenant, prompt } => {
                self.kv_ops.push(KvOp::Prefetch { model, tenant, prompt });
            }
            Action::Cached { job, report } => self.jobs.cached(job, report),
            Action::Resume { sequence, model, prompt, generated, state } => {
                self.resume(sequence, &model, &prompt, &generated, state);
            }
            Action::Began { job } => self.runs(job, true),
            Action::Parked { job } => self.runs(job, false),
            Action::Commit { lease, tokens } => self.kv_ops.push(KvOp::Commit { lease, tokens }),
            Action::Release { sequence, lease, tokens, cached_tokens, sampled, parked } => {
                let tail = tokens[tokens.len() / BLOCK_TOKENS * BLOCK_TOKENS..].to_vec();
                let (hit_tokens, sampled) = (cached_tokens as u64, sampled as u64);
                let session = self.session_of(sequence).filter(|_| !parked);
                let session = session.map(|name| SessionUse { name, tokens, hit_tokens, sampled });
                self.kv_ops.push(KvOp::Release { lease, tail, session, keep: parked });
            }
            Action::Step(plan) => self.run_step(plan, ctx),
            Action::Forget { sequence, model } => self.forgets.entry(model).or_default().push(sequence),
            Action::Event { job, event } => self.event(job, event),
            Action::Pooled { job, pool } => {
                // Whoever waited may have gone.
                let _ = self.pools.remove(&job).map(|reply| reply.send(pool));
            }
            Action::Measure(measure) => self.fellows.metrics.measure(measure, self.fellows.clock.now()),
            Action::Moment { job, what } => self.jobs.moment(job, what, self.fellows.clock.time()),
            Action::Token { job, token } => {
                self.jobs.token(job, self.fellows.clock.time());
                if self.journal.contains(job) {
                    self.journal.token(job, token);
                }
            }
        }
    }

    /// The session that a sequence leaves its timeline to. A session is one timeline: with several answers it goes on with
    /// the first.
    fn session_of(&self, sequence: SequenceId) -> Option<SessionName> {
        let record = self.jobs.get(sequence.job).filter(|_| sequence.choice == 0)?;
        let id = record.facts.session.as_ref()?.to_string();
        Some(SessionName { tenant: record.facts.tenant.clone(), id })
    }

    fn event(&mut self, job: JobNumber, event: Event) {
        match &event {
            Event::Finished { reason, .. } => self.fellows.metrics.request((*reason).into()),
            Event::Failed { .. } => self.fellows.metrics.request(Outcome::Failed),
            Event::Queued { .. } | Event::Started { .. } | Event::Text { .. } => {}
        }
        if log::is_terminal(&event) {
            self.drop_work(job);
        }
        if self.journal.contains(job) {
            self.journal_event(job, event);
        } else {
            self.jobs.event(job, event, self.fellows.clock.time());
        }
    }

    /// Drops what a job came with and has not used.
    fn drop_work(&mut self, job: JobNumber) {
        self.samplers.retain(|sequence, _| sequence.job != job);
        self.pools.remove(&job);
    }

    fn runs(&mut self, job: JobNumber, runs: bool) {
        if self.journal.contains(job) {
            if runs { self.journal.began(job) } else { self.journal.parked(job) }
        }
        let attempts = self.journal.attempts(job).max(1);
        self.jobs.runs(job, runs, attempts, self.fellows.clock.time());
    }

    /// Makes the sampler of a sequence that goes on after it gave way or after a restart.
    fn resume(
        &mut self,
        sequence: SequenceId,
        model: &ModelName,
        prompt: &[u32],
        generated: &[u32],
        state: f32,
    ) {
        let record = self.jobs.get(sequence.job).expect("what runs is known");
        let text = self.models.text(model).expect("what runs has its model");
        match text.resume(prompt, &record.facts.params, sequence.choice, generated, state) {
            Ok(Resumed::Going(sampler)) => {
                self.samplers.insert(sequence, sampler);
            }
            // What ends with its last token is not taken up, unless the model has other end tokens now.
            Ok(Resumed::Ended(end)) => {
                let message = format!("its {} tokens end its answer now: {:?}", generated.len(), end.reason);
                self.samplers.insert(sequence, Box::new(NoSampler(message)));
            }
            Err(message) => {
                let message = format!("it cannot go on after {} tokens: {message}", generated.len());
                self.samplers.insert(sequence, Box::new(NoSampler(message)));
            }
        }
    }

    fn run_step(&mut self, plan: StepPlan, ctx: &mut Context<Self>) {
        let begins = plan
            .rows
            .iter()
            .filter_map(|row| Some((row.sequence, self.samplers.remove(&row.sequence)?)))
            .collect();
        let forgets = self.forgets.remove(&plan.model).unwrap_or_default();
        let answer = self.fellows.devices.run_step(plan.clone(), begins, forgets);
        ctx.spawn(answer.into_actor(self).map(move |answer, actor, ctx| match answer {
            Ok(done) => {
                actor.fellows.metrics.step(&plan, done.took, actor.fellows.clock.now());
                let (tokens, took) = (plan.prefill_tokens(), done.took);
                if tokens >= MEASURED_TOKENS {
                    actor.kv_ops.push(KvOp::Measured { model: plan.model.clone(), tokens, took });
                }
                actor.input(Input::StepDone { model: plan.model, outcome: done.outcome, took }, ctx);
            }
            Err(message) => panic!("the device failed: {message}"),
        }));
    }

    /// Sends what has gathered, unless a batch is out; its answer sends the next.
    fn flush_kv(&mut self, ctx: &mut Context<Self>) {
        if self.kv_busy || self.kv_ops.is_empty() {
            return;
        }
        self.kv_busy = true;
        let answer = self.fellows.kv.send(Apply(std::mem::take(&mut self.kv_ops)));
        ctx.spawn(answer.into_actor(self).map(|answer, actor, ctx| {
            let leases = answer.unwrap_or_else(|error| panic!("the kv store actor is gone: {error}"));
            actor.kv_busy = false;
            for (sequence, lease) in leases {
                let lease = lease.into_actor(actor).map(move |result, actor, ctx| {
                    let result = result.expect("the kv store answers every lease that it is asked for");
                    actor.input(Input::Leased { sequence, result }, ctx);
                });
                ctx.spawn(lease);
            }
            actor.settle(ctx);
        }));
    }

    /// Brings a model in: first the device, then its empty arena in the KV store, then the core.
    fn start_load(
        &mut self,
        model: ModelName,
        settings: ModelSettings,
        state: watch::Sender<LoadState>,
        ctx: &mut Context<Self>,
    ) {
        tracing::info!(model = %model, path = %settings.path.display(), "loading");
        let progress = Box::new(move |at| {
            state.send_replace(LoadState::Loading(at));
        });
        let (devices, kv, name) = (self.fellows.devices.clone(), self.fellows.kv.clone(), model.clone());
        let loading = async move {
            let loaded = devices.load(name.clone(), settings, progress).await?;
            let fingerprint = loaded.text.facts().fingerprint;
            let Loaded { device_blocks, ram_blocks, kv_block_bytes: block_bytes, .. } = loaded;
            kv.send(AddModel { model: name, fingerprint, device_blocks, ram_blocks, block_bytes })
                .await
                .unwrap_or_else(|error| panic!("the kv store actor is gone: {error}"));
            Ok(loaded)
        };
        ctx.spawn(loading.into_actor(self).map(move |result: Result<_, String>, actor, ctx| {
            match &result {
                Ok(loaded) => {
                    tracing::info!(model = %model, devices = ?loaded.devices, weight_bytes = loaded.weight_bytes, "loaded");
                    actor.refuse_changed(&model, loaded.text.facts());
                    let (total_blocks, devices) = (loaded.device_blocks, loaded.devices.clone());
                    actor.models.loaded(&model, result);
                    actor.input(Input::ModelUp { model, total_blocks, devices }, ctx);
                    return;
                }
                Err(message) => tracing::warn!(model = %model, message, "does not load"),
            }
            actor.models.loaded(&model, result);
        }));
    }

    /// Unloads closing models whose jobs have ended. The KV store has their leases back; it forgets the arena before the
    /// device does, so that no command of its own comes after.
    fn unload_closed(&mut self, ctx: &mut Context<Self>) {
        let core = &self.core;
        for model in self.models.take_unloadable(|model| core.has_jobs(model)) {
            self.forgets.remove(&model);
            for action in self.core.step(Input::ModelDown { model: model.clone() }, self.fellows.clock.time())
            {
                self.carry_out(action, ctx);
            }
            let (devices, kv, name) = (self.fellows.devices.clone(), self.fellows.kv.clone(), model.clone());
            let unloading = async move {
                kv.send(CloseModel)
                    .await
                    .unwrap_or_else(|error| panic!("the kv store actor is gone: {error}"));
                kv.send(RemoveModel(name.clone()))
                    .await
                    .unwrap_or_else(|error| panic!("the kv store actor is gone: {error}"));
                let gone = devices.unload(&name).await;
                gone.unwrap_or_else(|error| panic!("model {name} cannot be unloaded: {error}"));
            };
            ctx.spawn(unloading.into_actor(self).map(move |(), actor, _| {
                tracing::info!(model = %model, "unloaded");
                actor.models.unloaded(&model);
            }));
        }
    }
}

impl Actor for SchedulerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(TICK, |actor, ctx| {
            actor.fellows.pulses.beat(Organ::Scheduler);
            actor.input(Input::Tick, ctx);
            let now = actor.fellows.clock.time();
            if now.saturating_sub(actor.forgot_at) >= FORGET_INTERVAL {
                actor.forgot_at = now;
                actor.look_after_disk(ctx);
            }
        });
    }
}
