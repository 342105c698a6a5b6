//! The Unix socket server: accepts connections from allowed peers, up to a bound, and ends them in order.

mod connection;
pub(crate) mod listen;
mod ops;
mod peer;

use crate::clock::Uptime;
use crate::limits::REFUSAL_LOG_INTERVAL;
use crate::services::Services;
use connection::Presence;
pub(crate) use peer::PeerPolicy;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use zllm_wire::{ServerFrame, VERSION};

/// Where the daemon is in its life, as connections see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// Takes connections.
    Serving,
    /// Takes no new ones; the open ones go on.
    Draining,
    /// Open connections write what they have and close.
    Closing,
}

/// Accepts until the daemon drains.
pub(crate) async fn serve(
    listener: UnixListener,
    policy: PeerPolicy,
    limit: usize,
    services: Arc<Services>,
    mut life: watch::Receiver<Life>,
) {
    let mut refusals = Refusals::default();
    loop {
        let accepted = tokio::select! {
            _ = life.wait_for(|life| *life != Life::Serving) => return,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: going on at once would spin.
                tracing::warn!(%error, "no connection accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let open = services.metrics.connections().get() as usize;
        if let Err(message) = judge(&stream, &policy, open, limit) {
            refusals.log(&message, services.clock.now());
            actix::spawn(refuse(stream, message));
            continue;
        }
        // Counted before the next is accepted, not when its task first runs.
        let presence = Presence::new(services.clone());
        actix::spawn(connection::run(stream, presence, life.clone()));
    }
}

fn judge(stream: &UnixStream, policy: &PeerPolicy, open: usize, limit: usize) -> Result<(), String> {
    let peer = stream.peer_cred().map_err(|error| format!("peer credentials cannot be read: {error}"))?;
    policy.judge(peer.uid(), peer.gid())?;
    if open >= limit {
        return Err(format!("{open} connections are open, which is the limit; try again later"));
    }
    Ok(())
}

/// Logs refused connections, one in a while: whoever is refused tries again, and many do so at once.
#[derive(Debug, Default)]
struct Refusals {
    logged_at: Option<Uptime>,
    unlogged: u64,
}

impl Refusals {
    fn log(&mut self, message: &str, now: Uptime) {
        if self.logged_at.is_some_and(|at| now < at + REFUSAL_LOG_INTERVAL) {
            self.unlogged += 1;
            return;
        }
        tracing::info!(message, more_before = self.unlogged, "connection refused");
        *self = Self { logged_at: Some(now), unlogged: 0 };
    }
}

/// Says why and closes. Bounded in time: the peer may not read.
async fn refuse(mut stream: UnixStream, message: String) {
    use tokio::io::AsyncWriteExt;
    let Ok(frame) = zllm_wire::encode(&ServerFrame::Refused { version: VERSION, message }) else { return };
    let _ = tokio::time::timeout(crate::limits::FLUSH_TIMEOUT, stream.write_all(&frame)).await;
}
