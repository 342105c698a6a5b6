//! `/metrics`, `/health` and `/ready` over HTTP: loopback TCP and, where configured, a Unix socket.

use super::Metrics;
use crate::device::Devices;
use crate::kv_store::{self, KvStoreActor};
use crate::limits::HTTP_CONNECTIONS;
use crate::scheduler::{self, SchedulerActor};
use actix::Addr;
use actix_web::dev::Server;
use actix_web::http::header::ContentType;
use actix_web::{App, HttpResponse, HttpServer, web};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the pages are made of. Shared with the HTTP server's own thread.
#[derive(Clone)]
pub(crate) struct Pages {
    pub(crate) scheduler: Addr<SchedulerActor>,
    pub(crate) kv: Addr<KvStoreActor>,
    pub(crate) devices: Devices,
    pub(crate) metrics: Arc<Metrics>,
    /// Whether a request can be served.
    pub(crate) ready: Arc<AtomicBool>,
}

/// The server of the pages; `None` when it has nowhere to listen.
///
/// # Errors
/// When a listener cannot be used.
pub(crate) fn server(
    pages: Pages,
    tcp: Option<TcpListener>,
    unix: Option<UnixListener>,
) -> std::io::Result<Option<Server>> {
    if tcp.is_none() && unix.is_none() {
        return Ok(None);
    }
    let mut server = HttpServer::new(move || {
        App::new()
            .app_data(web::Data::new(pages.clone()))
            .route("/metrics", web::get().to(metrics))
            .route("/health", web::get().to(health))
            .route("/ready", web::get().to(ready))
    })
    .workers(1)
    .max_connections(HTTP_CONNECTIONS)
    .disable_signals()
    .shutdown_timeout(1)
    // Otherwise a client that closes while its answer is being made is never noticed.
    .h1_allow_half_closed(false);
    if let Some(tcp) = tcp {
        server = server.listen(tcp)?;
    }
    if let Some(unix) = unix {
        server = server.listen_uds(unix)?;
    }
    Ok(Some(server.run()))
}

async fn metrics(pages: web::Data<Pages>) -> HttpResponse {
    let scheduler = pages.scheduler.send(scheduler::Snapshot).await;
    let kv = pages.kv.send(kv_store::Snapshot).await;
    match (scheduler, kv, pages.devices.snapshots().await) {
        (Ok(scheduler), Ok(kv), Ok(devices)) => HttpResponse::Ok()
            .content_type(prometheus::TEXT_FORMAT)
            .body(pages.metrics.page(scheduler.load, &kv, &devices)),
        _ => HttpResponse::InternalServerError().body("the daemon is failing\n"),
    }
}

/// The process answers.
async fn health() -> HttpResponse {
    HttpResponse::Ok().content_type(ContentType::plaintext()).body("ok\n")
}

/// A request can be served.
async fn ready(pages: web::Data<Pages>) -> HttpResponse {
    if pages.ready.load(Ordering::Relaxed) {
        HttpResponse::Ok().content_type(ContentType::plaintext()).body("ready\n")
    } else {
        HttpResponse::ServiceUnavailable().content_type(ContentType::plaintext()).body("not ready\n")
    }
}
