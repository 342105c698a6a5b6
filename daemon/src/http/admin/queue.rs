//! The queue, and what is cancelled together.

use super::{Done, Whose};
use crate::http::Http;
use crate::http::problem::Problem;
use crate::http::router::{Operation, Router};
use crate::scheduler::CancelJobs;
use actix_web::web::{self, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zllm_wire::{BatchId, BatchPage, CancelTarget, JobId, QueueReport, SessionId, Tenant};

pub(super) fn routes(router: &mut Router) {
    let queue = Operation::new("Tell who waits, who runs, and how full the queue is").gives::<QueueReport>();
    router.get("/zllm/v1/queue", web::to(self::queue), queue);
    let drain = Operation::new("Let nothing that waits start").gives::<Done>();
    router.post("/zllm/v1/drain", web::to(self::drain), drain);
    let resume = Operation::new("End a drain").gives::<Done>();
    router.post("/zllm/v1/resume", web::to(self::resume), resume);
    let jobs = Operation::new("List a batch's jobs, those submitted first first").query::<Page>();
    router.get("/zllm/v1/batches/{batch}/jobs", web::to(batch_jobs), jobs.gives::<BatchPage>());
    let cancel = |summary| Operation::new(summary).gives::<Cancelled>();
    let path = "/zllm/v1/jobs/{job}/cancel";
    router.post(path, web::to(cancel_job), cancel("End a job"));
    let path = "/zllm/v1/batches/{batch}/cancel";
    router.post(path, web::to(cancel_batch), cancel("End a batch's jobs").query::<Whose>());
    let path = "/zllm/v1/sessions/{session}/cancel";
    router.post(path, web::to(cancel_session), cancel("End a session's jobs").query::<Whose>());
}

/// What was cancelled.
#[derive(Debug, Serialize, JsonSchema)]
struct Cancelled {
    /// Jobs that were ended by it; those that had ended before do not count.
    jobs: u32,
}

/// Which of a batch's jobs.
#[derive(Debug, Deserialize, JsonSchema)]
struct Page {
    tenant: Option<Tenant>,
    /// Those that were submitted after this one.
    after: Option<JobId>,
}

async fn queue(http: web::Data<Http>) -> Result<Json<QueueReport>, Problem> {
    Ok(Json(http.services.queue().await?))
}

async fn drain(http: web::Data<Http>) -> Result<Json<Done>, Problem> {
    http.services.pause(true).await?;
    Ok(Json(Done {}))
}

async fn resume(http: web::Data<Http>) -> Result<Json<Done>, Problem> {
    http.services.pause(false).await?;
    Ok(Json(Done {}))
}

async fn batch_jobs(
    http: web::Data<Http>,
    batch: web::Path<BatchId>,
    page: web::Query<Page>,
) -> Result<Json<BatchPage>, Problem> {
    let Page { tenant, after } = page.into_inner();
    Ok(Json(http.services.batch_jobs(tenant, batch.into_inner(), after).await?))
}

async fn cancel_job(http: web::Data<Http>, job: web::Path<JobId>) -> Result<Json<Cancelled>, Problem> {
    cancel(&http, CancelTarget::Job(job.into_inner())).await
}

async fn cancel_batch(
    http: web::Data<Http>,
    batch: web::Path<BatchId>,
    whose: web::Query<Whose>,
) -> Result<Json<Cancelled>, Problem> {
    let target = CancelTarget::Batch { tenant: whose.into_inner().tenant, batch: batch.into_inner() };
    cancel(&http, target).await
}

async fn cancel_session(
    http: web::Data<Http>,
    session: web::Path<SessionId>,
    whose: web::Query<Whose>,
) -> Result<Json<Cancelled>, Problem> {
    cancel(&http, CancelTarget::Session(whose.into_inner().session(session.into_inner()))).await
}

async fn cancel(http: &Http, target: CancelTarget) -> Result<Json<Cancelled>, Problem> {
    Ok(Json(Cancelled { jobs: http.services.ask_scheduler(CancelJobs(target)).await?? }))
}
