//! `/v1/chat/completions`.

use super::Refused;
use super::answer::{self, Api, Asked};
use super::params::Params;
use crate::http::problem::Problem;
use crate::http::turn::Turn;
use crate::http::{Http, body};
use actix_web::{HttpResponse, web};
use serde::Deserialize;
use serde_json::{Map, Value};
use zllm_wire::limits::MAX_LOGPROBS;
use zllm_wire::{Prompt, Submit};

#[derive(Debug, Deserialize)]
struct Chat {
    model: String,
    messages: Vec<Map<String, Value>>,
    /// The newer name of `max_tokens`.
    max_completion_tokens: Option<u32>,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
    response_format: Option<Map<String, Value>>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    functions: Option<Value>,
    modalities: Option<Vec<String>>,
}

pub(super) async fn create(http: web::Data<Http>, payload: web::Payload) -> Result<HttpResponse, Refused> {
    let body = body::read(payload).await?;
    let chat: Chat = body::parse(&body)?;
    let params: Params = body::parse(&body)?;
    drop(body);
    let asked = Asked {
        api: Api::Chat,
        model: chat.model.clone(),
        created: http.services.clock.unix_ms() / 1000,
        stream: params.stream.unwrap_or(false),
        include_usage: params.include_usage(),
    };
    let turn = Turn::begin(&http, submit(chat, params)?).await?;
    answer::give(turn, asked).await
}

/// # Errors
/// What cannot be honoured.
fn submit(chat: Chat, params: Params) -> Result<Submit, Problem> {
    refuse_what_is_not_served(&chat)?;
    let mut generation = params.into_generation()?;
    if let Some(newer) = chat.max_completion_tokens {
        if generation.max_tokens.is_some_and(|older| older != newer) {
            let message = "max_tokens and max_completion_tokens differ; give one of them";
            return Err(Problem::of("max_completion_tokens", message));
        }
        generation.max_tokens = Some(newer);
    }
    generation.logprobs = match (chat.logprobs, chat.top_logprobs) {
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
    let prompt = conversation(chat.messages, chat.tools, chat.tool_choice)?;
    Ok(Submit::new(chat.model, prompt, generation))
}

fn refuse_what_is_not_served(chat: &Chat) -> Result<(), Problem> {
    if let Some(format) = &chat.response_format
        && format.get("type").is_some_and(|kind| kind != "text")
    {
        let message = "response_format of another type than \"text\" is not served yet";
        return Err(Problem::of("response_format", message));
    }
    if chat.functions.as_ref().is_some_and(|functions| !functions.is_null()) {
        return Err(Problem::of("functions", "functions is not served; use tools"));
    }
    let other = chat.modalities.iter().flatten().find(|modality| *modality != "text");
    if let Some(other) = other {
        return Err(Problem::of(
            "modalities",
            format!("modalities has {other:?}; the model answers with text"),
        ));
    }
    Ok(())
}

fn conversation(
    messages: Vec<Map<String, Value>>,
    tools: Option<Vec<Value>>,
    choice: Option<Value>,
) -> Result<Prompt, Problem> {
    if messages.is_empty() {
        return Err(Problem::of("messages", "messages is empty; give at least one"));
    }
    let messages = messages.into_iter().enumerate().map(|(place, message)| plain_message(place, message));
    let messages: Vec<Value> = messages.collect::<Result<_, _>>()?;
    let tools = tools.filter(|tools| !tools.is_empty());
    let tools = match choice {
        None | Some(Value::Null) => tools,
        Some(choice) if choice == "auto" => tools,
        // Not to be called, so not to be spoken of.
        Some(choice) if choice == "none" => None,
        Some(_) => {
            let message = "tool_choice other than \"auto\" and \"none\" is not served yet";
            return Err(Problem::of("tool_choice", message));
        }
    };
    if let Some(place) = tools.iter().flatten().position(|tool| tool["function"]["strict"] == true) {
        let param = format!("tools[{place}].function.strict");
        return Err(Problem::of(&param, format!("{param} is not served yet")));
    }
    Ok(Prompt::Chat {
        messages_json: Value::Array(messages).to_string(),
        tools_json: tools.map(|tools| Value::Array(tools).to_string()),
        template: None,
    })
}

/// A message whose content is text: chat templates know no parts of it. Parts are joined with line feeds.
fn plain_message(place: usize, mut message: Map<String, Value>) -> Result<Value, Problem> {
    let problem = |field: &str, what: &str| {
        let param = format!("messages[{place}].{field}");
        Problem::of(&param, format!("{param} {what}"))
    };
    let role = match message.get("role") {
        // What models call "system" is "developer" to newer clients.
        Some(Value::String(role)) if role == "developer" => "system".to_owned(),
        Some(Value::String(role)) if matches!(role.as_str(), "system" | "user" | "assistant" | "tool") => {
            role.clone()
        }
        Some(Value::String(role)) => {
            let shown: String = role.chars().take(40).collect();
            let known = "system, developer, user, assistant and tool work";
            return Err(problem("role", &format!("is {shown:?}; {known}")));
        }
        Some(_) => return Err(problem("role", "is not a text")),
        None => return Err(problem("role", "is missing")),
    };
    let calls =
        message.get("tool_calls").is_some_and(|calls| calls.as_array().is_some_and(|list| !list.is_empty()));
    match message.get("content") {
        Some(Value::String(_)) => {}
        None | Some(Value::Null) if role == "assistant" && calls => {}
        None | Some(Value::Null) => return Err(problem("content", "is missing")),
        Some(Value::Array(parts)) => {
            let texts: Vec<&str> = parts
                .iter()
                .map(part_text)
                .collect::<Result<_, _>>()
                .map_err(|what| problem("content", &what))?;
            let content = texts.join("\n");
            message.insert("content".into(), content.into());
        }
        Some(_) => return Err(problem("content", "is neither a text nor a list of parts")),
    }
    message.insert("role".into(), role.into());
    Ok(Value::Object(message))
}

fn part_text(part: &Value) -> Result<&str, String> {
    match (part["type"].as_str(), part["text"].as_str(), part["refusal"].as_str()) {
        (Some("text"), Some(text), _) | (Some("refusal"), _, Some(text)) => Ok(text),
        (Some(kind @ ("text" | "refusal")), ..) => Err(format!("has a part of type {kind:?} without one")),
        (Some(kind), ..) => {
            let shown: String = kind.chars().take(40).collect();
            Err(format!("has a part of type {shown:?}; the model takes text"))
        }
        (None, ..) => Err("has a part without a type".into()),
    }
}
