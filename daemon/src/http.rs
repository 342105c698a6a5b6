//! HTTP, over TCP and, where configured, a Unix socket: the vendors' APIs, our own, and the pages of operators.
//!
//! Each API has a module of its own, which knows its requests and its answers; all of them turn a request into the one
//! [`zllm_wire::Submit`] and its answer's events ([`turn`]) into their own words. No API is made of another's.
//!
//! Invariants: a client that goes away cancels its request; one that does not read is waited for, and nobody else waits. What
//! comes from the network is bounded in bytes, depth and time ([`body`], `limits.rs`) before it is looked at.

mod admin;
mod anthropic;
mod body;
mod caller;
#[allow(dead_code, reason = "the other APIs, which are being written, use it")]
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
#[allow(dead_code, reason = "the other APIs, which are being written, use it")]
mod router;
mod sse;
mod time;
mod tools;
#[allow(dead_code, reason = "the other APIs, which are being written, use it")]
mod turn;

use crate::limits::{HTTP_CONNECTIONS, HTTP_HEAD_TIMEOUT, HTTP_WORKERS};
use crate::services::Services;
use actix_web::dev::Server;
use actix_web::middleware::from_fn;
use actix_web::{App, HttpServer, web};
use dialect::RequestId;
use openai::Batches;
use router::Router;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What the handlers work with. Shared by the HTTP server's own threads.
pub(crate) struct Http {
    pub(crate) services: Arc<Services>,
    /// Whether a request can be served.
    pub(crate) ready: Arc<AtomicBool>,
    /// Batches that are under way.
    batches: Batches,
    /// The number of the next id.
    next_id: AtomicU64,
}

impl Http {
    pub(crate) fn new(services: Arc<Services>, ready: Arc<AtomicBool>) -> Self {
        Self { services, ready, batches: Batches::default(), next_id: AtomicU64::new(0) }
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

/// The server; `None` when it has nowhere to listen.
///
/// # Errors
/// When a listener cannot be used.
pub(crate) fn server(
    http: Http,
    tcp: Option<TcpListener>,
    unix: Option<UnixListener>,
) -> std::io::Result<Option<Server>> {
    if tcp.is_none() && unix.is_none() {
        return Ok(None);
    }
    let http = web::Data::new(http);
    actix_web::rt::spawn(openai::resume_batches(http.clone()));
    actix_web::rt::spawn(responses::resume(http.clone()));
    let mut server = HttpServer::new(move || {
        let mut router = Router::new();
        pages::routes(&mut router);
        openai::routes(&mut router);
        local::routes(&mut router);
        ollama::routes(&mut router);
        admin::routes(&mut router);
        responses::routes(&mut router);
        anthropic::routes(&mut router);
        App::new().app_data(http.clone()).wrap(from_fn(edge::edge)).configure(|config| router.finish(config))
    })
    .workers(HTTP_WORKERS)
    .max_connections(HTTP_CONNECTIONS)
    .client_request_timeout(HTTP_HEAD_TIMEOUT)
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
