//! `/slots`: the places for running jobs, and the jobs in them.

use crate::http::Http;
use crate::http::caller::Caller;
use crate::http::problem::Problem;
use actix_web::{HttpResponse, web};
use schemars::JsonSchema;
use serde::Serialize;
use zllm_wire::{JobId, Phase, RunningJob};

/// A place for a running job.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Slot {
    /// Places are numbered from 0; a job may have another number each time it is asked for.
    id: usize,
    /// Whether a job is in it.
    is_processing: bool,
    #[serde(flatten)]
    job: Option<Processing>,
}

/// The job in a slot.
#[derive(Debug, Serialize, JsonSchema)]
struct Processing {
    id_task: JobId,
    model: String,
    /// Tokens that it has room for.
    n_ctx: u64,
    /// Tokens of the prompt that are computed; null when all are.
    n_prompt_tokens_processed: Option<u64>,
    /// Tokens of the prompt; null when it is computed.
    n_prompt_tokens: Option<u64>,
    next_token: NextToken,
}

#[derive(Debug, Serialize, JsonSchema)]
struct NextToken {
    /// Whether it has begun to answer.
    has_next_token: bool,
    /// Tokens that it has.
    n_decoded: u64,
    /// Tokens that it may yet have.
    n_remain: u64,
}

impl Processing {
    fn of(job: RunningJob) -> Self {
        let (done, total) = match job.phase {
            Phase::Prefill { done, total } => (Some(done), Some(total)),
            Phase::Decode => (None, None),
        };
        Self {
            id_task: job.job,
            model: job.model,
            n_ctx: job.ticket_tokens,
            n_prompt_tokens_processed: done,
            n_prompt_tokens: total,
            next_token: NextToken {
                has_next_token: job.phase == Phase::Decode,
                n_decoded: job.generated_tokens,
                n_remain: job.max_tokens.saturating_sub(job.generated_tokens),
            },
        }
    }
}

pub(super) async fn list(http: web::Data<Http>, caller: Caller) -> Result<HttpResponse, Problem> {
    let queue = http.services.queue().await?;
    let places = (queue.running_limit as usize).max(queue.running.len());
    // Others' jobs are no business of one who has a tenant: their places look free.
    let mine = |job: &RunningJob| caller.tenant.is_none() || job.tenant == caller.tenant;
    let mut jobs = queue.running.into_iter().filter(mine).map(Processing::of);
    let slots: Vec<Slot> = (0..places)
        .map(|id| {
            let job = jobs.next();
            Slot { id, is_processing: job.is_some(), job }
        })
        .collect();
    Ok(HttpResponse::Ok().json(slots))
}
