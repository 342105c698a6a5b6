//! The queue's operations: who waits and who runs, in the protocol's words, and what is done to them.

use super::Services;
use crate::scheduler::core::{Amount, QueueView, RunningView, WaitingView, Why};
use crate::scheduler::jobs::JobFacts;
use crate::scheduler::log::JobLog;
use crate::scheduler::{BatchJobsOf, DetailOf, Pause, QueueAnswer, QueueOf, SchedulerActor};
use actix::dev::ToEnvelope;
use std::collections::BTreeMap;
use std::sync::Arc;
use zllm_wire::limits::MAX_LIST_ROWS;
use zllm_wire::{
    BatchId, BatchPage, Class, ClassLoad, ErrorCode, Fault, JobDetail, JobId, Phase, QueueLoad, QueueReport,
    RunningJob, Tenant, TenantLoad, WaitReason, WaitingJob,
};

impl Services {
    pub(crate) async fn queue(&self) -> Result<QueueReport, Fault> {
        let answer = self.ask_scheduler(QueueOf).await?;
        Ok(report(answer, self.tenant_limit))
    }

    pub(crate) async fn batch_jobs(
        &self,
        tenant: Option<Tenant>,
        batch: BatchId,
        after: Option<JobId>,
    ) -> Result<BatchPage, Fault> {
        self.ask_scheduler(BatchJobsOf { tenant, batch, after }).await?
    }

    /// Has something about one job changed.
    pub(crate) async fn change_job<M>(&self, change: M) -> Result<(), Fault>
    where
        M: actix::Message<Result = Result<(), Fault>> + Send + 'static,
        SchedulerActor: actix::Handler<M>,
        actix::Context<SchedulerActor>: ToEnvelope<SchedulerActor, M>,
    {
        self.ask_scheduler(change).await?
    }

    /// Whether nothing that waits starts.
    pub(crate) async fn pause(&self, paused: bool) -> Result<(), Fault> {
        self.ask_scheduler(Pause(paused)).await
    }

    /// A job in full.
    pub(crate) async fn show_job(&self, job: JobId) -> Result<JobDetail, Fault> {
        let (detail, log) = self.ask_scheduler(DetailOf(job)).await??;
        with_texts(detail, &log).await
    }
}

/// Adds the texts of a job's answers, from its log.
///
/// # Errors
/// Why the log cannot be read.
async fn with_texts(mut detail: JobDetail, log: &Arc<JobLog>) -> Result<JobDetail, Fault> {
    let texts = log.texts(detail.choices.len() as u32).await.map_err(|message| {
        let message = format!("the job's log cannot be read: {message}");
        Fault { code: ErrorCode::Failed, message }
    })?;
    for (choice, text) in detail.choices.iter_mut().zip(texts) {
        choice.text = text;
    }
    Ok(detail)
}

fn report(answer: QueueAnswer, tenant_limit: Amount) -> QueueReport {
    let QueueAnswer { view, facts, block_bytes, models } = answer;
    let QueueView { paused, waiting, running, classes, tenants, running_limit } = view;
    let waiting = (0..)
        .zip(&waiting)
        .filter_map(|(position, job)| Some(waiting_job(position, job, facts.get(&job.job)?, &models)));
    let running = running.iter().filter_map(|job| {
        let facts = facts.get(&job.job)?;
        Some(running_job(job, facts, block_bytes.get(&facts.model).copied().unwrap_or(0)))
    });
    let class = |(class, view): (Class, &crate::scheduler::core::ClassView)| ClassLoad {
        class,
        queued: load(view.queued),
        limit: load(view.limit),
    };
    QueueReport {
        draining: paused,
        waiting: waiting.collect(),
        running: running.take(MAX_LIST_ROWS).collect(),
        classes: [Class::Interactive, Class::Normal, Class::Batch]
            .into_iter()
            .zip(&classes)
            .map(class)
            .collect(),
        tenants: tenants
            .iter()
            .filter(|tenant| tenant.queued.jobs + tenant.running_jobs > 0 || tenant.served_tokens > 0)
            .take(MAX_LIST_ROWS)
            .map(|tenant| TenantLoad {
                tenant: Tenant::new(tenant.name.as_str()).ok(),
                queued: load(tenant.queued),
                limit: load(tenant_limit),
                running_jobs: tenant.running_jobs as u32,
                served_tokens: tenant.served_tokens,
            })
            .collect(),
        running_limit: running_limit as u32,
    }
}

fn load(amount: Amount) -> QueueLoad {
    QueueLoad { jobs: amount.jobs as u64, tokens: amount.tokens as u64, bytes: amount.bytes as u64 }
}

fn waiting_job(
    position: u32,
    job: &WaitingView,
    facts: &JobFacts,
    models: &BTreeMap<String, String>,
) -> WaitingJob {
    WaitingJob {
        job: facts.id.clone(),
        label: facts.label.clone(),
        tenant: facts.tenant(),
        session: facts.session.clone(),
        model: facts.model.clone(),
        class: job.class,
        level: job.level,
        position,
        waited_ms: job.waited.as_millis() as u64,
        prompt_tokens: facts.prompt_tokens,
        max_tokens: job.max_tokens as u64,
        generated_tokens: job.generated as u64,
        why: reason(&job.why, models),
        starts_in_ms: job.starts_in.map(|time| time.as_millis() as u64),
    }
}

fn reason(why: &Why, models: &BTreeMap<String, String>) -> WaitReason {
    match why {
        Why::Turn => WaitReason::Turn,
        Why::Places => WaitReason::Places,
        Why::Memory { blocks, free } => WaitReason::Memory { blocks: *blocks as u64, free: *free as u64 },
        Why::Reading => WaitReason::Reading,
        Why::Model(model) => {
            let state = models.get(&**model).cloned().unwrap_or_else(|| "it is not loaded".to_owned());
            WaitReason::Model { state }
        }
        Why::Held => WaitReason::Held,
        Why::Paused => WaitReason::Draining,
        Why::Storing => WaitReason::Storing,
        Why::Parked => WaitReason::Parked,
    }
}

fn running_job(job: &RunningView, facts: &JobFacts, block_bytes: u64) -> RunningJob {
    let phase = match job.prefill {
        Some((done, total)) => Phase::Prefill { done: done as u64, total: total as u64 },
        None => Phase::Decode,
    };
    RunningJob {
        job: facts.id.clone(),
        label: facts.label.clone(),
        tenant: facts.tenant(),
        model: facts.model.clone(),
        class: job.class,
        phase,
        generated_tokens: job.generated as u64,
        max_tokens: job.max_tokens as u64,
        ticket_tokens: job.ticket_tokens as u64,
        ticket_bytes: job.ticket_blocks as u64 * block_bytes,
        since_ms: job.since.as_millis() as u64,
    }
}
