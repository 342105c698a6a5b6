//! The operations of the socket protocol, each in terms of messages to the actors.
//!
//! Invariant: `status`, `list`, `queue` and `models` are answered from the actors' memory; none of them waits for a device's
//! thread or a disk. `show` of a durable job reads its text from the disk.

use super::connection::{Gone, Replies};
use super::kv::kv_status;
use super::submit;
use crate::catalog::{self, Catalog};
use crate::clock::Clock;
use crate::config::ModelSettings;
use crate::device::{DeviceSnapshot, Devices};
use crate::kv_store::{self, KvStoreActor};
use crate::limits::{MAX_ARRIVING, MAX_ENCODING};
use crate::metrics::Metrics;
use crate::scheduler::core::{Amount, ConnectionId};
use crate::scheduler::models::{LoadState, LoadWatch};
use crate::scheduler::{
    self, CancelJobs, DetailOf, HoldJob, JobsOf, ModelStates, ReadLog, SchedulerActor, SetClass, Unload,
    WantModel,
};
use crate::stop::{StopHandle, StopReason};
use actix::Addr;
use actix::dev::ToEnvelope;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use zllm_wire::limits::MAX_LIST_ROWS;
use zllm_wire::{
    Answer, BlockUsage, DeviceInfo, ErrorCode, Fault, ModelInfo, ModelState, Op, ShowTarget, Status, Tier,
    TokenIds,
};

/// Everything that requests need.
pub(crate) struct Services {
    pub(crate) scheduler: Addr<SchedulerActor>,
    pub(crate) kv: Addr<KvStoreActor>,
    pub(crate) devices: Devices,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
    pub(crate) catalog: Catalog,
    pub(crate) stop: StopHandle,
    pub(crate) default_max_tokens: usize,
    pub(crate) queue_capacity: usize,
    /// What may wait of one tenant.
    pub(crate) tenant_limit: Amount,
    /// Requests before the queue: waiting for a load or being tokenized.
    pub(crate) arriving: Arc<Semaphore>,
    /// Requests that are being tokenized.
    pub(crate) encoding: Arc<Semaphore>,
    /// How long requests took lately to come to the queue.
    pub(crate) arrival_time: Cell<Duration>,
}

impl Services {
    /// A request took so long to come to the queue.
    pub(super) fn note_arrival(&self, took: Duration) {
        self.arrival_time.set((self.arrival_time.get() * 7 + took) / 8);
    }

    /// The bounds of what is before the queue.
    pub(crate) fn arrival_bounds() -> (Arc<Semaphore>, Arc<Semaphore>) {
        (Arc::new(Semaphore::new(MAX_ARRIVING)), Arc::new(Semaphore::new(MAX_ENCODING)))
    }
}

/// Why a request has no good last answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    Fault(Fault),
    Gone,
}

impl From<Fault> for Unanswered {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Gone> for Unanswered {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

pub(super) fn fault(code: ErrorCode, message: impl Into<String>) -> Fault {
    Fault { code, message: message.into() }
}

pub(super) fn not_found(what: &str, name: impl std::fmt::Display) -> Fault {
    fault(ErrorCode::NotFound, format!("there is no {what} {name}"))
}

/// The operation's name, for the log.
pub(super) fn name(op: &Op) -> &'static str {
    match op {
        Op::Models => "models",
        Op::Load { .. } => "load",
        Op::Unload { .. } => "unload",
        Op::Submit(_) => "submit",
        Op::Attach { .. } => "attach",
        Op::Cancel { .. } => "cancel",
        Op::List => "list",
        Op::Show(_) => "show",
        Op::Evict { .. } => "evict",
        Op::Status => "status",
        Op::Tokenize { .. } => "tokenize",
        Op::Stop { .. } => "stop",
        Op::Inspect(_) => "inspect",
        Op::Residency => "residency",
        Op::Fork { .. } => "fork",
        Op::Pin { .. } => "pin",
        Op::Unpin { .. } => "unpin",
        Op::Ttl { .. } => "ttl",
        Op::Save { .. } => "save",
        Op::Check => "check",
        Op::Why { .. } => "why",
        Op::Queue => "queue",
        Op::Hold { .. } => "hold",
        Op::Release { .. } => "release",
        Op::SetClass { .. } => "set class",
        Op::Drain => "drain",
        Op::Resume => "resume",
        Op::BatchJobs { .. } => "batch jobs",
    }
}

/// Carries one operation out: sends the answers that are not final, returns the one that is.
pub(super) async fn answer(
    op: Op,
    replies: &Replies,
    connection: ConnectionId,
    services: &Services,
) -> Result<Answer, Unanswered> {
    match op {
        Op::Models => Ok(Answer::Models(services.models().await?)),
        Op::Load { model } => services.load(&model, replies).await,
        Op::Unload { model } => services.unload(&model).await,
        Op::Submit(request) => submit::submit(*request, replies, connection, services).await,
        Op::Attach { job, from } => {
            let log = services.ask_scheduler(ReadLog(job)).await??;
            submit::stream(log.reader(from), replies).await
        }
        Op::Cancel { target } => {
            let jobs = services.ask_scheduler(CancelJobs(target)).await??;
            Ok(Answer::Cancelled { jobs })
        }
        Op::List => services.list().await,
        Op::Show(ShowTarget::Job(job)) => {
            let (detail, log) = services.ask_scheduler(DetailOf(job)).await??;
            Ok(Answer::Job(Box::new(super::queue::with_texts(detail, &log).await?)))
        }
        Op::Show(ShowTarget::Session(session)) => services.show_session(session).await,
        Op::Evict { target, tier } => services.evict(target, tier).await,
        Op::Residency => services.residency().await,
        Op::Fork { from, to, tokens } => services.fork(from, to, tokens).await,
        Op::Pin { session } => services.pin(&session, true).await,
        Op::Unpin { session } => services.pin(&session, false).await,
        Op::Ttl { session, ttl_ms } => services.set_ttl(&session, ttl_ms).await,
        Op::Save { session } => services.save(session.as_ref()).await,
        Op::Check => services.check_disk().await,
        Op::Why { job } => services.why(job).await,
        Op::Status => Ok(Answer::Status(Box::new(services.status().await?))),
        Op::Tokenize { model, text, parse_special, add_bos } => {
            let tokens = submit::tokenize(&model, text, parse_special, add_bos, services).await?;
            Ok(Answer::Tokens(TokenIds(tokens)))
        }
        Op::Inspect(target) => Ok(Answer::Inspection { json: submit::inspect(target, services).await? }),
        Op::Queue => services.queue().await,
        Op::Hold { job } => services.change_job(HoldJob { job, held: true }).await,
        Op::Release { job } => services.change_job(HoldJob { job, held: false }).await,
        Op::SetClass { job, class } => services.change_job(SetClass { job, class }).await,
        Op::Drain => services.pause(true).await,
        Op::Resume => services.pause(false).await,
        Op::BatchJobs { tenant, batch, after } => services.batch_jobs(tenant, batch, after).await,
        Op::Stop { drain } => {
            services.stop.stop(if drain { StopReason::Drain } else { StopReason::Now });
            Ok(Answer::Done)
        }
    }
}

impl Services {
    pub(super) async fn ask_scheduler<M>(&self, message: M) -> Result<M::Result, Fault>
    where
        M: actix::Message + Send + 'static,
        M::Result: Send,
        SchedulerActor: actix::Handler<M>,
        actix::Context<SchedulerActor>: ToEnvelope<SchedulerActor, M>,
    {
        self.scheduler.send(message).await.map_err(gone)
    }

    /// Finds a model.
    pub(super) fn settings(&self, name: &str) -> Result<ModelSettings, Fault> {
        self.catalog.find(name).ok_or_else(|| {
            let folder =
                "a file NAME.gguf in the models folder or a [models.NAME] of the configuration makes one";
            fault(ErrorCode::NotFound, format!("there is no model {name:?}; {folder}"))
        })
    }

    /// Finds a model and has it loaded.
    pub(super) async fn want(&self, name: &str) -> Result<LoadWatch, Fault> {
        let settings = self.settings(name)?;
        self.ask_scheduler(WantModel { model: name.into(), settings }).await?
    }

    async fn load(&self, name: &str, replies: &Replies) -> Result<Answer, Unanswered> {
        let mut watch = self.want(name).await?;
        loop {
            let state = watch.borrow_and_update().clone();
            match state {
                LoadState::Loading(at) => {
                    let (stage, done_bytes, total_bytes) = (at.stage, at.done_bytes, at.total_bytes);
                    replies.send(Answer::Progress { stage, done_bytes, total_bytes }).await?;
                }
                LoadState::Failed(fault) => return Err(fault.into()),
                LoadState::Ready(_) => break,
            }
            watch.changed().await.map_err(|_| fault(ErrorCode::Failed, "the load was given up"))?;
        }
        let models = self.models().await?;
        let info =
            models.into_iter().find(|info| info.name == name).ok_or_else(|| not_found("model", name))?;
        Ok(Answer::Model(info))
    }

    async fn unload(&self, name: &str) -> Result<Answer, Unanswered> {
        if self.catalog.find(name).is_none() {
            return Err(not_found("model", format!("{name:?}")).into());
        }
        if let Some(gone) = self.ask_scheduler(Unload(name.into())).await?? {
            gone.await.map_err(|_| fault(ErrorCode::Failed, "the unload was given up"))?;
        }
        Ok(Answer::Done)
    }

    pub(super) async fn models(&self) -> Result<Vec<ModelInfo>, Fault> {
        let catalog = self.catalog.list();
        let mut views = self.ask_scheduler(ModelStates(catalog.keys().cloned().collect())).await?;
        let info = |(name, settings): (String, ModelSettings)| {
            let view = views.remove(&name);
            let facts = view.as_ref().and_then(|view| view.facts.as_ref());
            ModelInfo {
                state: view.as_ref().map_or(ModelState::Available, |view| view.state.clone()),
                architecture: facts.map(|facts| facts.architecture.clone()).unwrap_or_default(),
                path: settings.path.display().to_string(),
                device: facts.and_then(|_| self.devices.names(&name)),
                weight_bytes: view
                    .as_ref()
                    .and_then(|view| view.weight_bytes)
                    .unwrap_or_else(|| catalog::file_bytes(&settings.path)),
                context_tokens: facts.map(|facts| facts.context_tokens as u32),
                has_template: facts.map(|facts| facts.has_template),
                name,
            }
        };
        Ok(catalog.into_iter().map(info).collect())
    }

    async fn list(&self) -> Result<Answer, Unanswered> {
        let jobs = self.ask_scheduler(JobsOf { session: None, limit: MAX_LIST_ROWS }).await?;
        let sessions = self.session_rows(&jobs).await?;
        Ok(Answer::Listing { sessions, jobs })
    }

    async fn status(&self) -> Result<Status, Fault> {
        let scheduler::SchedulerSnapshot { load, draining, jobs_fault } =
            self.ask_scheduler(scheduler::Snapshot).await?;
        let kv = self.kv.send(kv_store::Snapshot).await.map_err(gone)?;
        let devices = self.devices.snapshots().await.map_err(gone)?;
        let totals = self.metrics.totals();
        let device = |DeviceSnapshot { description, loaded, busy }| DeviceInfo {
            used_bytes: loaded.values().map(|model| model.weight_bytes + model.kv_bytes).sum(),
            name: description.name,
            description: description.description,
            total_bytes: description.total_bytes,
            busy,
        };
        let blocks = kv.models.iter().flat_map(|(model, figures)| {
            let tiers = [(Tier::Device, figures.device), (Tier::Ram, figures.ram)];
            let used = tiers.into_iter().filter(|(tier, blocks)| *tier == Tier::Device || blocks.total() > 0);
            used.map(|(tier, blocks)| BlockUsage {
                model: model.to_string(),
                tier,
                block_bytes: figures.block_bytes,
                total: blocks.total().into(),
                used: blocks.used.into(),
                cached: blocks.cached.into(),
            })
        });
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ms: self.clock.now().as_millis() as u64,
            draining,
            models: self.models().await?,
            devices: devices.into_iter().map(device).collect(),
            blocks: blocks.collect(),
            kv: kv_status(&kv),
            queued_jobs: (load.queued_jobs + load.parked_jobs) as u32,
            queue_capacity: self.queue_capacity as u32,
            held_jobs: load.held_jobs as u32,
            parked_jobs: load.parked_jobs as u32,
            running_jobs: load.running_jobs as u32,
            jobs_durable: jobs_fault.is_none(),
            jobs_fault,
            sessions: kv.sessions as u32,
            connections: self.metrics.connections().get() as u32,
            jobs_done: totals.done,
            jobs_failed: totals.failed,
            jobs_cancelled: totals.cancelled,
            jobs_refused: totals.refused,
            prompt_tokens: totals.prompt_tokens,
            cached_tokens: totals.cached_tokens,
            generated_tokens: totals.generated_tokens,
            speed: self.metrics.speed(self.clock.now()),
        })
    }
}

/// The fault of an actor that does not answer; the process is about to end.
pub(super) fn gone(error: actix::MailboxError) -> Fault {
    fault(ErrorCode::Failed, format!("the daemon is failing: {error}"))
}
