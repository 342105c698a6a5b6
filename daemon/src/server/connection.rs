//! One connection: hello, then requests, several at once, each answered through a bounded queue to one writer.
//!
//! Invariants: a connection that is gone (closed, half-closed or failed) ends at once, and with it the jobs that belong to it. A client
//! that does not read slows its own requests alone. A request id is in flight once.

use super::Life;
use super::ops::answer;
use crate::limits::{FLUSH_TIMEOUT, HELLO_TIMEOUT, MAX_CLIENT_NAME_BYTES, OUTBOX_FRAMES};
use crate::scheduler::core::ConnectionId;
use crate::services::{Owner, Services};
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::Instrument;
use zllm_wire::limits::MAX_IN_FLIGHT;
use zllm_wire::{
    Answer, ClientFrame, ErrorCode, Fault, FrameDecoder, Reply, Request, ServerFrame, VERSION, WireError,
};

/// Where a request's answers go.
#[derive(Debug, Clone)]
pub(super) struct Replies {
    id: u64,
    outbox: mpsc::Sender<ServerFrame>,
}

/// The client is gone; nobody reads the answer.
#[derive(Debug)]
pub(super) struct Gone;

impl Replies {
    /// Sends one answer; waits while the client does not read.
    pub(super) async fn send(&self, body: Answer) -> Result<(), Gone> {
        self.outbox.send(ServerFrame::Reply(Reply { id: self.id, body })).await.map_err(|_| Gone)
    }
}

/// Counts the connection for as long as it lives; jobs that it submits are its own.
pub(super) struct Presence {
    owner: Owner,
}

impl Presence {
    pub(super) fn new(services: Arc<Services>) -> Self {
        services.metrics.connections().inc();
        Self { owner: Owner::new(services) }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.owner.services().metrics.connections().dec();
    }
}

/// Serves one connection to its end.
pub(super) async fn run(stream: UnixStream, mut presence: Presence, life: watch::Receiver<Life>) {
    let (id, services) = (presence.owner.id(), presence.owner.services().clone());
    let span = tracing::info_span!("connection", connection = id.0);
    async move {
        let (read, write) = stream.into_split();
        let (outbox, queue) = mpsc::channel(OUTBOX_FRAMES);
        let mut writer = actix::spawn(write_frames(write, queue));
        let mut reader = Reader { read, frames: FrameDecoder::new(), buffer: vec![0; 64 << 10] };
        tokio::select! {
            () = serve_requests(&mut reader, &outbox, id, &services, life) => {}
            _ = &mut writer => {}
        }
        // It counts as open until it is written out.
        presence.owner.gone().await;
        drop(outbox);
        // What is written already may still be read.
        if !writer.is_finished() && tokio::time::timeout(FLUSH_TIMEOUT, &mut writer).await.is_err() {
            writer.abort();
        }
        tracing::debug!("connection ended");
    }
    .instrument(span)
    .await;
}

/// Converses until the client is gone or has broken the protocol, and then says so.
async fn serve_requests(
    reader: &mut Reader,
    outbox: &mpsc::Sender<ServerFrame>,
    id: ConnectionId,
    services: &Arc<Services>,
    life: watch::Receiver<Life>,
) {
    if let Err(error) = converse(reader, outbox, id, services, life).await {
        tracing::info!(%error, "connection closed");
        let frame = ServerFrame::Refused { version: VERSION, message: error.to_string() };
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, outbox.send(frame)).await;
    }
}

/// Why a connection is closed by the daemon.
#[derive(Debug, thiserror::Error)]
enum Closing {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("no hello within {} s", HELLO_TIMEOUT.as_secs())]
    NoHello,
    #[error("the first frame must be a hello")]
    HelloExpected,
    #[error("a second hello")]
    SecondHello,
    #[error("protocol version {0} is not spoken here; version {VERSION} is")]
    Version(u8),
}

async fn converse(
    reader: &mut Reader,
    outbox: &mpsc::Sender<ServerFrame>,
    id: ConnectionId,
    services: &Arc<Services>,
    mut life: watch::Receiver<Life>,
) -> Result<(), Closing> {
    let hello = tokio::time::timeout(HELLO_TIMEOUT, reader.next()).await.map_err(|_| Closing::NoHello)??;
    match hello {
        None => return Ok(()),
        Some(ClientFrame::Request(_)) => return Err(Closing::HelloExpected),
        Some(ClientFrame::Hello { version, .. }) if version != VERSION => {
            return Err(Closing::Version(version));
        }
        Some(ClientFrame::Hello { client, .. }) => {
            let client: String = client.chars().take(MAX_CLIENT_NAME_BYTES).collect();
            tracing::debug!(client, "hello");
        }
    }
    let server = concat!("zllmd ", env!("CARGO_PKG_VERSION")).to_owned();
    let welcome = ServerFrame::Welcome { version: VERSION, server, pid: std::process::id() };
    if outbox.send(welcome).await.is_err() {
        return Ok(());
    }

    // Dropping the set ends all requests of the connection.
    let mut requests = JoinSet::new();
    let in_flight = Rc::new(RefCell::new(HashSet::new()));
    loop {
        let frame = tokio::select! {
            _ = life.wait_for(|life| *life == Life::Closing) => break,
            Some(_) = requests.join_next() => continue,
            // Requests whose last answer waits for the client count here: one that never reads is not read from either.
            frame = reader.next(), if requests.len() < 2 * MAX_IN_FLIGHT => frame?,
        };
        match frame {
            None => return Ok(()),
            Some(ClientFrame::Hello { .. }) => return Err(Closing::SecondHello),
            Some(ClientFrame::Request(request)) => {
                let replies = Replies { id: request.id, outbox: outbox.clone() };
                let over = over_bounds(&in_flight.borrow(), request.id);
                if let Some(fault) = over {
                    if replies.send(Answer::Error(fault)).await.is_err() {
                        return Ok(());
                    }
                    continue;
                }
                in_flight.borrow_mut().insert(request.id);
                requests.spawn_local(serve_request(
                    request,
                    replies,
                    id,
                    services.clone(),
                    in_flight.clone(),
                ));
            }
        }
    }
    // The daemon closes: streams that have ended may still be writing their last events.
    let _ =
        tokio::time::timeout(FLUSH_TIMEOUT, async { while requests.join_next().await.is_some() {} }).await;
    Ok(())
}

fn over_bounds(in_flight: &HashSet<u64>, id: u64) -> Option<Fault> {
    if in_flight.contains(&id) {
        let message = format!("request id {id} is in flight on this connection; choose another");
        return Some(Fault { code: ErrorCode::Invalid, message });
    }
    (in_flight.len() >= MAX_IN_FLIGHT).then(|| Fault {
        code: ErrorCode::Refused { retry_after_ms: 100 },
        message: format!("{MAX_IN_FLIGHT} requests are in flight on this connection; wait for one to end"),
    })
}

async fn serve_request(
    request: Request,
    replies: Replies,
    connection: ConnectionId,
    services: Arc<Services>,
    in_flight: Rc<RefCell<HashSet<u64>>>,
) {
    let span = tracing::info_span!("request", request = request.id, op = super::ops::name(&request.body));
    let id = request.id;
    async move {
        let last = match answer(request.body, &replies, connection, &services).await {
            Ok(last) => last,
            Err(super::ops::Unanswered::Fault(fault)) => {
                tracing::debug!(code = ?fault.code, message = fault.message, "answered with a fault");
                Answer::Error(fault)
            }
            Err(super::ops::Unanswered::Gone) => return,
        };
        // Free before the client can know that it is: it may use the id again at once.
        in_flight.borrow_mut().remove(&id);
        let _ = replies.send(last).await;
    }
    .instrument(span)
    .await;
}

/// Cuts what the client sends into frames.
struct Reader {
    read: OwnedReadHalf,
    frames: FrameDecoder,
    buffer: Vec<u8>,
}

impl Reader {
    /// The next frame; `None` when the client has closed. Cancel-safe: a read either happened or did not.
    async fn next(&mut self) -> Result<Option<ClientFrame>, WireError> {
        loop {
            if let Some(frame) = self.frames.pop()? {
                return Ok(Some(frame));
            }
            match self.read.read(&mut self.buffer).await? {
                0 => return Ok(None),
                count => self.frames.push(&self.buffer[..count]),
            }
        }
    }
}

/// Writes frames as they come, until the last sender is gone or the client is.
async fn write_frames(mut write: OwnedWriteHalf, mut queue: mpsc::Receiver<ServerFrame>) {
    while let Some(frame) = queue.recv().await {
        let bytes = match zllm_wire::encode(&frame) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(%error, "an answer does not fit into a frame");
                let ServerFrame::Reply(Reply { id, .. }) = frame else { return };
                let message = format!("the answer cannot be sent: {error}");
                let fault = Answer::Error(Fault { code: ErrorCode::Failed, message });
                let Ok(bytes) = zllm_wire::encode(&ServerFrame::Reply(Reply { id, body: fault })) else {
                    return;
                };
                bytes
            }
        };
        if write.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
