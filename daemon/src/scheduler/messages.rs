//! What the scheduler actor is asked, and its answers. Every handler answers at once from memory.

use super::core::{CacheReport, ConnectionId, Input, Load, NewJob, Refusal};
use super::jobs::NewRecord;
use super::log::JobLog;
use super::models::{LoadWatch, Wish};
use super::plan::{JobNumber, ModelName, SequenceId};
use super::{SchedulerActor, core::Uptime};
use crate::config::ModelSettings;
use crate::device::port::{Generate, TextFacts, TextModel};
use actix::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::oneshot;
use zllm_wire::{
    Class, ErrorCode, Fault, GenerationParams, JobDetail, JobId, JobInfo, ModelState, SessionId, SessionRef,
};

/// A model is wanted: load it unless it is there.
#[derive(Message)]
#[rtype(result = "Result<LoadWatch, Fault>")]
pub(crate) struct WantModel {
    pub(crate) model: ModelName,
    pub(crate) settings: ModelSettings,
}

/// A model is to go when its jobs have ended. `None` when it is not loaded.
#[derive(Message)]
#[rtype(result = "Result<Option<oneshot::Receiver<()>>, Fault>")]
pub(crate) struct Unload(pub(crate) ModelName);

/// A new job, with everything that needs the model's text side done.
#[derive(Message)]
#[rtype(result = "Result<(JobId, Arc<JobLog>), Fault>")]
pub(crate) struct SubmitJob {
    pub(crate) model: ModelName,
    /// Whose KV it may share; empty for the common one.
    pub(crate) tenant: String,
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: usize,
    /// One for each answer, in order.
    pub(crate) samplers: Vec<Box<dyn Generate>>,
    pub(crate) params: GenerationParams,
    pub(crate) session: Option<SessionId>,
    pub(crate) label: Option<String>,
    pub(crate) class: Class,
    pub(crate) bytes: usize,
    pub(crate) arrived_at: Uptime,
    /// The connection whose end cancels it.
    pub(crate) owner: Option<ConnectionId>,
}

/// Ends a job, and says whether it had not ended; `None` when there is no such job.
#[derive(Message)]
#[rtype(result = "Option<bool>")]
pub(crate) struct CancelJob(pub(crate) JobId);

/// A connection has ended: its jobs go.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct ConnectionGone(pub(crate) ConnectionId);

/// A job's log.
#[derive(Message)]
#[rtype(result = "Option<Arc<JobLog>>")]
pub(crate) struct ReadLog(pub(crate) JobId);

/// One job in full.
#[derive(Message)]
#[rtype(result = "Option<JobDetail>")]
pub(crate) struct DetailOf(pub(crate) JobId);

/// Why a job's prompt was found in the KV store, or was not. `None` when there is no such job.
#[derive(Message)]
#[rtype(result = "Option<Story>")]
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

/// Take nothing new, and end everything by `deadline`. The receiver hears when no job is left.
#[derive(Message)]
#[rtype(result = "oneshot::Receiver<()>")]
pub(crate) struct Drain {
    pub(crate) deadline: Uptime,
}

/// How busy the scheduler is.
#[derive(Message)]
#[rtype(result = "SchedulerSnapshot")]
pub(crate) struct Snapshot;

/// The answer to [`Snapshot`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct SchedulerSnapshot {
    pub(crate) load: Load,
    pub(crate) draining: bool,
}

impl SchedulerActor {
    /// Job ids sort by time: the daemon's start in seconds, then a count.
    fn job_id(&self, number: JobNumber) -> JobId {
        let started = self.fellows.clock.started_unix_seconds();
        JobId::new(format!("j-{started:08x}-{:06x}", number.0)).expect("an id of hexadecimal digits")
    }

    /// The number of an id that this run of the daemon made.
    fn job_number(&self, id: &JobId) -> Option<JobNumber> {
        let number = JobNumber(u64::from_str_radix(id.as_str().rsplit('-').next()?, 16).ok()?);
        (self.job_id(number) == *id).then_some(number)
    }

    fn job_info(&self, number: JobNumber) -> Option<JobInfo> {
        let record = self.jobs.get(number)?;
        let loaded = self.models.state(&record.model).and_then(|(_, loaded)| loaded);
        let block_bytes = loaded.map_or(0, |loaded| loaded.kv_block_bytes);
        let held = self.core.held_blocks(number) as u64 * block_bytes;
        Some(record.info(self.core.queue_position(number), held, self.fellows.clock.now()))
    }
}

impl Handler<WantModel> for SchedulerActor {
    type Result = Result<LoadWatch, Fault>;

    fn handle(&mut self, WantModel { model, settings }: WantModel, ctx: &mut Self::Context) -> Self::Result {
        if self.core.is_draining() {
            return Err(fault_of(Refusal::Draining));
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

impl Handler<Unload> for SchedulerActor {
    type Result = Result<Option<oneshot::Receiver<()>>, Fault>;

    fn handle(&mut self, Unload(model): Unload, ctx: &mut Self::Context) -> Self::Result {
        let heard = self.models.close(&model)?;
        self.settle(ctx);
        Ok(heard)
    }
}

impl Handler<SubmitJob> for SchedulerActor {
    type Result = Result<(JobId, Arc<JobLog>), Fault>;

    fn handle(&mut self, job: SubmitJob, ctx: &mut Self::Context) -> Self::Result {
        if !self.core.is_draining() && !self.models.is_open(&job.model) {
            self.fellows.metrics.request(crate::metrics::Outcome::Refused);
            return Err(fault_of(Refusal::NoModel { model: job.model }));
        }
        let number = JobNumber(self.next_job);
        self.next_job += 1;
        let id = self.job_id(number);
        let record = NewRecord {
            id: id.clone(),
            label: job.label,
            class: job.class,
            model: job.model.to_string(),
            tenant: job.tenant.clone(),
            session: job.session,
            detached: job.owner.is_none(),
            params: job.params,
            prompt_tokens: job.prompt.len() as u64,
        };
        self.jobs.insert(number, record, job.arrived_at);
        let log = self.jobs.get(number).expect("inserted above").log.clone();
        let choices = job.samplers.len() as u32;
        let sequences = (0..choices).map(|choice| SequenceId { job: number, choice });
        self.samplers.extend(sequences.zip(job.samplers));
        let new = NewJob {
            id: number,
            model: job.model,
            tenant: job.tenant,
            prompt: job.prompt,
            max_tokens: job.max_tokens,
            choices,
            bytes: job.bytes,
            arrived_at: job.arrived_at,
            owner: job.owner,
        };
        self.input(Input::Submit(new), ctx);
        match self.refusal.take() {
            Some(refusal) => Err(fault_of(refusal)),
            None => Ok((id, log)),
        }
    }
}

impl Handler<CancelJob> for SchedulerActor {
    type Result = Option<bool>;

    fn handle(&mut self, CancelJob(id): CancelJob, ctx: &mut Self::Context) -> Option<bool> {
        let number = self.job_number(&id)?;
        let live = !self.jobs.get(number)?.has_ended();
        self.input(Input::Cancel(number), ctx);
        Some(live)
    }
}

impl Handler<ConnectionGone> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, ConnectionGone(owner): ConnectionGone, ctx: &mut Self::Context) {
        self.input(Input::OwnerGone(owner), ctx);
    }
}

impl Handler<ReadLog> for SchedulerActor {
    type Result = Option<Arc<JobLog>>;

    fn handle(&mut self, ReadLog(id): ReadLog, _: &mut Self::Context) -> Self::Result {
        Some(self.jobs.get(self.job_number(&id)?)?.log.clone())
    }
}

impl Handler<DetailOf> for SchedulerActor {
    type Result = Option<JobDetail>;

    fn handle(&mut self, DetailOf(id): DetailOf, _: &mut Self::Context) -> Self::Result {
        let number = self.job_number(&id)?;
        Some(self.jobs.get(number)?.detail(self.job_info(number)?))
    }
}

impl Handler<StoryOf> for SchedulerActor {
    type Result = Option<Story>;

    fn handle(&mut self, StoryOf(id): StoryOf, _: &mut Self::Context) -> Self::Result {
        let record = self.jobs.get(self.job_number(&id)?)?;
        let loaded = self.models.state(&record.model).and_then(|(_, loaded)| loaded);
        let text = loaded.map(|loaded| loaded.text.clone());
        Some(Story { text, prompt_tokens: record.prompt_tokens, cache: record.cache().cloned() })
    }
}

impl Handler<JobsOf> for SchedulerActor {
    type Result = Vec<JobInfo>;

    fn handle(&mut self, message: JobsOf, _: &mut Self::Context) -> Self::Result {
        let JobsOf { session, limit } = message;
        self.jobs
            .latest_first()
            .filter(|(_, record)| session.is_none() || record.session_ref() == session)
            .take(limit)
            .filter_map(|(number, _)| self.job_info(number))
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
        MessageResult(SchedulerSnapshot { load: self.core.load(), draining: self.core.is_draining() })
    }
}

/// A refusal as a client is told.
fn fault_of(refusal: Refusal) -> Fault {
    let code = match &refusal {
        Refusal::QueueFull { retry_after, .. } => {
            ErrorCode::Refused { retry_after_ms: retry_after.as_millis() as u64 }
        }
        Refusal::NoModel { .. } => ErrorCode::Refused { retry_after_ms: 1000 },
        Refusal::Draining => ErrorCode::Draining,
        Refusal::NeverFits { .. } => ErrorCode::Invalid,
    };
    Fault { code, message: refusal.to_string() }
}
