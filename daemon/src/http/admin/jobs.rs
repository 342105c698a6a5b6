//! Jobs: submitted detached, so that they are durable, then looked at, steered, and read from any event on.

use super::Done;
use crate::device::port::Objection;
use crate::http::caller::Caller;
use crate::http::dialect::Dialect;
use crate::http::models::known;
use crate::http::problem::{Kind, Problem};
use crate::http::router::{Operation, Router};
use crate::http::{Http, body, sse};
use crate::limits::STREAM_PING;
use crate::scheduler::log::LogReader;
use crate::scheduler::{HoldJob, ReadLog, SetClass};
use crate::services::submit;
use actix_web::web::{self, Bytes, Json};
use actix_web::{HttpRequest, HttpResponse};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use zllm_wire::{
    BatchId, CacheStory, Class, Event, GenerationParams, IdempotencyKey, JobDetail, JobId, JobInfo, Prompt,
    SessionId, Submit, Tenant, TokenIds,
};

type Job = web::Path<JobId>;

pub(super) fn routes(router: &mut Router) {
    let list = Operation::new("List the jobs, latest first").gives::<Jobs>();
    router.get("/zllm/v1/jobs", web::to(self::list), list);
    let submit = Operation::new("Make a durable job").takes::<NewJob>().gives::<Accepted>();
    router.post("/zllm/v1/jobs", web::to(self::submit), submit);
    let show = Operation::new("Tell of a job in full").gives::<JobDetail>();
    router.get("/zllm/v1/jobs/{job}", web::to(self::show), show);
    let events = Operation::new("Read a job's events, those to come too").query::<Place>();
    router.get("/zllm/v1/jobs/{job}/events", web::to(self::events), events.gives_type("text/event-stream"));
    let why = Operation::new("Tell why a job found what it found in the cache").gives::<CacheStory>();
    router.get("/zllm/v1/jobs/{job}/why", web::to(self::why), why);
    let hold = Operation::new("Let a job wait until it is released").gives::<Done>();
    router.post("/zllm/v1/jobs/{job}/hold", web::to(self::hold), hold);
    let release = Operation::new("Let a held job have its turn").gives::<Done>();
    router.post("/zllm/v1/jobs/{job}/release", web::to(self::release), release);
    let class = Operation::new("Make a job more or less urgent").takes::<NewClass>().gives::<Done>();
    router.post("/zllm/v1/jobs/{job}/class", web::to(set_class), class);
}

/// Jobs.
#[derive(Debug, Serialize, JsonSchema)]
struct Jobs {
    jobs: Vec<JobInfo>,
}

async fn list(http: web::Data<Http>) -> Result<Json<Jobs>, Problem> {
    let (_, jobs) = http.services.list().await?;
    Ok(Json(Jobs { jobs }))
}

/// A job that goes on without its client.
#[derive(Debug, Deserialize, JsonSchema)]
struct NewJob {
    model: String,
    prompt: NewPrompt,
    #[serde(default)]
    params: GenerationParams,
    /// The name under which the timeline's KV is kept.
    session: Option<SessionId>,
    /// Whose it is; without it the caller's.
    tenant: Option<Tenant>,
    /// A name for people.
    label: Option<String>,
    /// `normal` unless it is named.
    #[serde(default)]
    class: Class,
    /// It fails when it has not ended so long from now.
    deadline_ms: Option<u64>,
    /// It fails when it has not started so long from now.
    max_wait_ms: Option<u64>,
    /// When the tenant submitted a job with this key before, that one is the answer.
    key: Option<IdempotencyKey>,
    batch: Option<BatchId>,
}

/// What it is given.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum NewPrompt {
    /// As it is, special tokens in it too.
    Text(String),
    /// As they are.
    Tokens(TokenIds),
    /// Through a chat template.
    Chat {
        /// As the template wants them.
        messages: Vec<Value>,
        tools: Option<Vec<Value>>,
        template: Option<NewTemplate>,
        /// Go on with the last message, the assistant's.
        #[serde(default)]
        continue_last: bool,
    },
    /// A session's timeline, and text behind it.
    Continue { session: SessionId, text: String },
}

/// A template instead of the model's.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum NewTemplate {
    Named(String),
    Source(String),
}

impl From<NewPrompt> for Prompt {
    fn from(prompt: NewPrompt) -> Self {
        match prompt {
            NewPrompt::Text(text) => Self::Text { text, parse_special: true },
            NewPrompt::Tokens(tokens) => Self::Tokens(tokens),
            NewPrompt::Continue { session, text } => Self::Continue { session, text, parse_special: true },
            NewPrompt::Chat { messages, tools, template, continue_last } => Self::Chat {
                messages_json: Value::Array(messages).to_string(),
                tools_json: tools.map(|tools| Value::Array(tools).to_string()),
                template: template.map(|template| match template {
                    NewTemplate::Named(name) => zllm_wire::Template::Named(name),
                    NewTemplate::Source(source) => zllm_wire::Template::Source(source),
                }),
                continue_last,
            },
        }
    }
}

/// A job that is on disk.
#[derive(Debug, Serialize, JsonSchema)]
struct Accepted {
    job: JobId,
    /// Whether it was there: it is the first one with that key.
    known: bool,
}

async fn submit(
    http: web::Data<Http>,
    caller: Caller,
    payload: web::Payload,
) -> Result<Json<Accepted>, Problem> {
    let new: NewJob = body::one(payload).await?;
    known(&http, &new.model)?;
    let mut request = Submit::new(new.model, new.prompt.into(), new.params);
    request.class = new.class;
    caller.own(&mut request);
    let request = Submit {
        session: new.session,
        tenant: new.tenant.or(request.tenant),
        detached: true,
        stream: false,
        label: new.label,
        deadline_ms: new.deadline_ms,
        max_wait_ms: new.max_wait_ms,
        key: new.key,
        batch: new.batch,
        ..request
    };
    let services = &http.services;
    let submitted = submit::submit(request, services.connection_id(), services).await;
    let (submitted, _) = submitted.map_err(under_params)?;
    Ok(Json(Accepted { job: submitted.job, known: submitted.known }))
}

/// What is wrong with a job's parameters, under the path that they have in its request.
fn under_params(objection: Objection) -> Problem {
    let path = |name: String| match name.as_str() {
        "max_tokens" | "min_tokens" | "stop" | "stop_tokens" | "n" | "logprobs" => format!("params.{name}"),
        _ => format!("params.sampling.{name}"),
    };
    let problem = Problem::from(objection);
    Problem { param: problem.param.map(path), ..problem }
}

async fn show(http: web::Data<Http>, job: Job) -> Result<Json<JobDetail>, Problem> {
    Ok(Json(http.services.show_job(job.into_inner()).await?))
}

async fn why(http: web::Data<Http>, job: Job) -> Result<Json<CacheStory>, Problem> {
    Ok(Json(http.services.why(job.into_inner()).await?))
}

async fn hold(http: web::Data<Http>, job: Job) -> Result<Json<Done>, Problem> {
    http.services.change_job(HoldJob { job: job.into_inner(), held: true }).await?;
    Ok(Json(Done {}))
}

async fn release(http: web::Data<Http>, job: Job) -> Result<Json<Done>, Problem> {
    http.services.change_job(HoldJob { job: job.into_inner(), held: false }).await?;
    Ok(Json(Done {}))
}

#[derive(Debug, Deserialize, JsonSchema)]
struct NewClass {
    class: Class,
}

async fn set_class(http: web::Data<Http>, job: Job, payload: web::Payload) -> Result<Json<Done>, Problem> {
    let NewClass { class } = body::one(payload).await?;
    http.services.change_job(SetClass { job: job.into_inner(), class }).await?;
    Ok(Json(Done {}))
}

/// Where in a job's log.
#[derive(Debug, Deserialize, JsonSchema)]
struct Place {
    /// Number of the first event wanted; 0, the first of all, unless a header `Last-Event-ID` says which was read.
    from: Option<u64>,
}

/// An event, as it is told.
#[derive(Serialize)]
struct Told {
    /// Its number in the job's log.
    offset: u64,
    event: Event,
}

async fn events(
    http: web::Data<Http>,
    job: Job,
    place: web::Query<Place>,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let read = request.headers().get("last-event-id").and_then(|id| id.to_str().ok()?.parse::<u64>().ok());
    let from = place.from.or(read.map(|read| read.saturating_add(1))).unwrap_or(0);
    let log = http.services.ask_scheduler(ReadLog(job.into_inner())).await??;
    let reader = Some(log.reader(from));
    Ok(sse::response(futures_util::stream::unfold(reader, |reader| async { next(reader?).await })))
}

/// The next events as bytes, and the reader of those behind them, if there are any.
async fn next(mut reader: LogReader) -> Option<(Bytes, Option<LogReader>)> {
    let Ok(read) = tokio::time::timeout(STREAM_PING, reader.next()).await else {
        return Some((Bytes::from_static(b": still there\n\n"), Some(reader)));
    };
    let mut out = Vec::new();
    match read {
        Ok(None) => None,
        Ok(Some(events)) => {
            for (offset, event) in events {
                out.extend_from_slice(format!("id: {offset}\n").as_bytes());
                sse::write(&mut out, None, &Told { offset, event });
            }
            Some((out.into(), Some(reader)))
        }
        Err(why) => {
            let problem = Problem::new(Kind::Failed, why);
            sse::write(&mut out, Some("error"), &Dialect::OpenAi.error(&problem));
            Some((out.into(), None))
        }
    }
}
