//! `/v1/chat/completions`.

mod messages;
mod words;

use super::answer;
use super::params::Params;
use crate::http::Http;
use crate::http::caller::Caller;
use crate::http::conversation::Conversation;
use crate::http::problem::Problem;
use crate::http::tools;
use crate::http::turn::Turn;
pub(in crate::http) use messages::Message as ChatMessage;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
pub(super) use words::ChatCompletion;
use words::Words;
use zllm_wire::Submit;
use zllm_wire::limits::MAX_LOGPROBS;

/// What only chat completions have.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ChatRequest")]
pub(super) struct Request {
    model: String,
    messages: Vec<ChatMessage>,
    /// The newer name of `max_tokens`.
    max_completion_tokens: Option<u32>,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
    response_format: Option<Map<String, Value>>,
    tools: Option<Vec<Value>>,
    /// `auto` or `none`.
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    functions: Option<Value>,
    modalities: Option<Vec<String>>,
}

impl answer::Request for Request {
    type Words = Words;

    fn model(&self) -> &str {
        &self.model
    }

    async fn begin(
        self,
        params: Params,
        http: &Http,
        caller: &Caller,
        change: impl FnOnce(&mut Submit),
    ) -> Result<(Turn, Words), Problem> {
        let mut submit = submit(self, params)?;
        change(&mut submit);
        let turn = Turn::begin(http, caller, submit).await;
        // What others call so is a flag here.
        Ok((turn.map_err(|problem| problem.renamed("logprobs", "top_logprobs"))?, Words::default()))
    }
}

/// # Errors
/// What cannot be honoured.
fn submit(request: Request, params: Params) -> Result<Submit, Problem> {
    refuse_what_is_not_served(&request)?;
    let mut generation = params.into_generation()?;
    if let Some(newer) = request.max_completion_tokens {
        if generation.max_tokens.is_some_and(|older| older != newer) {
            let message = "max_tokens and max_completion_tokens differ; give one of them";
            return Err(Problem::of("max_completion_tokens", message));
        }
        if newer == 0 {
            let message = "max_completion_tokens is 0; at least 1 works";
            return Err(Problem::of("max_completion_tokens", message));
        }
        generation.max_tokens = Some(newer);
    }
    generation.logprobs = match (request.logprobs, request.top_logprobs) {
        (Some(true), top) => Some(top.unwrap_or(0)),
        (_, Some(top)) if top > 0 => {
            return Err(Problem::of("top_logprobs", "top_logprobs has no effect without \"logprobs\": true"));
        }
        _ => None,
    };
    if let Some(top) = generation.logprobs.filter(|top| *top > MAX_LOGPROBS) {
        let message = format!("top_logprobs is {top}, must be from 0 to {MAX_LOGPROBS}");
        return Err(Problem::of("top_logprobs", message));
    }
    let conversation = Conversation {
        messages: ChatMessage::neutral(request.messages)?,
        tools: tools::shown(request.tools, request.tool_choice)?,
    };
    Ok(Submit::new(request.model, conversation.into_prompt()?, generation))
}

fn refuse_what_is_not_served(request: &Request) -> Result<(), Problem> {
    if let Some(format) = &request.response_format
        && format.get("type").is_some_and(|kind| kind != "text")
    {
        let message = "response_format of another type than \"text\" is not served yet";
        return Err(Problem::of("response_format", message));
    }
    if request.functions.as_ref().is_some_and(|functions| !functions.is_null()) {
        return Err(Problem::of("functions", "functions is not served; use tools"));
    }
    if request.parallel_tool_calls == Some(false)
        && request.tools.as_ref().is_some_and(|tools| !tools.is_empty())
    {
        let message = "parallel_tool_calls false is not served: the model may call several tools";
        return Err(Problem::of("parallel_tool_calls", message));
    }
    let other = request.modalities.iter().flatten().find(|modality| *modality != "text");
    if let Some(other) = other {
        let message = format!("modalities has {other:?}; the model answers with text");
        return Err(Problem::of("modalities", message));
    }
    Ok(())
}
