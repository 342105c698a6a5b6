//! What the answers of chat completions and completions have in common: whole, or in chunks as they come.

use super::params::Params;
use crate::http::caller::Caller;
use crate::http::dialect::Dialect;
use crate::http::problem::Problem;
use crate::http::sse;
use crate::http::turn::{Answered, Choice, End, Said, Turn};
use crate::http::{Http, body};
use crate::limits::STREAM_PING;
use actix_web::web::Bytes;
use actix_web::{HttpResponse, web};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use zllm_wire::{FinishReason, Submit};

/// What of a request its answer repeats or depends on.
struct Asked {
    model: String,
    /// Seconds since the Unix epoch.
    created: u64,
    stream: bool,
    include_usage: bool,
}

impl Asked {
    fn new(http: &Http, model: &str, params: &Params) -> Self {
        Self {
            model: model.to_owned(),
            created: http.unix_s(),
            stream: params.stream.unwrap_or(false),
            include_usage: params.include_usage(),
        }
    }

    /// The same for an answer that nobody reads as it comes.
    ///
    /// # Errors
    /// It is to be streamed.
    fn whole(http: &Http, model: &str, params: &Params) -> Result<Self, Problem> {
        let asked = Self::new(http, model, params);
        if asked.stream {
            return Err(Problem::of(
                "stream",
                "stream is for requests that somebody listens to; leave it out",
            ));
        }
        Ok(asked)
    }
}

/// What only one of the two has in a request.
pub(super) trait Request: DeserializeOwned + Send + 'static {
    /// How it is answered.
    type Words: Wording;

    /// The model that is asked.
    fn model(&self) -> &str;

    /// Submits its job, which is changed before.
    ///
    /// # Errors
    /// What cannot be honoured, or why the job is not taken.
    async fn begin(
        self,
        params: Params,
        http: &Http,
        caller: &Caller,
        change: impl FnOnce(&mut Submit),
    ) -> Result<(Turn, Self::Words), Problem>;
}

/// How one of the two words its answers.
pub(super) trait Wording: 'static {
    /// Of its ids.
    const PREFIX: &'static str;
    /// What a whole answer is called.
    const OBJECT: &'static str;
    /// What a part of one is called.
    const CHUNK: &'static str;
    /// One of the answers to a prompt.
    type Choice: Serialize;
    /// More of one.
    type Part: Serialize;

    fn choice(&mut self, index: usize, choice: Choice) -> Self::Choice;

    /// What is told of what was said, if anything is.
    fn parts(&mut self, said: Said, job: &zllm_wire::JobId) -> Vec<Self::Part>;
}

/// A whole answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AnswerOf{Choice}")]
pub(super) struct Whole<Choice> {
    id: String,
    object: &'static str,
    /// Seconds since the Unix epoch.
    created: u64,
    model: String,
    choices: Vec<Choice>,
    usage: Usage,
}

/// Some of an answer.
#[derive(Serialize)]
struct Chunk<'a, Part> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Part>,
    /// Null in all chunks but the last, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

/// What an answer took, in tokens.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CompletionUsage")]
pub(super) struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PromptTokensDetails {
    /// Those that were not computed again.
    cached_tokens: u64,
}

impl From<&zllm_wire::Usage> for Usage {
    fn from(usage: &zllm_wire::Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.generated_tokens,
            total_tokens: usage.prompt_tokens + usage.generated_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: usage.cached_tokens },
        }
    }
}

/// Why an answer is over.
pub(super) fn finish_reason(end: &End) -> &'static str {
    match end.end.reason {
        FinishReason::Length => "length",
        _ if end.calls => "tool_calls",
        FinishReason::Stop | FinishReason::Cancelled => "stop",
    }
}

/// A token's bytes as far as they are text.
pub(super) fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Answers a request.
pub(super) async fn create<R: Request>(
    http: web::Data<Http>,
    caller: Caller,
    payload: web::Payload,
) -> Result<HttpResponse, Problem> {
    let (request, params): (R, Params) = body::two(payload).await?;
    let asked = Asked::new(&http, request.model(), &params);
    let (turn, wording) = request.begin(params, &http, &caller, |_| {}).await?;
    if asked.stream {
        let id = format!("{}-{}", R::Words::PREFIX, turn.job());
        let stream = Chunks { turn: Some(turn), id, asked, wording };
        return Ok(sse::response(futures_util::stream::unfold(stream, |mut stream| async {
            let bytes = stream.next().await?;
            Some((bytes, stream))
        })));
    }
    Ok(HttpResponse::Ok().json(whole(turn, asked, wording).await?))
}

/// The whole answer to a body, as JSON, as a job that is changed before.
///
/// # Errors
/// What is wrong with the body, or why the job failed.
pub(super) async fn answer<R: Request>(
    http: &Http,
    caller: &Caller,
    body: &[u8],
    change: impl FnOnce(&mut Submit),
) -> Result<String, Problem> {
    let (request, params): (R, Params) = body::parse_two(body)?;
    let asked = Asked::whole(http, request.model(), &params)?;
    let (turn, wording) = request.begin(params, http, caller, change).await?;
    let answer = whole(turn, asked, wording).await?;
    Ok(serde_json::to_string(&answer).expect("an answer becomes JSON"))
}

/// All of an answer.
async fn whole<W: Wording>(turn: Turn, asked: Asked, mut wording: W) -> Result<Whole<W::Choice>, Problem> {
    let id = format!("{}-{}", W::PREFIX, turn.job());
    let Answered { choices, usage } = turn.finish().await?;
    let choices = choices.into_iter().enumerate().map(|(index, choice)| wording.choice(index, choice));
    Ok(Whole {
        id,
        object: W::OBJECT,
        created: asked.created,
        model: asked.model,
        choices: choices.collect(),
        usage: Usage::from(&usage),
    })
}

/// A streamed answer.
struct Chunks<W> {
    /// `None` when all is said.
    turn: Option<Turn>,
    id: String,
    asked: Asked,
    wording: W,
}

impl<W: Wording> Chunks<W> {
    /// The next bytes; `None` after the last.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let turn = self.turn.as_mut()?;
            let Ok(said) = tokio::time::timeout(STREAM_PING, turn.next()).await else {
                return Some(Bytes::from_static(b": still there\n\n"));
            };
            let job = turn.job().clone();
            let mut out = Vec::new();
            match said {
                Ok(said) if said.is_empty() => self.turn = None,
                Ok(said) => said.into_iter().for_each(|said| self.tell(said, &job, &mut out)),
                Err(problem) => {
                    sse::write(&mut out, None, &Dialect::OpenAi.error(&problem));
                    self.turn = None;
                }
            }
            if !out.is_empty() {
                return Some(out.into());
            }
        }
    }

    fn tell(&mut self, said: Said, job: &zllm_wire::JobId, out: &mut Vec<u8>) {
        if let Said::Usage(usage) = &said {
            if self.asked.include_usage {
                self.chunk(Vec::new(), Some(Usage::from(usage)), out);
            }
            out.extend_from_slice(b"data: [DONE]\n\n");
            return;
        }
        for part in self.wording.parts(said, job) {
            self.chunk(vec![part], None, out);
        }
    }

    fn chunk(&self, choices: Vec<W::Part>, usage: Option<Usage>, out: &mut Vec<u8>) {
        let chunk = Chunk {
            id: &self.id,
            object: W::CHUNK,
            created: self.asked.created,
            model: &self.asked.model,
            choices,
            usage: self.asked.include_usage.then_some(usage),
        };
        sse::write(out, None, &chunk);
    }
}
