//! `/v1/batches`: many requests of one file, each a durable job of class batch (but for embeddings, which are soon computed again), answered into another file.
//!
//! A batch is a record in the object store and a task that drives it ([`drive`]). The task may end with the process at any
//! time: the next start takes every batch up again that is not over ([`resume`]). Each line's job has the idempotency key
//! `BATCH:LINE`, so that none is computed twice.

mod drive;
mod lines;
mod record;

use super::files::{self, page_limit};
use crate::http::caller::Caller;
use crate::http::problem::{Kind, Problem};
use crate::http::{Http, body};
use crate::limits::{MAX_BATCH_METADATA, MAX_BATCH_METADATA_BYTES, MAX_BATCH_PAGE_ROWS, MAX_BATCHES_AT_ONCE};
use crate::scheduler::CancelJobs;
use actix_web::{HttpResponse, web};
pub(super) use record::Batch;
use record::{KIND, Running, Status};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};
use tokio::sync::watch;
use zllm_state::ObjectOrder;
use zllm_wire::{BatchId, CancelTarget};

/// Batches whose tasks run, by tenant and id: what tells them to stop.
#[derive(Debug, Default)]
pub(in crate::http) struct Batches(Mutex<HashMap<(String, String), watch::Sender<bool>>>);

impl Batches {
    fn running(&self) -> MutexGuard<'_, HashMap<(String, String), watch::Sender<bool>>> {
        self.0.lock().expect("nobody panics with it")
    }
}

/// A new batch.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "BatchRequest")]
pub(super) struct Request {
    input_file_id: String,
    /// `/v1/chat/completions`, `/v1/completions`, `/v1/embeddings` or `/v1/responses`.
    endpoint: String,
    /// `24h`.
    completion_window: String,
    metadata: Option<BTreeMap<String, String>>,
}

/// Batches, those that were made last first.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BatchList")]
pub(super) struct List {
    /// `list`.
    object: &'static str,
    data: Vec<Batch>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

/// Which of them.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Query {
    /// At most 100; 20 if it is not said.
    limit: Option<usize>,
    /// The last batch of the page before.
    after: Option<String>,
}

pub(super) async fn create(
    http: web::Data<Http>,
    caller: Caller,
    payload: web::Payload,
) -> Result<HttpResponse, Problem> {
    let request: Request = body::one(payload).await?;
    if request.completion_window != "24h" {
        return Err(Problem::of(
            "completion_window",
            "completion_window is not \"24h\", the only one there is",
        ));
    }
    lines::endpoint(&request.endpoint)?;
    let metadata = request.metadata.unwrap_or_default();
    let texts = metadata.iter().map(|(name, value)| name.len() + value.len());
    if metadata.len() > MAX_BATCH_METADATA || texts.sum::<usize>() > MAX_BATCH_METADATA_BYTES {
        return Err(Problem::of(
            "metadata",
            format!("metadata has more than {MAX_BATCH_METADATA} short texts"),
        ));
    }
    files::find(&http, &caller, &request.input_file_id).await.map_err(|problem| Problem {
        param: Some("input_file_id".to_owned()),
        kind: if problem.kind == Kind::NotFound { Kind::Invalid } else { problem.kind },
        ..problem
    })?;
    if http.batches.running().len() >= MAX_BATCHES_AT_ONCE {
        let message = format!("{MAX_BATCHES_AT_ONCE} batches are under way");
        return Err(Problem::new(Kind::Busy { retry_after: *crate::limits::RETRY_AFTER.end() }, message));
    }
    let now = http.unix_s();
    let batch = Batch::new(http.fresh_id("batch_"), request.endpoint, request.input_file_id, metadata, now);
    let running = Running { tenant: caller.tenant_name().to_owned(), cancelled: false };
    http.services.objects.put(vec![batch.object(&caller), running.object(&batch.id, now)]).await?;
    start(&http, caller, batch.id.clone());
    Ok(HttpResponse::Ok().json(batch))
}

/// Starts a batch's task, unless it runs.
fn start(http: &web::Data<Http>, caller: Caller, id: String) {
    let key = (caller.tenant_name().to_owned(), id.clone());
    let (stop, stopped) = watch::channel(false);
    if http.batches.running().insert(key.clone(), stop).is_some() {
        return;
    }
    let http = http.clone();
    actix_web::rt::spawn(async move {
        if let Err(problem) = drive::drive(&http, &caller, &id, stopped).await {
            // What it was at is on disk; the next start goes on.
            tracing::error!(batch = %id, why = %problem, "a batch stands still until the next start");
        }
        http.batches.running().remove(&key);
    });
}

/// Goes on with all batches that are not over.
pub(in crate::http) async fn resume(http: web::Data<Http>) {
    match record::all_running(&http).await {
        Ok(batches) => {
            for (tenant, id) in batches {
                start(&http, Caller::of_tenant(&tenant), id);
            }
        }
        Err(problem) => tracing::error!(why = %problem, "batches stand still until the next start"),
    }
}

pub(super) async fn list(
    http: web::Data<Http>,
    caller: Caller,
    query: Result<web::Query<Query>, actix_web::Error>,
) -> Result<HttpResponse, Problem> {
    let query = body::query(query)?;
    let limit = page_limit(query.limit.or(Some(20)), MAX_BATCH_PAGE_ROWS)?;
    let tenant = caller.tenant_name().to_owned();
    let objects = &http.services.objects;
    let page = objects.list(KIND, tenant, query.after.clone(), limit + 1, ObjectOrder::NewestFirst).await?;
    let page = page.ok_or_else(|| Problem::of("after", "after names no batch"))?;
    let has_more = page.len() > limit;
    let data: Vec<Batch> = page.iter().take(limit).map(Batch::of).collect::<Result<_, _>>()?;
    let [first_id, last_id] = [data.first(), data.last()].map(|batch| batch.map(|batch| batch.id.clone()));
    Ok(HttpResponse::Ok().json(List { object: "list", data, first_id, last_id, has_more }))
}

pub(super) async fn one(
    http: web::Data<Http>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, Problem> {
    Ok(HttpResponse::Ok().json(record::find(&http, &caller, &id).await?))
}

pub(super) async fn cancel(
    http: web::Data<Http>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, Problem> {
    let mut batch = record::find(&http, &caller, &id).await?;
    if batch.status.is_over() {
        let message = format!("batch {} is {} already", batch.id, batch.status.name());
        return Err(Problem::new(Kind::Conflict, message));
    }
    let now = http.unix_s();
    let mark = Running { tenant: caller.tenant_name().to_owned(), cancelled: true };
    http.services.objects.put(vec![mark.object(&batch.id, now)]).await?;
    let key = (mark.tenant, batch.id.clone());
    if let Some(stop) = http.batches.running().get(&key) {
        stop.send_replace(true);
    }
    let name = BatchId::new(batch.id.clone()).expect("an id of ours");
    let target = CancelTarget::Batch { tenant: caller.tenant.clone(), batch: name };
    http.services.ask_scheduler(CancelJobs(target)).await??;
    batch.become_(Status::Cancelling, now);
    Ok(HttpResponse::Ok().json(batch))
}
