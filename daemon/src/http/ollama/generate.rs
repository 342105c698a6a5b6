//! `/api/generate`: one question, or a text to go on with.

use super::answer::{self, Line, Words};
use super::common::{Common, Ready};
use crate::http::caller::Caller;
use crate::http::conversation::{Conversation, Message, Role};
use crate::http::problem::Problem;
use crate::http::turn::Turn;
use crate::http::{Http, body};
use actix_web::{HttpResponse, web};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use zllm_wire::{Prompt, Submit};

/// What only generations have.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaGenerate")]
pub(super) struct Request {
    /// None: the model is loaded, and that is all.
    prompt: Option<String>,
    system: Option<String>,
    /// Whether the prompt is used as it is, without the model's template.
    raw: Option<bool>,
    suffix: Option<String>,
    template: Option<String>,
    context: Option<Vec<Value>>,
    images: Option<Vec<Value>>,
}

/// A generation's answer.
pub(super) type Answer = Line<Said>;

/// What a generation's line says.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaResponse")]
pub(super) struct Said {
    response: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    thinking: String,
}

/// Without tools there are no calls.
impl From<Words> for Said {
    fn from(words: Words) -> Self {
        Self { response: words.text, thinking: words.thinking }
    }
}

pub(super) async fn create(
    http: web::Data<Http>,
    caller: Caller,
    payload: web::Payload,
) -> Result<HttpResponse, Problem> {
    let (common, request): (Common, Request) = body::two(payload).await?;
    refuse_what_is_not_served(&request)?;
    let raw = request.raw == Some(true);
    let system = request.system.filter(|system| !system.is_empty());
    let Some(prompt) = request.prompt.filter(|prompt| !prompt.is_empty()) else {
        let Ready { asked, .. } = common.only_load(&http).await?;
        return Ok(answer::loaded::<Said>(&http, asked));
    };
    let prompt = if raw {
        if system.is_some() {
            return Err(Problem::of("system", "system has no effect with raw, which uses no template"));
        }
        Prompt::Text { text: prompt, parse_special: true }
    } else {
        let system = system.map(|system| Message::new(Role::System, system));
        let messages = system.into_iter().chain([Message::new(Role::User, prompt)]).collect();
        Conversation { messages, tools: Vec::new() }.into_prompt()?
    };
    let Ready { model, generation, asked } = common.prepare(&http, !raw).await?;
    let turn = Turn::begin(&http, &caller, Submit::new(model, prompt, generation)).await?;
    answer::give::<Said>(http, turn, asked).await
}

fn refuse_what_is_not_served(request: &Request) -> Result<(), Problem> {
    let given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    let listed = |list: &Option<Vec<Value>>| list.as_ref().is_some_and(|list| !list.is_empty());
    let refused = [
        ("suffix", given(&request.suffix), "is not served: the model goes on behind the prompt"),
        ("template", given(&request.template), "is not served: the model's own is used, or none with raw"),
        ("context", listed(&request.context), "is not served: send the conversation to /api/chat"),
        ("images", listed(&request.images), "is not empty; the model takes text"),
    ];
    match refused.into_iter().find(|(_, given, _)| *given) {
        Some((name, _, why)) => Err(Problem::of(name, format!("{name} {why}"))),
        None => Ok(()),
    }
}
