//! The task of one batch: reads the file, keeps some requests under way, writes results down as they come, and makes files of
//! them at the end.
//!
//! Results go to the object store in segments, each with the record's new counts in the same transaction. So what a restart
//! finds is the record, the segments that belong to it, and jobs that their keys lead back to.

use super::super::{chat, completions, embeddings, files};
use super::lines::{Endpoint, Line, Lines, endpoint};
use super::record::{self, Batch, LineError, Running, Status};
use crate::http::Http;
use crate::http::caller::Caller;
use crate::http::dialect::Dialect;
use crate::http::problem::{Kind, Problem};
use crate::http::responses;
use crate::limits::{
    BATCH_IN_FLIGHT, BATCH_RETRY, BATCH_SEGMENT_BYTES, BATCH_SEGMENT_TIME, MAX_BATCH_ERRORS, MAX_LABEL_BYTES,
};
use actix_web::web;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use tokio::sync::watch;
use zllm_state::{Object, ObjectName, ObjectOrder};
use zllm_wire::limits::MAX_BATCH_JOBS;
use zllm_wire::{BatchId, Class, IdempotencyKey, Submit};

/// What segments of results are called in the object store; each batch is a tenant of its own there.
const SEGMENT_KIND: &str = "batch_results";

/// One result.
#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    /// The line that it answers.
    line: u64,
    /// Whether it is an answer, and no error.
    good: bool,
    /// What the client reads: a line of JSON.
    told: String,
}

/// Drives a batch to its end.
///
/// # Errors
/// The disk's; what was at work goes on with the next start.
pub(super) async fn drive(
    http: &web::Data<Http>,
    caller: &Caller,
    id: &str,
    stopped: watch::Receiver<bool>,
) -> Result<(), Problem> {
    let batch = record::find(http, caller, id).await?;
    let mark = http.services.objects.get(Running::name(id)).await?;
    let cancelled = mark.map(|mark| Running::of(&mark)).transpose()?.is_some_and(|mark| mark.cancelled);
    let path = endpoint(&batch.endpoint)?;
    let mut driver = Driver {
        http,
        caller,
        path,
        stopped,
        cancelled,
        batch,
        waiting: Vec::new(),
        waiting_bytes: 0,
        segments: 0,
        done: HashSet::new(),
    };
    driver.run().await
}

struct Driver<'a> {
    http: &'a web::Data<Http>,
    caller: &'a Caller,
    path: Endpoint,
    stopped: watch::Receiver<bool>,
    cancelled: bool,
    batch: Batch,
    /// Results that are not on disk yet, and about their bytes.
    waiting: Vec<Outcome>,
    waiting_bytes: usize,
    segments: u64,
    /// Lines whose results are there.
    done: HashSet<u64>,
}

impl Driver<'_> {
    async fn run(&mut self) -> Result<(), Problem> {
        if self.batch.status == Status::Validating && !self.validate().await? {
            return self.end().await;
        }
        self.find_results().await?;
        let expired = !self.batch.status.is_over() && self.answer_all().await?;
        let end = match (self.cancelled, expired) {
            (true, _) => Status::Cancelled,
            (false, true) => Status::Expired,
            (false, false) => Status::Completed,
        };
        self.flush().await?;
        if !self.cancelled {
            self.batch.become_(Status::Finalizing, self.http.unix_s());
            self.store(Vec::new()).await?;
        }
        self.batch.output_file_id = self.file(true).await?;
        self.batch.error_file_id = self.file(false).await?;
        self.batch.become_(end, self.http.unix_s());
        self.end().await
    }

    /// Reads all lines; whether they can be asked.
    async fn validate(&mut self) -> Result<bool, Problem> {
        let (mut errors, mut ids, mut total) = (Vec::new(), HashMap::new(), 0);
        let mut lines = self.lines().await?;
        loop {
            let (number, text) = match lines.next().await {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(problem) => {
                    errors.push(LineError::of_file(problem));
                    break;
                }
            };
            total += 1;
            match Line::parse(number, &text, &self.batch.endpoint) {
                Ok(line) => {
                    if let Some(first) = ids.insert(line.custom_id, number) {
                        errors.push(LineError {
                            code: "duplicate_custom_id".to_owned(),
                            message: format!("line {first} has the same custom_id"),
                            param: Some("custom_id".to_owned()),
                            line: Some(number),
                        });
                    }
                }
                Err(error) => errors.push(error),
            }
            if errors.len() >= MAX_BATCH_ERRORS || total > MAX_BATCH_JOBS {
                break;
            }
        }
        let about_the_file = |message: String| LineError::of_file(Problem::of("input_file_id", message));
        if total == 0 && errors.is_empty() {
            errors.push(about_the_file("the file has no requests".to_owned()));
        }
        if total > MAX_BATCH_JOBS {
            errors.push(about_the_file(format!("the file has more than {MAX_BATCH_JOBS} requests")));
        }
        let now = self.http.unix_s();
        if errors.is_empty() {
            self.batch.request_counts.total = total as u64;
            self.batch.become_(Status::InProgress, now);
            self.store(Vec::new()).await?;
            return Ok(true);
        }
        self.batch.fail(errors, now);
        Ok(false)
    }

    async fn lines(
        &self,
    ) -> Result<Lines<impl futures_util::Stream<Item = Result<Vec<u8>, Problem>> + Unpin + use<>>, Problem>
    {
        let file = files::find(self.http, self.caller, &self.batch.input_file_id).await?;
        Ok(Lines::new(files::pieces(self.http.clone(), file)))
    }

    /// Asks all lines that have no result; whether the time was over before.
    async fn answer_all(&mut self) -> Result<bool, Problem> {
        let mut lines = self.lines().await?;
        let mut in_flight = FuturesUnordered::new();
        let mut stopped = self.stopped.clone();
        let mut flush = tokio::time::interval(BATCH_SEGMENT_TIME);
        let (http, caller, path) = (self.http.clone(), self.caller.clone(), self.path);
        let mut more = true;
        while (more || !in_flight.is_empty()) && !self.cancelled {
            if self.http.unix_s() >= self.batch.expires_at {
                return Ok(true);
            }
            while more && in_flight.len() < BATCH_IN_FLIGHT {
                match lines.next().await? {
                    None => more = false,
                    Some((number, _)) if self.done.contains(&number) => {}
                    Some((number, text)) => {
                        let (http, caller, batch) = (http.clone(), caller.clone(), self.batch.id.clone());
                        let endpoint = self.batch.endpoint.clone();
                        in_flight.push(async move {
                            answer(&http, &caller, &batch, (path, &endpoint), (number, text)).await
                        });
                    }
                }
            }
            tokio::select! {
                Some(outcome) = in_flight.next() => self.take(outcome).await?,
                _ = flush.tick() => self.flush().await?,
                Ok(()) = stopped.changed() => {
                    self.cancelled = true;
                    self.batch.become_(Status::Cancelling, self.http.unix_s());
                    self.store(Vec::new()).await?;
                }
            }
        }
        Ok(false)
    }

    async fn take(&mut self, outcome: Outcome) -> Result<(), Problem> {
        let counts = &mut self.batch.request_counts;
        *(if outcome.good { &mut counts.completed } else { &mut counts.failed }) += 1;
        self.done.insert(outcome.line);
        self.waiting_bytes += outcome.told.len();
        self.waiting.push(outcome);
        if self.waiting_bytes >= BATCH_SEGMENT_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Writes down the results that wait.
    async fn flush(&mut self) -> Result<(), Problem> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let segment = Object {
            name: ObjectName::new(SEGMENT_KIND, &self.batch.id, &format!("{:08}", self.segments)),
            created_ms: self.http.services.clock.unix_ms(),
            expires_ms: None,
            value: serde_json::to_vec(&self.waiting).expect("results become JSON"),
            content: None,
        };
        self.store(vec![segment]).await?;
        self.segments += 1;
        self.waiting.clear();
        self.waiting_bytes = 0;
        Ok(())
    }

    async fn store(&self, mut with: Vec<Object>) -> Result<(), Problem> {
        with.push(self.batch.object(self.caller));
        Ok(self.http.services.objects.put(with).await?)
    }

    /// Which results an earlier run has written down. Their counts are the record's.
    async fn find_results(&mut self) -> Result<(), Problem> {
        let mut after = None;
        while let Some(segment) = self.segment(after).await? {
            after = Some(segment.name.id.clone());
            self.segments += 1;
            self.done.extend(outcomes(&segment)?.iter().map(|outcome| outcome.line));
        }
        Ok(())
    }

    /// The segment behind this one, in order.
    async fn segment(&self, after: Option<String>) -> Result<Option<Object>, Problem> {
        let objects = &self.http.services.objects;
        let order = ObjectOrder::OldestFirst;
        let page = objects.list(SEGMENT_KIND, self.batch.id.clone(), after, 1, order).await?;
        Ok(page.unwrap_or_default().pop())
    }

    /// A file of the answers, or of the errors; `None` where there are none.
    async fn file(&self, good: bool) -> Result<Option<String>, Problem> {
        let mut upload = None;
        let mut after = None;
        while let Some(segment) = self.segment(after).await? {
            after = Some(segment.name.id.clone());
            for outcome in outcomes(&segment)?.iter().filter(|outcome| outcome.good == good) {
                let upload = match &mut upload {
                    Some(upload) => upload,
                    None => upload.insert(self.http.services.objects.upload()?),
                };
                upload.write((outcome.told.clone() + "\n").as_bytes()).await?;
            }
        }
        let Some(upload) = upload else { return Ok(None) };
        let what = if good { "output" } else { "errors" };
        let name = format!("{}_{what}.jsonl", self.batch.id);
        let record = files::record(self.http, self.caller, &name, "batch_output");
        let id = record.name.id.clone();
        upload.put(record).await?;
        Ok(Some(id))
    }

    /// The record is as it is to stay.
    async fn end(&mut self) -> Result<(), Problem> {
        self.store(Vec::new()).await?;
        let (id, segments) = (self.batch.id.clone(), self.segments);
        let done = self.http.services.objects.with(move |store, _| {
            let segments =
                (0..segments).map(|number| ObjectName::new(SEGMENT_KIND, &id, &format!("{number:08}")));
            store.delete(&segments.chain([Running::name(&id)]).collect::<Vec<_>>())
        });
        done.await?;
        Ok(())
    }
}

fn outcomes(segment: &Object) -> Result<Vec<Outcome>, Problem> {
    serde_json::from_slice(&segment.value)
        .map_err(|error| Problem::new(Kind::Failed, format!("a batch's results cannot be read: {error}")))
}

/// Asks one line, as often as there is no room.
async fn answer(
    http: &web::Data<Http>,
    caller: &Caller,
    batch: &str,
    (path, endpoint): (Endpoint, &str),
    (number, text): (u64, Vec<u8>),
) -> Outcome {
    let line = match Line::parse(number, &text, endpoint) {
        Ok(line) => line,
        // It was right when the batch began.
        Err(error) => {
            return Outcome {
                line: number,
                good: false,
                told: json!({ "error": error.message }).to_string(),
            };
        }
    };
    let own = |submit: &mut Submit| {
        submit.detached = true;
        submit.class = Class::Batch;
        submit.batch = BatchId::new(batch.to_owned()).ok();
        submit.key = IdempotencyKey::new(format!("{batch}:{number}")).ok();
        submit.label = Some(label(&line.custom_id));
    };
    let (body, batch_number) = (line.body.to_string(), batch.trim_start_matches("batch_"));
    // Longer than the number of any response that is not a batch's.
    let response_number = format!("{batch_number}b{number}");
    let answered = loop {
        let answered = match path {
            Endpoint::Chat => chat::answer(http, caller, body.as_bytes(), own).await,
            Endpoint::Completions => completions::answer(http, caller, body.as_bytes(), own).await,
            Endpoint::Embeddings => embeddings::answer(http, caller, body.as_bytes()).await,
            Endpoint::Responses => {
                responses::answer(http, caller, &response_number, body.as_bytes(), own).await
            }
        };
        match answered {
            Err(Problem { kind: Kind::Busy { retry_after }, .. }) => tokio::time::sleep(retry_after).await,
            // Somebody drains the daemon, or it is about to stop.
            Err(Problem { kind: Kind::Unavailable, .. }) => tokio::time::sleep(BATCH_RETRY).await,
            answered => break answered,
        }
    };
    let (good, status, body) = match answered {
        Ok(body) => (true, 200, body),
        Err(problem) => (false, problem.status().as_u16(), Dialect::OpenAi.error(&problem).to_string()),
    };
    let id = format!("batch_req_{batch_number}_{number}");
    let (custom_id, request_id) = (Value::from(line.custom_id), http.fresh_id("req_"));
    // The body as it would be alone, to the last digit.
    let told = format!(
        r#"{{"id":"{id}","custom_id":{custom_id},"response":{{"status_code":{status},"request_id":"{request_id}","body":{body}}},"error":null}}"#
    );
    Outcome { line: number, good, told }
}

/// As much of a name as a label holds.
fn label(custom_id: &str) -> String {
    let mut end = custom_id.len().min(MAX_LABEL_BYTES);
    while !custom_id.is_char_boundary(end) {
        end -= 1;
    }
    custom_id[..end].to_owned()
}

impl LineError {
    fn of_file(problem: Problem) -> Self {
        Self { code: "invalid_file".to_owned(), message: problem.message, param: problem.param, line: None }
    }
}
