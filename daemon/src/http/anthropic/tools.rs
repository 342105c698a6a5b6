//! Tools, and whether the model may call them.

use super::marks::CacheControl;
use crate::http::problem::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// A tool.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "MessagesTool")]
pub(super) struct Tool {
    /// `custom`, or nothing. Those of other types are Anthropic's own, and left out.
    #[serde(rename = "type")]
    kind: Option<String>,
    name: Option<String>,
    description: Option<String>,
    /// A JSON schema.
    input_schema: Option<Map<String, Value>>,
    strict: Option<bool>,
    pub(super) cache_control: Option<CacheControl>,
}

/// Whether the model may call them.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "MessagesToolChoice")]
pub(super) struct Choice {
    /// `auto` or `none`.
    #[serde(rename = "type")]
    kind: String,
    disable_parallel_tool_use: Option<bool>,
}

/// The tools to show, in OpenAI's form. Only what the model may decide by itself is served: `choice` auto or none.
///
/// # Errors
/// What cannot be honoured, by its name.
pub(super) fn shown(tools: &[Tool], choice: Option<&Choice>) -> Result<Vec<Value>, Problem> {
    let tools: Result<Vec<Option<Value>>, Problem> =
        tools.iter().enumerate().map(|(place, tool)| tool.shown(place)).collect();
    let tools = tools?.into_iter().flatten().collect();
    let Some(Choice { kind, disable_parallel_tool_use }) = choice else { return Ok(tools) };
    if *disable_parallel_tool_use == Some(true) {
        let field = "tool_choice.disable_parallel_tool_use";
        return Err(Problem::of(field, format!("{field} is not served yet")));
    }
    match kind.as_str() {
        "auto" => Ok(tools),
        // Not to be called, so not to be spoken of.
        "none" => Ok(Vec::new()),
        _ => {
            let message = "tool_choice.type other than \"auto\" and \"none\" is not served yet";
            Err(Problem::of("tool_choice.type", message))
        }
    }
}

impl Tool {
    /// `None` where it is left out.
    fn shown(&self, place: usize) -> Result<Option<Value>, Problem> {
        if let Some(kind) = self.kind.as_deref().filter(|kind| *kind != "custom") {
            let kind: String = kind.chars().take(40).collect();
            tracing::warn!(kind, "a tool of Anthropic's own is left out: nothing here runs it");
            return Ok(None);
        }
        let refused = |field: &str, what: &str| {
            let param = format!("tools[{place}].{field}");
            Err(Problem::of(&param, format!("{param} {what}")))
        };
        if self.strict == Some(true) {
            return refused("strict", "is not served yet");
        }
        let Some(name) = self.name.as_deref().filter(|name| !name.is_empty()) else {
            return refused("name", "is missing");
        };
        let Some(schema) = &self.input_schema else { return refused("input_schema", "is missing") };
        let mut function = Map::new();
        function.insert("name".to_owned(), name.into());
        if let Some(description) = &self.description {
            function.insert("description".to_owned(), description.as_str().into());
        }
        function.insert("parameters".to_owned(), schema.clone().into());
        Ok(Some(json!({ "type": "function", "function": function })))
    }
}
