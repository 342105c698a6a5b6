//! The operators' pages: `/metrics`, `/health` and `/ready`.

use super::Http;
use crate::{kv_store, scheduler};
use actix_web::http::header::ContentType;
use actix_web::{HttpResponse, web};
use std::sync::atomic::Ordering;

/// Where they are.
pub(super) fn routes(config: &mut web::ServiceConfig) {
    config
        .route("/metrics", web::get().to(metrics))
        .route("/health", web::get().to(health))
        .route("/ready", web::get().to(ready));
}

async fn metrics(http: web::Data<Http>) -> HttpResponse {
    let services = &http.services;
    let scheduler = services.scheduler.send(scheduler::Snapshot).await;
    let kv = services.kv.send(kv_store::Snapshot).await;
    match (scheduler, kv, services.devices.snapshots().await) {
        (Ok(scheduler), Ok(kv), Ok(devices)) => HttpResponse::Ok()
            .content_type(prometheus::TEXT_FORMAT)
            .body(services.metrics.page(scheduler.load, &kv, &devices)),
        _ => HttpResponse::InternalServerError().body("the daemon is failing\n"),
    }
}

/// The process answers.
async fn health() -> HttpResponse {
    HttpResponse::Ok().content_type(ContentType::plaintext()).body("ok\n")
}

/// A request can be served.
async fn ready(http: web::Data<Http>) -> HttpResponse {
    if http.ready.load(Ordering::Relaxed) {
        HttpResponse::Ok().content_type(ContentType::plaintext()).body("ready\n")
    } else {
        HttpResponse::ServiceUnavailable().content_type(ContentType::plaintext()).body("not ready\n")
    }
}
