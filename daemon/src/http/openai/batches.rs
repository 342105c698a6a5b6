//! `/v1/batches`: many requests of one file, each a durable job of class batch (but for embeddings, which are soon computed again), answered into another file.
//!
//! A batch is a record in the object store and a task that drives it ([`drive`]). The task may end with the process at any
//! time: the next start takes every batch up again that has a mark ([`resume`]), which is the last thing that goes. Each line's
//! job has the idempotency key `BATCH:LINE`, so that none is computed twice.

mod ask;
mod drive;
mod lines;
mod record;
mod results;

use super::files::{self, ExpiresAfter, page_limit};
use crate::http::caller::Caller;
use crate::http::problem::{Kind, Problem};
use crate::http::{Http, body};
use crate::limits::{
    BATCH_RETRY, BATCHES_IN_FLIGHT_BYTES, MAX_BATCH_METADATA, MAX_BATCH_METADATA_BYTES, MAX_BATCH_PAGE_ROWS,
    MAX_BATCHES_AT_ONCE, MAX_TENANT_BATCHES, RETRY_AFTER,
};
use actix_web::{HttpResponse, web};
pub(super) use record::Batch;
use record::{KIND, Mark, Status};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Semaphore, watch};
use zllm_state::ObjectOrder;

/// Batches whose tasks run, and what they share.
#[derive(Debug)]
pub(in crate::http) struct Batches {
    running: Mutex<Running>,
    /// KiB of requests that may be under way.
    room: Arc<Semaphore>,
}

/// By tenant and id: what tells them that they are cancelled.
type Running = HashMap<Key, watch::Sender<bool>>;
type Key = (String, String);

/// A batch among those that run, until it is dropped.
struct Place {
    http: web::Data<Http>,
    key: Key,
    cancelled: watch::Receiver<bool>,
}

impl Default for Batches {
    fn default() -> Self {
        let room = Semaphore::new(BATCHES_IN_FLIGHT_BYTES / 1024);
        Self { running: Mutex::default(), room: Arc::new(room) }
    }
}

impl Batches {
    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().expect("nobody panics with it")
    }
}

impl Place {
    /// # Errors
    /// The batch has one, or it is new and as many have one as may.
    fn take(http: &web::Data<Http>, caller: &Caller, id: &str, is_new: bool) -> Result<Self, Problem> {
        let key = (caller.tenant_name().to_owned(), id.to_owned());
        let (cancel, cancelled) = watch::channel(false);
        let mut running = http.batches.running();
        if is_new {
            make_sure_of_room(&running, &key.0)?;
        }
        if running.contains_key(&key) {
            return Err(Problem::new(Kind::Conflict, format!("batch {id} is under way")));
        }
        running.insert(key.clone(), cancel);
        Ok(Self { http: http.clone(), key, cancelled })
    }

    /// Starts the batch's task.
    fn start(self, caller: Caller) {
        actix_web::rt::spawn(async move {
            drive::drive(&self.http, &caller, &self.key.1, self.cancelled.clone()).await;
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.http.batches.running().remove(&self.key);
    }
}

/// Refuses a further batch where there are as many as there may be.
fn make_sure_of_room<T>(running: &HashMap<Key, T>, tenant: &str) -> Result<(), Problem> {
    let own = running.keys().filter(|(other, _)| other == tenant).count();
    let message = if own >= MAX_TENANT_BATCHES {
        format!("{MAX_TENANT_BATCHES} batches of this tenant are under way")
    } else if running.len() >= MAX_BATCHES_AT_ONCE {
        format!("{MAX_BATCHES_AT_ONCE} batches are under way")
    } else {
        return Ok(());
    };
    Err(Problem::new(Kind::Busy { retry_after: *RETRY_AFTER.end() }, message))
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
    /// How long its files are kept; as long as all files if it is not said.
    output_expires_after: Option<ExpiresAfter>,
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
    request.output_expires_after.iter().try_for_each(|after| after.check("output_expires_after"))?;
    files::find(&http, &caller, &request.input_file_id).await.map_err(|problem| Problem {
        param: Some("input_file_id".to_owned()),
        kind: if problem.kind == Kind::NotFound { Kind::Invalid } else { problem.kind },
        ..problem
    })?;
    let id = http.fresh_id("batch_");
    let place = Place::take(&http, &caller, &id, true)?;
    let now = http.unix_s();
    let mut batch = Batch::new(id, request.endpoint, request.input_file_id, metadata, now);
    batch.output_expires_after = request.output_expires_after;
    let mark = Mark { tenant: caller.tenant_name().to_owned(), cancelled: false };
    let objects = vec![batch.object(&caller), mark.object(&batch.id, now)];
    // Not a part of the request: a client that leaves now leaves no batch behind that is kept and not driven.
    let begun = actix_web::rt::spawn(async move {
        http.services.objects.put(objects).await?;
        place.start(caller);
        Ok::<_, Problem>(())
    });
    begun.await.map_err(|error| Problem::new(Kind::Failed, error.to_string()))??;
    Ok(HttpResponse::Ok().json(batch))
}

/// Goes on with all batches that are not over.
pub(in crate::http) async fn resume(http: web::Data<Http>) {
    let mut pause = *BATCH_RETRY.start();
    let marked = loop {
        match record::marked(&http).await {
            Ok(marked) => break marked,
            Err(problem) if pause == *BATCH_RETRY.start() => {
                tracing::warn!(why = %problem, "batches stand still until their marks can be read");
            }
            Err(_) => {}
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(*BATCH_RETRY.end());
    };
    for (tenant, id) in marked {
        let caller = Caller::of_tenant(&tenant);
        // One that was begun meanwhile has its task.
        if let Ok(place) = Place::take(&http, &caller, &id, false) {
            place.start(caller);
        }
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
    let found = record::mark_cancelled(&http, &caller, &id).await?;
    let mut batch = found.ok_or_else(|| record::none(&id))?;
    if batch.status.is_over() {
        let message = format!("batch {} is {} already", batch.id, batch.status.name());
        return Err(Problem::new(Kind::Conflict, message));
    }
    let key = (caller.tenant_name().to_owned(), batch.id.clone());
    if let Some(cancel) = http.batches.running().get(&key) {
        cancel.send_replace(true);
    }
    batch.become_(Status::Cancelling, http.unix_s());
    Ok(HttpResponse::Ok().json(batch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_bounded_in_all_and_of_each_tenant() {
        let mut running = HashMap::new();
        let mut start = |tenant: &str| {
            make_sure_of_room(&running, tenant)?;
            running.insert((tenant.to_owned(), running.len().to_string()), ());
            Ok::<_, Problem>(())
        };
        for tenant in 0..4 {
            (0..MAX_TENANT_BATCHES).for_each(|_| start(&tenant.to_string()).expect("room"));
            let refused = start(&tenant.to_string()).expect_err("as many as it may have");
            assert_eq!(refused.message, "16 batches of this tenant are under way");
            assert!(matches!(refused.kind, Kind::Busy { .. }));
        }
        assert_eq!(start("another").expect_err("all are taken").message, "64 batches are under way");
    }
}
