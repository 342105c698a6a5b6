//! The daemon put together: the actors, the servers, and the order in which they start and end.
//!
//! Start: the sockets are bound (before any thread), the actors started, the start-up models loaded, then READY.
//! End: no new connections or jobs, jobs end or are cancelled at the deadline, what is worth keeping of the KV is saved,
//! streams are written out, the socket's file goes. A death of an actor or of the device's thread ends the process at once:
//! systemd starts it again.

#[cfg(test)]
mod tests;

use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::config::Config;
use crate::device::port::Device;
use crate::device::{DeviceActor, Devices};
use crate::http::{self, Http, tls};
use crate::keys::Keys;
use crate::kv_store::{KvStoreActor, OpenDisk, SaveAll};
use crate::limits::{
    FLUSH_TIMEOUT, MAX_EMBEDDED_LISTS, MAX_EMBEDDED_LISTS_BATCH, OPEN_TIMEOUT, STUCK_AFTER,
    WANTED_MODELS_INTERVAL,
};
use crate::metrics::Metrics;
use crate::object_disk::ObjectDisk;
use crate::pulse::{Organ, Pulses};
use crate::scheduler::models::LoadState;
use crate::scheduler::{Drain, Durable, Fellows, Recover, SchedulerActor, WantModel, WantedModels};
use crate::server::listen::{Listening, SocketGuard};
use crate::server::{self, Life};
use crate::services::{Places, Services};
use crate::stop::{StopHandle, StopListener, StopReason};
use crate::{notify, server::listen};
use actix_web::dev::ServerHandle;
use actix_web::web;
use anyhow::{Context, bail};
use rustls::ServerConfig;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// Everything that is bound before the runtime starts.
pub(crate) struct Bound {
    socket: Listening,
    policy: server::PeerPolicy,
    http_tcp: Option<TcpListener>,
    http_unix: Option<Listening>,
    http_tls: Option<ServerConfig>,
    keys: Keys,
}

/// How the daemon ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Every job has had its terminal event.
    Orderly,
    /// A second signal did not wait for that.
    AtOnce,
}

impl Bound {
    /// Binds what the configuration names.
    ///
    /// # Errors
    /// What cannot be bound, where, and the system's reason.
    pub(crate) fn bind(config: &Config) -> anyhow::Result<Self> {
        let policy = server::PeerPolicy::new(config.socket_group.as_deref())?;
        let socket = listen::listen(&config.socket, &policy)?;
        let http_tcp = config.http.listen.map(|address| {
            TcpListener::bind(address).with_context(|| {
                format!("cannot serve HTTP on {address}; choose another address with --http, or \"off\"")
            })
        });
        let http_tls = config.http.tls.as_ref().map(tls::load).transpose()?;
        let keys = Keys::open(config.http.keys.clone())?;
        let http_unix = config.http.socket.as_deref().map(|path| listen::bind(path, &policy));
        Ok(Self {
            socket,
            policy,
            http_tcp: http_tcp.transpose()?,
            http_unix: http_unix.transpose()?,
            http_tls,
            keys,
        })
    }
}

/// Runs the daemon to its end, on the runtime of the calling thread.
///
/// # Errors
/// A start-up model that does not load, or the death of an actor or the device's thread.
pub(crate) async fn run(
    config: Config,
    bound: Bound,
    devices: Vec<Box<dyn Device>>,
    clock: Clock,
) -> anyhow::Result<Ended> {
    let names: Vec<String> = devices.iter().map(|device| device.describe().name).collect();
    let (pulses, mut deaths) = Pulses::new(devices.len() as u16);
    let (stop, mut stops) = StopListener::new().context("signals")?;
    let (life, seen_life) = watch::channel(Life::Serving);
    let ready = Arc::new(AtomicBool::new(false));
    let services = Arc::new(start_actors(&config, devices, clock, &pulses, stop, bound.keys)?);

    let (listener, _socket_guard) = bound.socket.into_parts();
    let listener = tokio::net::UnixListener::from_std(listener).context("the listening socket")?;
    let asked = Http::new(services.clone(), ready.clone(), config.http.allow_origins.clone());
    let asked = web::Data::new(asked);
    let (http, _http_guard) = serve_http(asked.clone(), bound.http_tcp, bound.http_tls, bound.http_unix)?;
    actix::spawn(notify::feed_watchdog(pulses.clone()));
    // Clients that come before it wait: the first request finds what was kept, the first listing sessions and jobs.
    tokio::select! {
        () = open_disks(&services) => {}
        _ = stops.next() => {
            pulses.end_on_purpose();
            return Ok(Ended::Orderly);
        }
        died = deaths.recv() => return Err(death(died, &names)),
    }
    // What clients left under way goes on now that the jobs are known that it began.
    let _resumed = http::resume(&asked);
    let serving = server::serve(listener, bound.policy, config.connections, services.clone(), seen_life);
    let serving = actix::spawn(serving);

    let reason = tokio::select! {
        reason = stops.next() => reason,
        died = deaths.recv() => return Err(death(died, &names)),
        failed = start_up(&config, &services, &ready) => return Err(failed),
    };

    notify::stopping("ending the jobs");
    ready.store(false, Ordering::Relaxed);
    life.send_replace(Life::Draining);
    let time = if reason == StopReason::Drain { config.drain } else { Duration::ZERO };
    let ended = tokio::select! {
        () = wind_up(&services, time, config.kv.save_time) => Ended::Orderly,
        _ = stops.next() => Ended::AtOnce,
        () = tokio::time::sleep(time + config.kv.save_time + STUCK_AFTER) => {
            tracing::error!("the jobs do not end or the KV store does not save; ending without them");
            Ended::AtOnce
        }
        died = deaths.recv() => return Err(death(died, &names)),
    };
    // Whatever is dropped from here on is meant to be.
    pulses.end_on_purpose();
    let _ = serving.await;
    life.send_replace(Life::Closing);
    close_connections(&services).await;
    if let Some(http) = http {
        // Answers that are being written are written out, for a second at most.
        http.stop(true).await;
    }
    Ok(ended)
}

fn start_actors(
    config: &Config,
    devices: Vec<Box<dyn Device>>,
    clock: Clock,
    pulses: &Pulses,
    stop: StopHandle,
    keys: Keys,
) -> anyhow::Result<Services> {
    let metrics = Arc::new(Metrics::new(clock.started_unix_seconds()));
    let devices = start_devices(devices, clock, pulses)?;
    let kv = KvStoreActor::spawn(config.kv.clone(), devices.clone(), clock, pulses.clone());
    let fellows = Fellows {
        kv: kv.clone(),
        devices: devices.clone(),
        metrics: metrics.clone(),
        clock,
        pulses: pulses.clone(),
    };
    let durable = Durable::start(&config.jobs, clock, pulses).context("the job disk's thread")?;
    let objects = ObjectDisk::spawn(&config.objects, clock, pulses).context("the object disk's thread")?;
    let scheduler = SchedulerActor::spawn(config.core.clone(), durable, fellows);
    let (arriving, encoding) = Services::arrival_bounds();
    let (models, folder) = (config.models.clone(), config.models_dir.clone());
    Ok(Services {
        scheduler,
        kv,
        devices,
        objects,
        metrics,
        clock,
        catalog: Catalog::new(models, folder, config.model_defaults.clone()),
        stop,
        keys: Arc::new(keys),
        default_max_tokens: config.default_max_tokens,
        queue_capacity: config.core.queue.jobs,
        tenant_limit: config.core.tenant,
        arriving,
        encoding,
        embedded_lists: Places::new(MAX_EMBEDDED_LISTS, MAX_EMBEDDED_LISTS_BATCH),
        arrival_time_us: AtomicU64::new(0),
        next_connection: AtomicU64::new(0),
    })
}

/// Starts the devices' threads and actors, in the order of their numbers.
fn start_devices(devices: Vec<Box<dyn Device>>, clock: Clock, pulses: &Pulses) -> anyhow::Result<Devices> {
    let mut started = Vec::with_capacity(devices.len());
    for (number, device) in (0..).zip(devices) {
        let name = device.describe().name;
        let actor = DeviceActor::spawn(number, device, clock, pulses.clone());
        started.push((name.clone(), actor.with_context(|| format!("the thread of device {name}"))?));
        tracing::debug!(number, name, "device");
    }
    Ok(Devices::new(started))
}

/// Opens the KV database and the durable jobs. A disk that does not answer must not keep the daemon from its work; it is
/// taken in when it does.
async fn open_disks(services: &Services) {
    let opening = services.kv.send(OpenDisk);
    if tokio::time::timeout(OPEN_TIMEOUT, opening).await.is_err() {
        tracing::warn!("the KV database is still being opened; starting without it");
    }
    let recovering = services.scheduler.send(Recover);
    if tokio::time::timeout(OPEN_TIMEOUT, recovering).await.is_err() {
        tracing::warn!("the durable jobs are still being opened; starting without them");
    }
}

/// Loads the models that durable jobs wait for, again and again: one that does not load now may do so later.
async fn load_wanted(services: &Services) -> ! {
    loop {
        // An error means that the scheduler has died; the watcher ends the process then.
        for model in services.scheduler.send(WantedModels).await.unwrap_or_default() {
            let Some(settings) = services.catalog.find(&model) else {
                tracing::warn!(%model, "durable jobs wait for a model that is not there");
                continue;
            };
            if let Ok(Err(fault)) = services.scheduler.send(WantModel { model, settings }).await {
                tracing::warn!(message = fault.message, "durable jobs wait for a model");
            }
        }
        tokio::time::sleep(WANTED_MODELS_INTERVAL).await;
    }
}

/// Loads the start-up models and reports ready; then waits for ever. Returns only with a failure.
async fn start_up(config: &Config, services: &Services, ready: &AtomicBool) -> anyhow::Error {
    for name in config.startup_models() {
        notify::status(&format!("loading {name}"));
        if let Err(error) = load(name, services).await {
            return error;
        }
    }
    tracing::info!(socket = %config.socket.display(), "ready");
    ready.store(true, Ordering::Relaxed);
    notify::ready("serving");
    load_wanted(services).await
}

async fn load(name: &str, services: &Services) -> anyhow::Result<()> {
    let settings =
        services.catalog.find(name).with_context(|| format!("model {name:?} is not configured"))?;
    let mut watch = services.scheduler.send(WantModel { model: name.into(), settings }).await??;
    let state = watch.wait_for(|state| !matches!(state, LoadState::Loading(_))).await?.clone();
    match state {
        LoadState::Failed(fault) => bail!("a model that is to be loaded at start failed: {}", fault.message),
        LoadState::Ready(_) | LoadState::Loading(_) => Ok(()),
    }
}

fn serve_http(
    http: web::Data<Http>,
    tcp: Option<TcpListener>,
    tls: Option<ServerConfig>,
    unix: Option<Listening>,
) -> anyhow::Result<(Option<ServerHandle>, Option<SocketGuard>)> {
    let (unix, guard) = unix.map(Listening::into_parts).unzip();
    let server = http::server(http, tcp, tls, unix).context("the HTTP server")?;
    let handle = server.map(|server| {
        let handle = server.handle();
        actix::spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(%error, "the HTTP server ended");
            }
        });
        handle
    });
    Ok((handle, guard))
}

/// Lets the jobs end, then has the KV saved.
async fn wind_up(services: &Services, drain: Duration, save: Duration) {
    let deadline = services.clock.time() + drain;
    // An error means that an actor has died; the watcher ends the process then.
    let drained = match services.scheduler.send(Drain { deadline }).await {
        Ok(drained) => drained.await.is_ok(),
        Err(_) => false,
    };
    notify::status("saving");
    let deadline = services.clock.now() + save;
    if !drained || services.kv.send(SaveAll { deadline }).await.is_err() {
        std::future::pending().await
    }
}

/// Gives open connections a moment to write their last frames.
async fn close_connections(services: &Services) {
    let closed = async {
        while services.metrics.connections().get() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    if tokio::time::timeout(FLUSH_TIMEOUT * 2, closed).await.is_err() {
        tracing::warn!("connections are still open; closing them as they are");
    }
}

fn death(organ: Option<Organ>, devices: &[String]) -> anyhow::Error {
    let who = match organ {
        None => "an actor".to_owned(),
        Some(Organ::Device(number)) => format!("the actor of device {}", devices[usize::from(number)]),
        Some(Organ::DeviceThread(number)) => format!("the thread of device {}", devices[usize::from(number)]),
        Some(organ) => format!("the {organ}"),
    };
    anyhow::anyhow!("{who} has died: {}", crate::panics::latest().unwrap_or_else(|| "without a word".into()))
}
