//! The messages of a chat completion.

use crate::http::conversation::{self, Call, Role};
use crate::http::problem::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// A message.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ChatMessage")]
pub(in crate::http) struct Message {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    role: String,
    /// A text, or a list of parts with texts. An assistant's that calls tools may have none.
    content: Option<Value>,
    name: Option<String>,
    tool_calls: Option<Vec<ToolCall>>,
    /// Of a tool's result: the call that it answers.
    tool_call_id: Option<String>,
    /// What the assistant thought, as it was told.
    reasoning_content: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct ToolCall {
    #[serde(default)]
    id: String,
    function: Function,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Function {
    name: String,
    /// JSON text.
    #[serde(default)]
    arguments: String,
}

impl Message {
    /// As every API has them.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub(in crate::http) fn neutral(messages: Vec<Self>) -> Result<Vec<conversation::Message>, Problem> {
        messages.into_iter().enumerate().map(|(place, message)| message.into_neutral(place)).collect()
    }

    fn into_neutral(self, place: usize) -> Result<conversation::Message, Problem> {
        let problem = |field: &str, what: &str| {
            let param = format!("messages[{place}].{field}");
            Problem::of(&param, format!("{param} {what}"))
        };
        let role = match self.role.as_str() {
            // What models call "system" is "developer" to newer clients.
            "system" | "developer" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            other => {
                let shown: String = other.chars().take(40).collect();
                let known = "system, developer, user, assistant and tool work";
                return Err(problem("role", &format!("is {shown:?}; {known}")));
            }
        };
        let calls = self.tool_calls.unwrap_or_default();
        if role != Role::Assistant && !calls.is_empty() {
            return Err(problem("tool_calls", "is the assistant's to have"));
        }
        let text = match self.content {
            Some(Value::String(text)) => text,
            None | Some(Value::Null) if !calls.is_empty() => String::new(),
            None | Some(Value::Null) => return Err(problem("content", "is missing")),
            Some(Value::Array(parts)) if parts.is_empty() => {
                return Err(problem("content", "is an empty list"));
            }
            Some(Value::Array(parts)) => {
                let texts: Result<Vec<&str>, String> = parts.iter().map(part_text).collect();
                texts.map_err(|what| problem("content", &what))?.join("\n")
            }
            Some(_) => return Err(problem("content", "is neither a text nor a list of parts")),
        };
        let call = |call: ToolCall| Call {
            id: call.id,
            name: call.function.name,
            arguments: call.function.arguments,
        };
        Ok(conversation::Message {
            role,
            name: self.name,
            text,
            reasoning: self.reasoning_content,
            calls: calls.into_iter().map(call).collect(),
            call_id: self.tool_call_id,
        })
    }
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
