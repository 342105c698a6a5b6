//! One line of a batch: asked until it has an answer that stays.
//!
//! What a line says wrong stays wrong, and a job that failed has failed. Everything else passes: no room, a model that does not
//! load now, a disk that is full or slow, a daemon that drains or stops. There the line waits and is asked again, up to the
//! batch's end; its key leads back to the job that it may have begun.

use super::super::{answer, chat, completions, embeddings};
use super::lines::{Endpoint, Line};
use crate::http::Http;
use crate::http::caller::Caller;
use crate::http::dialect::Dialect;
use crate::http::problem::{Kind, Problem};
use crate::http::responses;
use crate::limits::{BATCH_RETRY, MAX_LABEL_BYTES};
use actix_web::web;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use zllm_wire::{BatchId, Class, IdempotencyKey, Submit};

/// A line that is to be asked.
pub(super) struct Question {
    pub(super) http: web::Data<Http>,
    pub(super) caller: Caller,
    /// The batch's id.
    pub(super) batch: String,
    pub(super) endpoint: Endpoint,
    /// The line's number.
    pub(super) number: u64,
    pub(super) line: Line,
    /// Room for it: the batch's own, and that of all.
    pub(super) _room: [OwnedSemaphorePermit; 2],
}

/// A line's result.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// The line that it answers.
    pub(super) line: u64,
    /// Whether it is an answer, and no error.
    pub(super) good: bool,
    /// What the client reads: a line of JSON.
    pub(super) told: String,
}

impl Question {
    /// Its result, as soon as there is one.
    pub(super) async fn answer(self) -> Outcome {
        let mut pause = *BATCH_RETRY.start();
        let answered = loop {
            let wait = match self.ask().await {
                Err(Problem { kind: Kind::Busy { retry_after }, .. }) => retry_after.max(pause),
                // Somebody drains the daemon, or it is about to stop.
                Err(Problem { kind: Kind::Unavailable, .. }) => pause,
                Err(problem) if problem.kind == Kind::Failed => self.note(&problem, &mut pause),
                answered => break answered,
            };
            tokio::time::sleep(wait).await;
        };
        let Self { http, batch, number, line, .. } = self;
        Outcome::new((&batch, number, line.custom_id), http.fresh_id("req_"), answered)
    }

    async fn ask(&self) -> Result<String, Problem> {
        let Self { http, caller, batch, number, .. } = self;
        let own = |submit: &mut Submit| {
            submit.detached = true;
            submit.class = Class::Batch;
            submit.batch = BatchId::new(batch.clone()).ok();
            submit.key = IdempotencyKey::new(format!("{batch}:{number}")).ok();
            submit.label = Some(label(&self.line.custom_id));
        };
        let body = self.line.body.get().as_bytes();
        match self.endpoint {
            Endpoint::Chat => answer::answer::<chat::Request>(http, caller, body, own).await,
            Endpoint::Completions => answer::answer::<completions::Request>(http, caller, body, own).await,
            Endpoint::Embeddings => embeddings::answer(http, caller, body).await,
            Endpoint::Responses => {
                // Longer than the number of any response that is not a batch's.
                let response = format!("{}b{number}", batch.trim_start_matches("batch_"));
                responses::answer(http, caller, &response, body, own).await
            }
        }
    }

    /// How long to wait when the daemon could not: twice as long each time, and told once.
    fn note(&self, problem: &Problem, pause: &mut Duration) -> Duration {
        if *pause == *BATCH_RETRY.start() {
            tracing::warn!(batch = %self.batch, line = self.number, why = %problem, "a batch's line waits");
        }
        std::mem::replace(pause, (*pause * 2).min(*BATCH_RETRY.end()))
    }
}

impl Outcome {
    /// That of a line of this batch, with this number and the client's name for it.
    pub(super) fn new(
        (batch, number, custom_id): (&str, u64, String),
        request_id: String,
        answered: Result<String, Problem>,
    ) -> Self {
        let (good, status, body) = match answered {
            Ok(body) => (true, 200, body),
            Err(problem) => (false, problem.status().as_u16(), Dialect::OpenAi.error(&problem).to_string()),
        };
        let id = format!("batch_req_{}_{number}", batch.trim_start_matches("batch_"));
        let custom_id = Value::from(custom_id);
        // The body as it would be alone, to the last digit.
        let told = format!(
            r#"{{"id":"{id}","custom_id":{custom_id},"response":{{"status_code":{status},"request_id":"{request_id}","body":{body}}},"error":null}}"#
        );
        Self { line: number, good, told }
    }
}

/// As much of a name as a label holds.
fn label(custom_id: &str) -> String {
    let mut end = custom_id.len().min(MAX_LABEL_BYTES);
    while !custom_id.is_char_boundary(end) {
        end -= 1;
    }
    custom_id[..end].to_owned()
}
