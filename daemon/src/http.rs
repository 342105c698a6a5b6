//! HTTP, over TCP and, where configured, a Unix socket: the vendors' APIs, our own, and the pages of operators.
//!
//! Each API has a module of its own, which knows its requests and its answers; all of them turn a request into the one
//! [`zllm_wire::Submit`] and its answer's events ([`turn`]) into their own words. No API is made of another's.
//!
//! Invariants: a client that goes away cancels its request; one that does not read is waited for, and nobody else waits. What
//! comes from the network is bounded in bytes, depth and time ([`body`], `limits.rs`) before it is looked at.

mod admin;
mod admission;
mod anthropic;
mod body;
mod caller;
mod connection;
mod conversation;
mod dialect;
mod edge;
mod local;
mod models;
mod ollama;
mod openai;
mod pages;
mod problem;
mod responses;
mod router;
mod sse;
mod time;
pub(crate) mod tls;
mod tools;
mod turn;

use crate::limits::{CORS_MAX_AGE_S, HTTP_CONNECTIONS, HTTP_HEAD_TIMEOUT, HTTP_IDLE, HTTP_WORKERS};
use crate::services::Services;
use actix::Arbiter;
use actix_cors::Cors;
use actix_web::dev::Server;
use actix_web::middleware::{Condition, from_fn};

use actix_web::{App, HttpServer, web};
use admission::ANY_ORIGIN;
use dialect::RequestId;
use openai::Batches;
use router::Router;
use rustls::ServerConfig;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What the handlers work with. Shared by the HTTP server's own threads.
pub(crate) struct Http {
    pub(crate) services: Arc<Services>,
    /// Whether a request can be served.
    pub(crate) ready: Arc<AtomicBool>,
    /// Web pages of these sites may ask.
    allow_origins: Vec<String>,
    /// Batches that are under way.
    batches: Batches,
    /// The number of the next id.
    next_id: AtomicU64,
}

impl Http {
    pub(crate) fn new(services: Arc<Services>, ready: Arc<AtomicBool>, allow_origins: Vec<String>) -> Self {
        Self { services, ready, allow_origins, batches: Batches::default(), next_id: AtomicU64::new(0) }
    }

    /// Seconds since the Unix epoch.
    fn unix_s(&self) -> u64 {
        self.services.clock.unix_ms() / 1000
    }

    /// An id for a new request.
    fn request_id(&self) -> RequestId {
        RequestId(self.fresh_id("req_"))
    }

    /// An id that nothing else has, also after a restart. Those of later things sort behind those of earlier ones.
    fn fresh_id(&self, prefix: &str) -> String {
        let number = self.next_id.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}{:012x}{number:08x}", self.services.clock.unix_ms())
    }
}

/// What clients left under way in an earlier run, on a thread of its own; dropped, it ends.
pub(crate) struct Resumed(Arbiter);

impl Drop for Resumed {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Goes on with what clients left under way in an earlier run.
pub(crate) fn resume(http: &web::Data<Http>) -> Resumed {
    let (thread, http) = (Arbiter::new(), http.clone());
    thread.spawn_fn(move || {
        actix_web::rt::spawn(openai::resume_batches(http.clone()));
        actix_web::rt::spawn(responses::resume(http));
    });
    Resumed(thread)
}

/// The server; `None` when it has nowhere to listen.
///
/// # Errors
/// When a listener cannot be used.
pub(crate) fn server(
    http: web::Data<Http>,
    tcp: Option<TcpListener>,
    tls: Option<ServerConfig>,
    unix: Option<UnixListener>,
) -> std::io::Result<Option<Server>> {
    if tcp.is_none() && unix.is_none() {
        return Ok(None);
    }
    let mut server = HttpServer::new(move || {
        let mut router = Router::new();
        pages::routes(&mut router);
        openai::routes(&mut router);
        local::routes(&mut router);
        ollama::routes(&mut router);
        admin::routes(&mut router);
        responses::routes(&mut router);
        anthropic::routes(&mut router);
        let origins = &http.allow_origins;
        App::new()
            .app_data(http.clone())
            .wrap(from_fn(edge::edge))
            .wrap(Condition::new(!origins.is_empty(), cors(origins)))
            .configure(|config| router.finish(config))
    })
    .workers(HTTP_WORKERS)
    .max_connections(HTTP_CONNECTIONS)
    .client_request_timeout(HTTP_HEAD_TIMEOUT)
    .tls_handshake_timeout(HTTP_HEAD_TIMEOUT)
    .keep_alive(HTTP_IDLE)
    .on_connect(connection::note)
    .disable_signals()
    .shutdown_timeout(1)
    // Otherwise a client that closes while its answer is being made is never noticed.
    .h1_allow_half_closed(false);
    if let Some(tcp) = tcp {
        server = match tls {
            Some(tls) => server.listen_rustls_0_23(tcp, tls)?,
            None => server.listen(tcp)?,
        };
    }
    if let Some(unix) = unix {
        server = server.listen_uds(unix)?;
    }
    Ok(Some(server.run()))
}

/// What pages of other sites may do. They are answered before a key is looked for: browsers ask first without one.
fn cors(origins: &[String]) -> Cors {
    let cors = Cors::default()
        .allowed_methods(["GET", "HEAD", "POST", "DELETE"])
        .allow_any_header()
        .expose_headers(["x-request-id", "request-id", "retry-after"])
        .max_age(CORS_MAX_AGE_S);
    if origins.iter().any(|origin| origin == ANY_ORIGIN) {
        return cors.allow_any_origin().send_wildcard();
    }
    origins.iter().fold(cors, |cors, origin| cors.allowed_origin(origin))
}
