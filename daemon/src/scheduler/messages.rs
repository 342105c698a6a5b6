//! What the scheduler actor is asked, and its answers. Every handler answers at once from memory, but for what is on disk
//! alone: a durable job's submission, a refused one's key, the parameters of one that ended in an earlier run.

use super::SchedulerActor;
use super::core::{CacheReport, ConnectionId, Input, Load, NewJob, Refusal, Time};
use super::jobs::JobFacts;
use super::log::JobLog;
use super::models::{LoadWatch, Wish};
use super::plan::{JobNumber, ModelName, SequenceId};
use crate::config::ModelSettings;
use crate::device::port::{Generate, TextFacts, TextModel};
use crate::metrics::Outcome;
use actix::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::sync::oneshot;
use zllm_engine::{Pool, Pooling};
use zllm_wire::{
    BatchId, Class, ErrorCode, Fault, GenerationParams, IdempotencyKey, JobDetail, JobId, JobInfo,
    ModelState, SessionId, SessionRef,
};

/// A model is wanted: load it unless it is there.
#[derive(Message)]
#[rtype(result = "Result<LoadWatch, Fault>")]
pub(crate) struct WantModel {
    pub(crate) model: ModelName,
    pub(crate) settings: ModelSettings,
}

/// Models that durable jobs wait for.
#[derive(Message)]
#[rtype(result = "Vec<ModelName>")]
pub(crate) struct WantedModels;

/// A model is to go when its jobs have ended. `None` when it is not loaded.
#[derive(Message)]
#[rtype(result = "Result<Option<oneshot::Receiver<()>>, Fault>")]
pub(crate) struct Unload(pub(crate) ModelName);

/// A new job, with everything that needs the model's text side done.
#[derive(Message)]
#[rtype(result = "Result<Submitted, Fault>")]
pub(crate) struct SubmitJob {
    pub(crate) model: ModelName,
    /// Whose KV it may share; empty for the common one.
    pub(crate) tenant: String,
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: usize,
    pub(crate) work: Work,
    pub(crate) params: GenerationParams,
    pub(crate) session: Option<SessionId>,
    pub(crate) label: Option<String>,
    pub(crate) class: Class,
    pub(crate) batch: Option<BatchId>,
    pub(crate) key: Option<IdempotencyKey>,
    pub(crate) bytes: usize,
    pub(crate) arrived_at: Time,
    pub(crate) start_by: Option<Time>,
    pub(crate) deadline: Option<Time>,
    /// The connection whose end cancels it; `None`: it is durable.
    pub(crate) owner: Option<ConnectionId>,
}

/// What becomes of a job's prompt.
pub(crate) enum Work {
    /// Answers, with a sampler for each, in order.
    Answer(Vec<Box<dyn Generate>>),
    /// An embedding. The pool of the whole prompt is sent before the end is in the job's log, and never if the job ends
    /// otherwise.
    Embed(Pooling, oneshot::Sender<Pool>),
}

/// Whether a request that is about to be tokenized would be refused all the same.
#[derive(Message)]
#[rtype(result = "Result<(), Fault>")]
pub(crate) struct HasRoom {
    pub(crate) class: Class,
    pub(crate) tenant: String,
    pub(crate) bytes: usize,
}

/// A job that was taken.
pub(crate) struct Submitted {
    pub(crate) job: JobId,
    pub(crate) log: Arc<JobLog>,
    /// It was taken before, with the same key.
    pub(crate) known: bool,
}

/// A connection has ended: its jobs go.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct ConnectionGone(pub(crate) ConnectionId);

/// A job's log.
#[derive(Message)]
#[rtype(result = "Result<Arc<JobLog>, Fault>")]
pub(crate) struct ReadLog(pub(crate) JobId);

/// One job in full, but for the texts of its answers, and its log, which has them.
#[derive(Message)]
#[rtype(result = "Result<(JobDetail, Arc<JobLog>), Fault>")]
pub(crate) struct DetailOf(pub(crate) JobId);

/// Why a job's prompt was found in the KV store, or was not.
#[derive(Message)]
#[rtype(result = "Result<Story, Fault>")]
pub(crate) struct StoryOf(pub(crate) JobId);

/// The answer to [`StoryOf`].
pub(crate) struct Story {
    /// The text side of its model, while that is loaded.
    pub(crate) text: Option<Arc<dyn TextModel>>,
    pub(crate) prompt_tokens: u64,
    /// `None` for a job that has not started.
    pub(crate) cache: Option<CacheReport>,
}

/// The latest jobs: of one session, or all.
#[derive(Message)]
#[rtype(result = "Vec<JobInfo>")]
pub(crate) struct JobsOf {
    pub(crate) session: Option<SessionRef>,
    pub(crate) limit: usize,
}

/// States of the models of a catalog.
#[derive(Message)]
#[rtype(result = "BTreeMap<String, ModelView>")]
pub(crate) struct ModelStates(pub(crate) Vec<String>);

/// What is known of a model that was wanted once.
#[derive(Debug, Clone)]
pub(crate) struct ModelView {
    pub(crate) state: ModelState,
    pub(crate) facts: Option<TextFacts>,
    pub(crate) weight_bytes: Option<u64>,
}

/// Take nothing new, and end everything by `deadline`, but for durable jobs, which go on after the next start. The receiver
/// hears when nothing runs and all is on disk.
#[derive(Message)]
#[rtype(result = "oneshot::Receiver<()>")]
pub(crate) struct Drain {
    pub(crate) deadline: Time,
}

/// How busy the scheduler is.
#[derive(Message)]
#[rtype(result = "SchedulerSnapshot")]
pub(crate) struct Snapshot;

/// The answer to [`Snapshot`].
#[derive(Debug, Clone)]
pub(crate) struct SchedulerSnapshot {
    pub(crate) load: Load,
    /// Nothing that waits starts: a client said so, or the daemon is stopping.
    pub(crate) draining: bool,
    /// Why no job is durable.
    pub(crate) jobs_fault: Option<String>,
}

impl SchedulerActor {
    /// The number of the next job: ids sort by time, also over restarts and clocks that go back.
    pub(super) fn next_number(&mut self) -> JobNumber {
        self.last_job = (self.last_job + 1).max(self.fellows.clock.unix_ms() << 20);
        JobNumber(self.last_job)
    }

    /// The place of each job that waits.
    fn positions(&self) -> HashMap<JobNumber, usize> {
        let order = self.core.waiting_order(self.fellows.clock.time());
        order.into_iter().enumerate().map(|(place, (job, _))| (job, place)).collect()
    }

    fn job_info(&self, number: JobNumber, positions: &HashMap<JobNumber, usize>) -> Option<JobInfo> {
        let record = self.jobs.get(number)?;
        let loaded = self.models.state(&record.facts.model).and_then(|(_, loaded)| loaded);
        let block_bytes = loaded.map_or(0, |loaded| loaded.kv_block_bytes);
        let held = self.core.held_blocks(number) as u64 * block_bytes;
        Some(record.info(positions.get(&number).copied().unwrap_or(0), held, self.fellows.clock.time()))
    }

    /// Makes a job of a request, and hands it to the core.
    ///
    /// # Errors
    /// Why it is not taken.
    fn take(&mut self, job: SubmitJob, ctx: &mut Context<Self>) -> Result<(JobNumber, Vec<u32>), Refusal> {
        if !self.core.is_draining() && !self.models.is_open(&job.model) {
            self.fellows.metrics.request(Outcome::Refused);
            return Err(Refusal::NoModel { model: job.model });
        }
        let number = self.next_number();
        let detached = job.owner.is_none();
        assert!(
            !(detached && matches!(job.work, Work::Embed(..))),
            "whoever wants an embedding waits for it"
        );
        let facts = JobFacts {
            id: job_id(number),
            label: job.label,
            model: job.model.to_string(),
            tenant: job.tenant.clone(),
            session: job.session,
            class: job.class,
            held: false,
            batch: job.batch,
            key: job.key,
            detached,
            params: job.params,
            params_on_disk: false,
            prompt_tokens: job.prompt.len() as u64,
            submitted_at: job.arrived_at,
            start_by: job.start_by,
            deadline: job.deadline,
            fingerprint: self
                .models
                .text(&job.model)
                .map(|text| text.facts().fingerprint)
                .unwrap_or_default(),
        };
        let log = self.new_log(number, detached);
        self.jobs.insert(number, facts, log);
        if detached {
            self.journal.begin(number, zllm_state::JobState::Queued, 0, 0);
            self.journal.record(number);
        }
        let (choices, pooling) = self.take_work(number, job.work);
        let prompt = if detached { job.prompt.clone() } else { Vec::new() };
        let new = NewJob {
            id: number,
            model: job.model,
            tenant: job.tenant,
            class: job.class,
            prompt: job.prompt,
            max_tokens: job.max_tokens,
            choices,
            pooling,
            bytes: job.bytes,
            arrived_at: job.arrived_at,
            start_by: job.start_by,
            deadline: job.deadline,
            owner: job.owner,
        };
        self.input(Input::Submit(new), ctx);
        match self.refusal.take() {
            Some(refusal) => Err(refusal),
            None => Ok((number, prompt)),
        }
    }

    /// Keeps what a job is computed with; how many answers it has, and how it is pooled.
    fn take_work(&mut self, number: JobNumber, work: Work) -> (u32, Option<Pooling>) {
        match work {
            Work::Answer(samplers) => {
                let choices = samplers.len() as u32;
                let sequences = (0..choices).map(|choice| SequenceId { job: number, choice });
                self.samplers.extend(sequences.zip(samplers));
                (choices, None)
            }
            Work::Embed(pooling, reply) => {
                self.pools.insert(number, reply);
                (1, Some(pooling))
            }
        }
    }

    /// What a client is told of a job that was taken.
    pub(super) fn submitted(&self, number: JobNumber, known: bool) -> Option<Submitted> {
        let record = self.jobs.get(number)?;
        Some(Submitted { job: record.facts.id.clone(), log: record.log.clone(), known })
    }

    /// The number of a job that is known.
    pub(super) fn known(&self, id: &JobId) -> Result<JobNumber, Fault> {
        let number = job_number(id).filter(|number| self.jobs.get(*number).is_some());
        number.ok_or_else(|| match self.durable.fault() {
            None => Fault { code: ErrorCode::NotFound, message: format!("there is no job {id}") },
            Some(why) => {
                let message = format!("job {id} is not known now: durable jobs cannot be read: {why}");
                Fault { code: ErrorCode::Failed, message }
            }
        })
    }
}

/// A job's id.
pub(super) fn job_id(number: JobNumber) -> JobId {
    JobId::new(format!("j-{:016x}", number.0)).expect("an id of hexadecimal digits")
}

/// The number of an id that this daemon, or an earlier one, made.
pub(super) fn job_number(id: &JobId) -> Option<JobNumber> {
    let number = JobNumber(u64::from_str_radix(id.as_str().strip_prefix("j-")?, 16).ok()?);
    (job_id(number) == *id).then_some(number)
}

impl Handler<WantModel> for SchedulerActor {
    type Result = Result<LoadWatch, Fault>;

    fn handle(&mut self, WantModel { model, settings }: WantModel, ctx: &mut Self::Context) -> Self::Result {
        if self.core.is_draining() {
            return Err(fault_of(Refusal::Stopping));
        }
        match self.models.want(&model)? {
            Wish::Wait(watch) => Ok(watch),
            Wish::Start(state, watch) => {
                self.start_load(model, settings, state, ctx);
                Ok(watch)
            }
        }
    }
}

impl Handler<WantedModels> for SchedulerActor {
    type Result = MessageResult<WantedModels>;

    fn handle(&mut self, _: WantedModels, _: &mut Self::Context) -> Self::Result {
        let wanted = self.core.wanted_models().into_iter();
        MessageResult(wanted.filter(|model| !self.models.is_open(model)).collect())
    }
}

impl Handler<Unload> for SchedulerActor {
    type Result = Result<Option<oneshot::Receiver<()>>, Fault>;

    fn handle(&mut self, Unload(model): Unload, ctx: &mut Self::Context) -> Self::Result {
        let heard = self.models.close(&model)?;
        self.settle(ctx);
        Ok(heard)
    }
}

impl Handler<SubmitJob> for SchedulerActor {
    type Result = ResponseActFuture<Self, Result<Submitted, Fault>>;

    fn handle(&mut self, job: SubmitJob, ctx: &mut Self::Context) -> Self::Result {
        let key = job.key.clone().map(|key| (job.tenant.clone(), key));
        let durable = job.owner.is_none();
        if durable && let Err(fault) = self.durable.takes(self.storing) {
            self.fellows.metrics.request(Outcome::Refused);
            return Box::pin(actix::fut::ready(Err(fault)));
        }
        match self.take(job, ctx) {
            Ok((number, prompt)) if durable => self.store(number, prompt),
            Ok((number, _)) => {
                Box::pin(actix::fut::ready(Ok(self.submitted(number, false).expect("taken above"))))
            }
            Err(refusal) => self.refuse(refusal, key),
        }
    }
}

impl Handler<HasRoom> for SchedulerActor {
    type Result = Result<(), Fault>;

    fn handle(&mut self, HasRoom { class, tenant, bytes }: HasRoom, _: &mut Self::Context) -> Self::Result {
        self.core.has_room(class, &tenant, bytes, self.fellows.clock.time()).map_err(fault_of)
    }
}

impl Handler<ConnectionGone> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, ConnectionGone(owner): ConnectionGone, ctx: &mut Self::Context) {
        self.input(Input::OwnerGone(owner), ctx);
    }
}

impl Handler<ReadLog> for SchedulerActor {
    type Result = Result<Arc<JobLog>, Fault>;

    fn handle(&mut self, ReadLog(id): ReadLog, _: &mut Self::Context) -> Self::Result {
        let number = self.known(&id)?;
        Ok(self.jobs.get(number).expect("known").log.clone())
    }
}

impl Handler<DetailOf> for SchedulerActor {
    type Result = ResponseFuture<Result<(JobDetail, Arc<JobLog>), Fault>>;

    fn handle(&mut self, DetailOf(id): DetailOf, _: &mut Self::Context) -> Self::Result {
        let known = self.known(&id).map(|number| {
            let record = self.jobs.get(number).expect("known");
            let info = self.job_info(number, &self.positions()).expect("known");
            let detail = record.detail(info, self.fellows.clock.time());
            let params = record.facts.params_on_disk.then(|| self.params_on_disk(number));
            (detail, record.log.clone(), params)
        });
        Box::pin(async move {
            let (mut detail, log, params) = known?;
            if let Some(params) = params {
                detail.params = params.await.unwrap_or_default();
            }
            Ok((detail, log))
        })
    }
}

impl Handler<StoryOf> for SchedulerActor {
    type Result = Result<Story, Fault>;

    fn handle(&mut self, StoryOf(id): StoryOf, _: &mut Self::Context) -> Self::Result {
        let number = self.known(&id)?;
        let record = self.jobs.get(number).expect("known");
        let text = self.models.text(&record.facts.model).cloned();
        Ok(Story { text, prompt_tokens: record.facts.prompt_tokens, cache: record.cache().cloned() })
    }
}

impl Handler<JobsOf> for SchedulerActor {
    type Result = Vec<JobInfo>;

    fn handle(&mut self, message: JobsOf, _: &mut Self::Context) -> Self::Result {
        let JobsOf { session, limit } = message;
        let positions = self.positions();
        self.jobs
            .latest_first()
            .filter(|(_, record)| session.is_none() || record.facts.session_ref() == session)
            .take(limit)
            .filter_map(|(number, _)| self.job_info(number, &positions))
            .collect()
    }
}

impl Handler<ModelStates> for SchedulerActor {
    type Result = MessageResult<ModelStates>;

    fn handle(&mut self, ModelStates(names): ModelStates, _: &mut Self::Context) -> Self::Result {
        let view = |name: String| {
            let (state, loaded) = self.models.state(&name)?;
            let facts = loaded.map(|loaded| loaded.text.facts().clone());
            Some((name, ModelView { state, facts, weight_bytes: loaded.map(|loaded| loaded.weight_bytes) }))
        };
        MessageResult(names.into_iter().filter_map(view).collect())
    }
}

impl Handler<Drain> for SchedulerActor {
    type Result = MessageResult<Drain>;

    fn handle(&mut self, Drain { deadline }: Drain, ctx: &mut Self::Context) -> Self::Result {
        let (done, heard) = oneshot::channel();
        self.drained.push(done);
        self.input(Input::Drain { deadline }, ctx);
        MessageResult(heard)
    }
}

impl Handler<Snapshot> for SchedulerActor {
    type Result = MessageResult<Snapshot>;

    fn handle(&mut self, _: Snapshot, _: &mut Self::Context) -> Self::Result {
        MessageResult(SchedulerSnapshot {
            load: self.core.load(),
            draining: self.core.is_draining() || self.core.is_paused(),
            jobs_fault: self.durable.fault(),
        })
    }
}

/// A refusal as a client is told.
pub(super) fn fault_of(refusal: Refusal) -> Fault {
    let code = match &refusal {
        Refusal::QueueFull { retry_after, .. } => {
            ErrorCode::Refused { retry_after_ms: retry_after.as_millis() as u64 }
        }
        Refusal::NoModel { .. } => ErrorCode::Refused { retry_after_ms: 1000 },
        Refusal::Stopping | Refusal::Paused => ErrorCode::Draining,
        Refusal::NeverFits { .. } | Refusal::TooLarge { .. } => ErrorCode::Invalid,
    };
    Fault { code, message: refusal.to_string() }
}
