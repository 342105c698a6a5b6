//! `GET /v1/responses` as a WebSocket: one connection for many turns, one after the other.
//!
//! A client sends `response.create` messages, each a request as it would be posted, and gets the events of each response. What
//! was said last is kept for the connection, so that a response that is not stored can be gone on from.
//!
//! Invariants: a message is bounded, and so is how many wait for their turn. A client that closes, or does not answer pings,
//! cancels its response.

use crate::http::caller::Caller;
use crate::http::dialect::Dialect;
use crate::http::problem::{Kind, Problem};
use crate::http::{Http, body};
use crate::limits::{HTTP_BODY_BYTES, SOCKET_PING, SOCKET_SILENCE, WAITING_TURNS};
use actix_web::{HttpRequest, HttpResponse, web};
use actix_ws::{AggregatedMessage, AggregatedMessageStream, CloseReason, Closed, Session};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::VecDeque;

use super::Last;
use super::live::Live;
use super::request::Create;
use super::shelf::Shelf;

/// What kind of message it is.
#[derive(Deserialize)]
struct Message {
    #[serde(rename = "type")]
    kind: String,
}

/// Something went wrong with a message.
#[derive(Serialize)]
struct ErrorEvent {
    #[serde(rename = "type")]
    kind: &'static str,
    status: u16,
    error: Value,
}

pub(super) async fn upgrade(
    http: web::Data<Http>,
    caller: Caller,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Problem> {
    let (response, session, messages) = actix_ws::handle(&request, payload).map_err(|error| {
        let message = format!("GET asks for a WebSocket here ({error}); POST makes a response");
        Problem::new(Kind::Invalid, message)
    })?;
    let messages = messages.max_frame_size(HTTP_BODY_BYTES).aggregate_continuations();
    let messages = messages.max_continuation_size(HTTP_BODY_BYTES);
    let shelf = Shelf::new(http, &caller);
    let connection =
        Connection { session, shelf, caller, waiting: VecDeque::new(), live: None, before: None, last: None };
    actix_web::rt::spawn(connection.serve(messages));
    Ok(response)
}

struct Connection {
    session: Session,
    shelf: Shelf,
    caller: Caller,
    /// Requests for later turns.
    waiting: VecDeque<Create>,
    /// The response that is being made.
    live: Option<Live>,
    /// What was said before it.
    before: Option<Vec<super::items::Item>>,
    /// The response that was made last.
    last: Option<Last>,
}

impl Connection {
    /// Serves until one of both closes.
    async fn serve(mut self, mut messages: AggregatedMessageStream) {
        let clock = self.shelf.http.services.clock;
        let mut heard = clock.now();
        let mut ping = tokio::time::interval(SOCKET_PING);
        loop {
            let done = tokio::select! {
                message = messages.next() => {
                    heard = clock.now();
                    match message {
                        Some(Ok(AggregatedMessage::Text(text))) => self.take(text.as_bytes()).await,
                        Some(Ok(AggregatedMessage::Binary(bytes))) => self.take(&bytes).await,
                        Some(Ok(AggregatedMessage::Ping(bytes))) => self.session.pong(&bytes).await,
                        Some(Ok(AggregatedMessage::Pong(_))) => Ok(()),
                        Some(Ok(AggregatedMessage::Close(_))) | None => Err(Closed),
                        Some(Err(error)) => {
                            let problem = Problem::new(Kind::Invalid, format!("the connection: {error}"));
                            let _ = self.refuse(&problem).await;
                            Err(Closed)
                        }
                    }
                }
                events = next(&mut self.live), if self.live.is_some() => {
                    let began = clock.now();
                    let given = self.give(events).await;
                    // While it waits for the client to read, it does not listen either.
                    heard += clock.now() - began;
                    given
                }
                _ = ping.tick() => {
                    let is_silent = clock.now().saturating_sub(heard) > SOCKET_SILENCE;
                    if is_silent { Err(Closed) } else { self.session.ping(b"").await }
                }
            };
            if done.is_err() {
                let _ = self.session.close(None::<CloseReason>).await;
                return;
            }
        }
    }

    /// Takes a message.
    async fn take(&mut self, message: &[u8]) -> Result<(), Closed> {
        let read = body::parse::<Message>(message).and_then(|Message { kind }| match kind.as_str() {
            "response.create" => body::parse::<Create>(message),
            other => {
                let shown = super::items::shown(other);
                Err(Problem::of("type", format!("type is {shown:?}; \"response.create\" works")))
            }
        });
        let create = match read {
            Ok(create) => create,
            Err(problem) => return self.refuse(&problem).await,
        };
        if self.waiting.len() >= WAITING_TURNS {
            let message = format!("{WAITING_TURNS} requests wait for their turn on this connection");
            let retry_after = std::time::Duration::from_secs(1);
            return self.refuse(&Problem::new(Kind::Busy { retry_after }, message)).await;
        }
        self.waiting.push_back(create);
        self.turn().await
    }

    /// Begins the next turn, if none goes on.
    async fn turn(&mut self) -> Result<(), Closed> {
        while self.live.is_none() {
            let Some(create) = self.waiting.pop_front() else { return Ok(()) };
            match super::begin(&self.shelf, &self.caller, create, self.last.as_ref()).await {
                Ok((live, before)) => (self.live, self.before) = (Some(live), Some(before)),
                Err(problem) => self.refuse(&problem).await?,
            }
        }
        Ok(())
    }

    /// Gives events to the client; after the last the next turn begins.
    async fn give(&mut self, events: Option<Vec<super::events::Event>>) -> Result<(), Closed> {
        let Some(events) = events else {
            let (live, before) = (self.live.take(), self.before.take());
            self.last = live.zip(before).and_then(|(live, before)| Last::of(&live, before));
            return self.turn().await;
        };
        for event in events {
            let text = serde_json::to_string(&event).expect("our own types become JSON");
            self.session.text(text).await?;
        }
        Ok(())
    }

    async fn refuse(&mut self, problem: &Problem) -> Result<(), Closed> {
        let mut error = Dialect::OpenAi.error(problem);
        let (status, error) = (problem.status().as_u16(), error["error"].take());
        let event = ErrorEvent { kind: "error", status, error };
        self.session.text(serde_json::to_string(&event).expect("our own types become JSON")).await
    }
}

async fn next(live: &mut Option<Live>) -> Option<Vec<super::events::Event>> {
    match live {
        Some(live) => live.next().await,
        None => std::future::pending().await,
    }
}
