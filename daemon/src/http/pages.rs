//! The operators' pages: `/metrics`, `/health` and `/ready`.

use super::Http;
use super::problem::{Kind, Problem};
use super::router::{Operation, Router};
use crate::{kv_store, scheduler};
use actix_web::http::header::ContentType;
use actix_web::{HttpResponse, web};
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::atomic::Ordering;

/// Where they are.
pub(super) fn routes(router: &mut Router) {
    let text = "text/plain";
    router.get("/", web::to(name), Operation::new("Say who answers").gives_type(text));
    router.get("/metrics", web::to(metrics), Operation::new("Tell Prometheus").gives_type(text));
    router.get("/health", web::to(health), Operation::new("Say that the process answers").gives::<Well>());
    router.get("/ready", web::to(ready), Operation::new("Say whether it can serve").gives::<Well>());
}

/// All is well, as llama-server says it.
#[derive(Debug, Serialize, JsonSchema)]
struct Well {
    /// `ok`.
    status: &'static str,
}

/// What clients that only look whether somebody is there are told.
async fn name() -> HttpResponse {
    let name = concat!("zllmd ", env!("CARGO_PKG_VERSION"), "\n");
    HttpResponse::Ok().content_type(ContentType::plaintext()).body(name)
}

async fn metrics(http: web::Data<Http>) -> Result<HttpResponse, Problem> {
    let services = &http.services;
    let scheduler = services.scheduler.send(scheduler::Snapshot).await;
    let kv = services.kv.send(kv_store::Snapshot).await;
    match (scheduler, kv, services.devices.snapshots().await) {
        (Ok(scheduler), Ok(kv), Ok(devices)) => Ok(HttpResponse::Ok()
            .content_type(prometheus::TEXT_FORMAT)
            .body(services.metrics.page(scheduler.load, &kv, &devices))),
        _ => Err(Problem::new(Kind::Failed, "the daemon is failing")),
    }
}

/// The process answers.
async fn health() -> web::Json<Well> {
    web::Json(Well { status: "ok" })
}

/// A request can be served.
async fn ready(http: web::Data<Http>) -> Result<web::Json<Well>, Problem> {
    if !http.ready.load(Ordering::Relaxed) {
        let message = "not ready: the daemon loads its first models, or is about to stop";
        return Err(Problem::new(Kind::Unavailable, message));
    }
    if http.services.ask_scheduler(scheduler::Snapshot).await?.draining {
        return Err(Problem::new(Kind::Unavailable, "not ready: somebody drains the daemon"));
    }
    Ok(web::Json(Well { status: "ok" }))
}
