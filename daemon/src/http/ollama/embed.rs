//! `/api/embed`, and its older form `/api/embeddings`: texts become vectors.

use super::common::find;
use crate::http::caller::Caller;
use crate::http::problem::Problem;
use crate::http::{Http, body};
use crate::services::Owner;
use crate::services::embed::{self, Embed, Embedded};
use actix_web::web::{self, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zllm_wire::{Class, Prompt};

/// What is to be embedded. How it is sampled means nothing here; `keep_alive` has no effect.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaEmbed")]
pub(super) struct Request {
    model: String,
    input: Input,
    /// Whether what does not fit into the context is left out; it is, unless asked not to.
    truncate: Option<bool>,
    /// How many values are wanted, from the first on.
    dimensions: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaInput")]
#[serde(untagged, expecting = "a text or a list of texts is expected")]
enum Input {
    One(String),
    Several(Vec<String>),
}

/// Vectors of length 1, in the order of the texts. Durations are nanoseconds.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaEmbedded")]
pub(super) struct Answer {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u64,
}

pub(super) async fn create(
    http: web::Data<Http>,
    caller: Caller,
    payload: web::Payload,
) -> Result<Json<Answer>, Problem> {
    let request: Request = body::one(payload).await?;
    let texts = match request.input {
        Input::One(text) if text.is_empty() => Vec::new(),
        Input::One(text) => vec![text],
        Input::Several(texts) => texts,
    };
    let began = http.services.clock.now();
    let model = find(&http, &request.model)?;
    http.services.with_text(&model, |_| ()).await?;
    let load = http.services.clock.now().saturating_sub(began);
    // Nothing to embed: its clients load models so.
    let embedded = if texts.is_empty() {
        Embedded { vectors: Vec::new(), prompt_tokens: 0 }
    } else {
        embed(&http, &caller, model, texts, request.dimensions, request.truncate != Some(false)).await?
    };
    let Embedded { vectors, prompt_tokens } = embedded;
    let total = http.services.clock.now().saturating_sub(began);
    Ok(Json(Answer {
        model: request.model,
        embeddings: vectors,
        total_duration: total.as_nanos() as u64,
        load_duration: load.as_nanos() as u64,
        prompt_eval_count: prompt_tokens,
    }))
}

/// What is to be embedded, as older clients say it.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaEmbedOne")]
pub(super) struct One {
    model: String,
    prompt: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaEmbedding")]
pub(super) struct Embedding {
    embedding: Vec<f32>,
}

pub(super) async fn create_one(
    http: web::Data<Http>,
    caller: Caller,
    payload: web::Payload,
) -> Result<Json<Embedding>, Problem> {
    let One { model, prompt } = body::one(payload).await?;
    let model = find(&http, &model)?;
    if prompt.is_empty() {
        http.services.with_text(&model, |_| ()).await?;
        return Ok(Json(Embedding { embedding: Vec::new() }));
    }
    let Embedded { mut vectors, .. } = embed(&http, &caller, model, vec![prompt], None, true).await?;
    Ok(Json(Embedding { embedding: vectors.remove(0) }))
}

async fn embed(
    http: &Http,
    caller: &Caller,
    model: String,
    texts: Vec<String>,
    dimensions: Option<u32>,
    cut: bool,
) -> Result<Embedded, Problem> {
    let texts = texts.into_iter().map(|text| Prompt::Text { text, parse_special: true }).collect();
    let (tenant, class) = (caller.tenant.clone(), caller.class(Class::Interactive));
    let asked = Embed { model, texts, dimensions, cut, tenant, class };
    // Dropped when the client goes: its jobs go with it.
    let owner = Owner::new(http.services.clone());
    Ok(embed::embed(asked, owner.id(), &http.services).await?)
}
