//! `/api/chat`.

use super::answer::{self, Line, ToolCall, Words};
use super::common::{Common, Ready};
use crate::http::caller::Caller;
use crate::http::conversation::{self, Call, Conversation, Role};
use crate::http::problem::Problem;
use crate::http::tools;
use crate::http::turn::Turn;
use crate::http::{Http, body};
use actix_web::{HttpResponse, web};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use zllm_wire::Submit;

/// What only chats have.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaChat")]
pub(super) struct Request {
    /// None: the model is loaded, and that is all.
    messages: Option<Vec<Message>>,
    tools: Option<Vec<Value>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaMessage")]
struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    role: String,
    content: Option<String>,
    /// What the assistant thought, as it was told.
    thinking: Option<String>,
    tool_calls: Option<Vec<PastCall>>,
    /// Of a tool's result: the tool.
    tool_name: Option<String>,
    /// Of a tool's result: the call that it answers.
    tool_call_id: Option<String>,
    images: Option<Vec<Value>>,
}

/// A call as it was told.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaPastCall")]
struct PastCall {
    id: Option<String>,
    function: PastFunction,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaPastFunction")]
struct PastFunction {
    name: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

/// A chat's answer.
pub(super) type Answer = Line<Said>;

/// What a chat's line says.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaSaid")]
pub(super) struct Said {
    message: Answered,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaAnswerMessage")]
struct Answered {
    /// `assistant`.
    role: &'static str,
    content: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    thinking: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

impl From<Words> for Said {
    fn from(words: Words) -> Self {
        let Words { text, thinking, calls } = words;
        Self { message: Answered { role: "assistant", content: text, thinking, tool_calls: calls } }
    }
}

pub(super) async fn create(
    http: web::Data<Http>,
    caller: Caller,
    payload: web::Payload,
) -> Result<HttpResponse, Problem> {
    let (common, request): (Common, Request) = body::two(payload).await?;
    let messages = request.messages.unwrap_or_default();
    if messages.is_empty() {
        let Ready { asked, .. } = common.only_load(&http).await?;
        return Ok(answer::loaded::<Said>(&http, asked));
    }
    let messages: Result<_, _> =
        messages.into_iter().enumerate().map(|(place, message)| message.neutral(place)).collect();
    let conversation = Conversation { messages: messages?, tools: tools::shown(request.tools, None)? };
    let Ready { model, generation, asked } = common.prepare(&http, true).await?;
    let submit = Submit::new(model, conversation.into_prompt()?, generation);
    let turn = Turn::begin(&http, &caller, submit).await?;
    answer::give::<Said>(http, turn, asked).await
}

impl Message {
    fn neutral(self, place: usize) -> Result<conversation::Message, Problem> {
        let problem = |field: &str, what: &str| {
            let param = format!("messages[{place}].{field}");
            Problem::of(&param, format!("{param} {what}"))
        };
        let role = match self.role.as_str() {
            "system" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            other => {
                let shown: String = other.chars().take(40).collect();
                let known = "system, user, assistant and tool work";
                return Err(problem("role", &format!("is {shown:?}; {known}")));
            }
        };
        if self.images.is_some_and(|images| !images.is_empty()) {
            return Err(problem("images", "is not empty; the model takes text"));
        }
        let calls = self.tool_calls.unwrap_or_default();
        if role != Role::Assistant && !calls.is_empty() {
            return Err(problem("tool_calls", "is the assistant's to have"));
        }
        let call = |(number, call): (usize, PastCall)| Call {
            id: call.id.unwrap_or_else(|| format!("call_{place}_{number}")),
            name: call.function.name,
            arguments: Value::Object(call.function.arguments).to_string(),
        };
        Ok(conversation::Message {
            role,
            name: self.tool_name,
            text: self.content.unwrap_or_default(),
            reasoning: self.thinking,
            calls: calls.into_iter().enumerate().map(call).collect(),
            call_id: self.tool_call_id,
        })
    }
}
