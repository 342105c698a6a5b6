//! What clients may ask for, whatever protocol they speak: each operation in terms of messages to the actors.
//!
//! Invariant: `status`, `list`, `queue` and `models` are answered from the actors' memory; none of them waits for a device's
//! thread or a disk. `show` of a durable job reads its text from the disk.

pub(crate) mod embed;
mod keys;
mod kv;
mod owner;
mod places;
mod queue;
pub(crate) mod submit;

use crate::catalog::{self, Catalog};
use crate::clock::Clock;
use crate::config::ModelSettings;
use crate::device::{DeviceSnapshot, Devices};
use crate::keys::Keys;
use crate::kv_store::{self, KvStoreActor};
use crate::limits::{MAX_ARRIVING, MAX_ARRIVING_BATCH, MAX_ENCODING};
use crate::metrics::Metrics;
use crate::object_disk::ObjectDisk;
use crate::scheduler::core::{Amount, ConnectionId};
use crate::scheduler::models::LoadWatch;
use crate::scheduler::{self, JobsOf, ModelStates, SchedulerActor, Unload, WantModel};
use crate::stop::StopHandle;
use actix::Addr;
use actix::dev::ToEnvelope;
use kv::kv_status;
pub(crate) use kv::{Evicted, Saved};
pub(crate) use owner::Owner;
pub(crate) use places::Places;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use zllm_wire::limits::MAX_LIST_ROWS;
use zllm_wire::{
    BlockUsage, DeviceInfo, ErrorCode, Fault, JobInfo, ModelInfo, ModelState, SessionInfo, Status, Tier,
};

/// Everything that requests need.
pub(crate) struct Services {
    pub(crate) scheduler: Addr<SchedulerActor>,
    pub(crate) kv: Addr<KvStoreActor>,
    pub(crate) devices: Devices,
    /// What is kept for clients.
    pub(crate) objects: ObjectDisk,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
    pub(crate) catalog: Catalog,
    pub(crate) stop: StopHandle,
    pub(crate) keys: Arc<Keys>,
    pub(crate) default_max_tokens: usize,
    pub(crate) queue_capacity: usize,
    /// What may wait of one tenant.
    pub(crate) tenant_limit: Amount,
    /// Requests before the queue: waiting for a load or being tokenized.
    pub(crate) arriving: Places,
    /// Requests that are being tokenized.
    pub(crate) encoding: Arc<Semaphore>,
    /// Lists of texts that are being embedded, of which a part is in the queue.
    pub(crate) embedded_lists: Places,
    /// How long requests took lately to come to the queue, in microseconds.
    pub(crate) arrival_time_us: AtomicU64,
    /// The id of the next connection, over whatever protocol.
    pub(crate) next_connection: AtomicU64,
}

impl Services {
    /// A request took so long to come to the queue.
    pub(crate) fn note_arrival(&self, took: Duration) {
        // Two at once may overlook one another; an estimate it is anyway.
        let before = self.arrival_time_us.load(Ordering::Relaxed);
        self.arrival_time_us.store((before * 7 + took.as_micros() as u64) / 8, Ordering::Relaxed);
    }

    fn arrival_time(&self) -> Duration {
        Duration::from_micros(self.arrival_time_us.load(Ordering::Relaxed))
    }

    /// An id for a new connection.
    pub(crate) fn connection_id(&self) -> ConnectionId {
        ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed))
    }

    /// The bounds of what is before the queue.
    pub(crate) fn arrival_bounds() -> (Places, Arc<Semaphore>) {
        (Places::new(MAX_ARRIVING, MAX_ARRIVING_BATCH), Arc::new(Semaphore::new(MAX_ENCODING)))
    }
}

pub(crate) fn fault(code: ErrorCode, message: impl Into<String>) -> Fault {
    Fault { code, message: message.into() }
}

pub(crate) fn not_found(what: &str, name: impl std::fmt::Display) -> Fault {
    fault(ErrorCode::NotFound, format!("there is no {what} {name}"))
}

impl Services {
    pub(crate) async fn ask_scheduler<M>(&self, message: M) -> Result<M::Result, Fault>
    where
        M: actix::Message + Send + 'static,
        M::Result: Send,
        SchedulerActor: actix::Handler<M>,
        actix::Context<SchedulerActor>: ToEnvelope<SchedulerActor, M>,
    {
        self.scheduler.send(message).await.map_err(gone)
    }

    /// Finds a model.
    pub(crate) fn settings(&self, name: &str) -> Result<ModelSettings, Fault> {
        self.catalog.find(name).ok_or_else(|| {
            let folder =
                "a file NAME.gguf in the models folder or a [models.NAME] of the configuration makes one";
            fault(ErrorCode::NotFound, format!("there is no model {name:?}; {folder}"))
        })
    }

    /// Finds a model and has it loaded.
    pub(crate) async fn want(&self, name: &str) -> Result<LoadWatch, Fault> {
        let settings = self.settings(name)?;
        self.ask_scheduler(WantModel { model: name.into(), settings }).await?
    }

    pub(crate) async fn unload(&self, name: &str) -> Result<(), Fault> {
        if self.catalog.find(name).is_none() {
            return Err(not_found("model", format!("{name:?}")));
        }
        if let Some(gone) = self.ask_scheduler(Unload(name.into())).await?? {
            gone.await.map_err(|_| fault(ErrorCode::Failed, "the unload was given up"))?;
        }
        Ok(())
    }

    pub(crate) async fn models(&self) -> Result<Vec<ModelInfo>, Fault> {
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

    /// Sessions and jobs, latest first.
    pub(crate) async fn list(&self) -> Result<(Vec<SessionInfo>, Vec<JobInfo>), Fault> {
        let jobs = self.ask_scheduler(JobsOf { session: None, limit: MAX_LIST_ROWS }).await?;
        let sessions = self.session_rows(&jobs).await?;
        Ok((sessions, jobs))
    }

    pub(crate) async fn status(&self) -> Result<Status, Fault> {
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
pub(crate) fn gone(error: actix::MailboxError) -> Fault {
    fault(ErrorCode::Failed, format!("the daemon is failing: {error}"))
}
