//! `GET /v1/responses` as a WebSocket: one connection for many turns, one after the other.
//!
//! A client sends `response.create` messages, each a request as it would be posted, and gets the events of each response. What
//! was said last is kept for the connection, so that a response that is not stored can be gone on from.
//!
//! Invariants: a message is bounded, and so is how many wait for their turn. A client that closes, or does not answer pings,
//! cancels its response. Its silence counts only while the connection listens, which it does also while a model is loaded: not
//! while it waits for the client to read.

use crate::http::caller::Caller;
use crate::http::dialect::Dialect;
use crate::http::problem::{Kind, Problem};
use crate::http::{Http, body};
use crate::limits::{HTTP_BODY_BYTES, SOCKET_PING, SOCKET_PINGS, WAITING_TURNS};
use actix_web::{HttpRequest, HttpResponse, web};
use actix_ws::{AggregatedMessage, AggregatedMessageStream, CloseReason, Closed, Session};
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::VecDeque;
use std::rc::Rc;
use tokio::time::MissedTickBehavior;

use super::events::Event;
use super::live::Live;
use super::request::Create;
use super::shelf::Shelf;
use super::{Last, Said};

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
    let (waiting, turn, last) = (VecDeque::new(), Turn::None, None);
    let connection = Connection { session, shelf, caller, waiting, turn, last, unanswered: 0 };
    actix_web::rt::spawn(connection.serve(messages));
    Ok(response)
}

struct Connection {
    session: Session,
    shelf: Shelf,
    caller: Caller,
    /// Requests for later turns.
    waiting: VecDeque<Create>,
    turn: Turn,
    /// The response that was made last.
    last: Option<Last>,
    /// Pings since the client was heard last.
    unanswered: u32,
}

/// What is made now. With a response comes what was said before it.
enum Turn {
    None,
    Begins(LocalBoxFuture<'static, Result<Begun, Problem>>),
    Goes(Box<Live>, Rc<Said>),
}

type Begun = (Box<Live>, Rc<Said>);

/// What happens next of it.
enum Step {
    Begun(Result<Begun, Problem>),
    /// `None` after the last.
    Said(Option<Vec<Event>>),
}

impl Turn {
    /// Given up and asked again, it misses nothing.
    async fn next(&mut self) -> Step {
        match self {
            Self::None => std::future::pending().await,
            Self::Begins(begun) => Step::Begun(begun.await),
            Self::Goes(live, _) => Step::Said(live.next().await),
        }
    }
}

impl Connection {
    /// Serves until one of both closes.
    async fn serve(mut self, mut messages: AggregatedMessageStream) {
        let mut ping = tokio::time::interval(SOCKET_PING);
        // Pings that are late because the client was slow to take something are not made up for.
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let done = tokio::select! {
                message = messages.next() => {
                    self.unanswered = 0;
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
                step = self.turn.next() => self.step(step).await,
                _ = ping.tick() => {
                    self.unanswered += 1;
                    match self.unanswered > SOCKET_PINGS {
                        true => Err(Closed),
                        false => self.session.ping(b"").await,
                    }
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
        if matches!(self.turn, Turn::None) {
            self.begin();
        }
        Ok(())
    }

    /// Begins the next turn, if a request waits for it.
    fn begin(&mut self) {
        let Some(create) = self.waiting.pop_front() else { return self.turn = Turn::None };
        let (shelf, caller, last) = (self.shelf.clone(), self.caller.clone(), self.last.clone());
        let begun = async move {
            let (live, before) = super::begin(&shelf, &caller, create, last).await?;
            Ok((Box::new(live), before))
        };
        self.turn = Turn::Begins(Box::pin(begun));
    }

    /// Gives events to the client; after the last the next turn begins.
    async fn step(&mut self, step: Step) -> Result<(), Closed> {
        match step {
            Step::Begun(Ok((live, before))) => self.turn = Turn::Goes(live, before),
            Step::Begun(Err(problem)) => {
                self.begin();
                self.refuse(&problem).await?;
            }
            Step::Said(Some(events)) => {
                for event in events {
                    let text = serde_json::to_string(&event).expect("our own types become JSON");
                    self.session.text(text).await?;
                }
            }
            Step::Said(None) => {
                // What was said before may be shared with it.
                self.last = None;
                if let Turn::Goes(live, before) = std::mem::replace(&mut self.turn, Turn::None) {
                    self.last = Last::of(&live, before);
                }
                self.begin();
            }
        }
        Ok(())
    }

    async fn refuse(&mut self, problem: &Problem) -> Result<(), Closed> {
        let mut error = Dialect::OpenAi.error(problem);
        let (status, error) = (problem.status().as_u16(), error["error"].take());
        let event = ErrorEvent { kind: "error", status, error };
        let text = serde_json::to_string(&event).expect("our own types become JSON");
        self.session.text(text).await
    }
}
