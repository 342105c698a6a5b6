//! `/v1/completions`: text goes on without a template.

use super::Refused;
use super::answer::{self, Api, Asked};
use super::params::Params;
use crate::http::problem::Problem;
use crate::http::turn::Turn;
use crate::http::{Http, body};
use actix_web::{HttpResponse, web};
use serde::Deserialize;
use serde_json::Value;
use zllm_wire::limits::MAX_LOGPROBS;
use zllm_wire::{Prompt, Submit, TokenIds};

#[derive(Debug, Deserialize)]
struct Completion {
    model: String,
    prompt: Value,
    suffix: Option<String>,
    echo: Option<bool>,
    best_of: Option<u32>,
    logprobs: Option<u32>,
    n: Option<u32>,
}

pub(super) async fn create(http: web::Data<Http>, payload: web::Payload) -> Result<HttpResponse, Refused> {
    let body = body::read(payload).await?;
    let completion: Completion = body::parse(&body)?;
    let params: Params = body::parse(&body)?;
    drop(body);
    let asked = Asked {
        api: Api::Completions,
        model: completion.model.clone(),
        created: http.services.clock.unix_ms() / 1000,
        stream: params.stream.unwrap_or(false),
        include_usage: params.include_usage(),
    };
    let turn = Turn::begin(&http, submit(completion, params)?).await?;
    answer::give(turn, asked).await
}

/// # Errors
/// What cannot be honoured.
fn submit(completion: Completion, params: Params) -> Result<Submit, Problem> {
    if completion.suffix.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(Problem::of("suffix", "suffix is not served: the model goes on behind the prompt"));
    }
    if completion.echo == Some(true) {
        return Err(Problem::of("echo", "echo is not served yet; the prompt is in the request"));
    }
    if completion.best_of.is_some_and(|best_of| best_of != completion.n.unwrap_or(1)) {
        let message = "best_of is not served, unless it is n: every answer that is computed is given";
        return Err(Problem::of("best_of", message));
    }
    let mut generation = params.into_generation()?;
    if let Some(top) = completion.logprobs.filter(|top| *top > MAX_LOGPROBS) {
        let message = format!("logprobs is {top}, must be from 0 to {MAX_LOGPROBS}");
        return Err(Problem::of("logprobs", message));
    }
    generation.logprobs = completion.logprobs;
    Ok(Submit::new(completion.model, prompt(completion.prompt)?, generation))
}

/// A text as it is, or token ids as they are; either may be the only one of a list.
fn prompt(prompt: Value) -> Result<Prompt, Problem> {
    let text = |text| Ok(Prompt::Text { text, parse_special: true });
    match prompt {
        Value::String(prompt) => text(prompt),
        Value::Array(mut list) if list.len() == 1 && !list[0].is_number() => match list.remove(0) {
            Value::String(prompt) => text(prompt),
            inner => tokens(inner),
        },
        Value::Array(list) if list.iter().any(|item| !item.is_number()) => {
            Err(Problem::of("prompt", "prompt is a list of several; give each a request of its own"))
        }
        list => tokens(list),
    }
}

fn tokens(list: Value) -> Result<Prompt, Problem> {
    let tokens: Result<Vec<u32>, _> = serde_json::from_value(list);
    let tokens =
        tokens.map_err(|_| Problem::of("prompt", "prompt is neither a text nor a list of token ids"))?;
    Ok(Prompt::Tokens(TokenIds(tokens)))
}
