//! What a request asks for: the conversation, which the counting of tokens has too, and how it is answered.

use super::content::{Content, Message, neutral};
use super::marks::CacheControl;
use super::tools::{Choice, Tool, shown};
use crate::http::conversation::Conversation;
use crate::http::problem::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use zllm_wire::limits::MAX_STOP_STRINGS;
use zllm_wire::{GenerationParams, Prompt, SamplingParams};

/// The conversation.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "MessagesConversation")]
pub(super) struct Asked {
    model: String,
    pub(super) messages: Vec<Message>,
    /// A text, or a list of text blocks.
    pub(super) system: Option<Content>,
    pub(super) tools: Option<Vec<Tool>>,
    tool_choice: Option<Choice>,
    /// Marks the whole prompt.
    pub(super) cache_control: Option<CacheControl>,
    /// Read and not acted on: whether a model thinks is for its template to say.
    #[allow(dead_code, reason = "only read in")]
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    output_format: Option<Value>,
    mcp_servers: Option<Vec<Value>>,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "MessagesThinking")]
struct Thinking {
    #[serde(rename = "type")]
    #[allow(dead_code, reason = "only read in")]
    kind: ThinkingKind,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "MessagesThinkingKind")]
#[serde(rename_all = "snake_case")]
enum ThinkingKind {
    Enabled,
    Adaptive,
    Disabled,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "MessagesOutputConfig")]
struct OutputConfig {
    format: Option<Value>,
}

impl Asked {
    pub(super) fn model(&self) -> &str {
        &self.model
    }

    pub(super) fn into_model(self) -> String {
        self.model
    }

    /// # Errors
    /// What makes no sense, or cannot be honoured.
    pub(super) fn prompt(&self) -> Result<Prompt, Problem> {
        self.refuse_what_is_not_served()?;
        Conversation {
            messages: neutral(self.system.as_ref(), &self.messages)?,
            tools: shown(self.tools.as_deref().unwrap_or_default(), self.tool_choice.as_ref())?,
        }
        .into_prompt()
    }

    fn refuse_what_is_not_served(&self) -> Result<(), Problem> {
        let is_given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        if self.output_config.as_ref().is_some_and(|config| is_given(&config.format)) {
            return Err(Problem::of("output_config.format", "output_config.format is not served yet"));
        }
        if is_given(&self.output_format) {
            return Err(Problem::of("output_format", "output_format is not served yet"));
        }
        if self.mcp_servers.as_ref().is_some_and(|servers| !servers.is_empty()) {
            let message =
                "mcp_servers is not served: nothing here calls them; give their tools as tools of your own";
            return Err(Problem::of("mcp_servers", message));
        }
        Ok(())
    }
}

/// How it is answered.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "MessagesParams")]
pub(super) struct Params {
    /// At most so many tokens, and at most as many as the context has room for.
    max_tokens: u32,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    stop_sequences: Option<Vec<String>>,
    stream: Option<bool>,
    /// Who asks, for the client's own books.
    #[allow(dead_code, reason = "only read in")]
    metadata: Option<Map<String, Value>>,
}

impl Params {
    pub(super) fn streams(&self) -> bool {
        self.stream == Some(true)
    }

    /// # Errors
    /// A field that has too much.
    pub(super) fn into_generation(self) -> Result<GenerationParams, Problem> {
        let stop = self.stop_sequences.unwrap_or_default();
        if stop.len() > MAX_STOP_STRINGS {
            let message = format!("stop_sequences has {} texts; at most {MAX_STOP_STRINGS}", stop.len());
            return Err(Problem::of("stop_sequences", message));
        }
        let sampling = SamplingParams {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            ..SamplingParams::default()
        };
        Ok(GenerationParams {
            sampling,
            max_tokens: Some(self.max_tokens),
            stop,
            ..GenerationParams::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::body;
    use serde_json::json;

    fn read(more: Value) -> Result<Prompt, Problem> {
        let mut request = json!({"model": "m", "messages": [{"role": "user", "content": "a"}]});
        for (name, value) in more.as_object().expect("an object") {
            request[name] = value.clone();
        }
        body::parse::<Asked>(request.to_string().as_bytes())?.prompt()
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_its_name() {
        let tool = json!({"name": "f", "input_schema": {"type": "object"}});
        for (more, param) in [
            (json!({"output_config": {"format": {"type": "json_schema"}}}), "output_config.format"),
            (json!({"output_format": {"type": "json_schema"}}), "output_format"),
            (json!({"mcp_servers": [{"url": "x"}]}), "mcp_servers"),
            (json!({"tools": [tool], "tool_choice": {"type": "any"}}), "tool_choice.type"),
            (json!({"tools": [tool], "tool_choice": {"type": "tool", "name": "f"}}), "tool_choice.type"),
            (
                json!({"tool_choice": {"type": "auto", "disable_parallel_tool_use": true}}),
                "tool_choice.disable_parallel_tool_use",
            ),
            (json!({"tools": [{"name": "f", "input_schema": {}, "strict": true}]}), "tools[0].strict"),
            (json!({"tools": [tool, {"input_schema": {}}]}), "tools[1].name"),
            (json!({"tools": [{"name": "f"}]}), "tools[0].input_schema"),
            (json!({"thinking": {"type": "deeply"}}), "thinking.type"),
            (json!({"system": 7}), "system"),
        ] {
            assert_eq!(read(more.clone()).expect_err("refused").param.as_deref(), Some(param), "{more}");
        }
    }

    #[test]
    fn tools_are_shown_as_templates_expect_them() {
        let tools = json!([
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
            {"name": "f", "description": "F.", "input_schema": {"type": "object", "$schema": "x"}},
            {"type": "custom", "name": "g", "input_schema": {}},
        ]);
        let shown = |choice: Value| match read(json!({"tools": tools, "tool_choice": choice})) {
            Ok(Prompt::Chat { tools_json, .. }) => tools_json,
            other => panic!("{other:?}"),
        };
        let wanted = r#"[{"type":"function","function":{"name":"f","description":"F.","parameters":{"type":"object","$schema":"x"}}},{"type":"function","function":{"name":"g","parameters":{}}}]"#;
        assert_eq!(shown(Value::Null).as_deref(), Some(wanted));
        assert_eq!(
            shown(json!({"type": "auto", "disable_parallel_tool_use": false})).as_deref(),
            Some(wanted)
        );
        assert_eq!(shown(json!({"type": "none"})), None);
    }

    #[test]
    fn what_others_send_is_taken() {
        let more = json!({
            "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}, "mcp_servers": [],
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "betas": ["x"],
        });
        assert!(read(more).is_ok());
        let params =
            json!({"max_tokens": 32000, "top_k": 5, "stop_sequences": ["a"], "metadata": {"user_id": "u"}});
        let params: Params = body::parse(params.to_string().as_bytes()).expect("good parameters");
        let generation = params.into_generation().expect("good parameters");
        assert_eq!(
            (generation.max_tokens, generation.sampling.top_k, generation.stop.len()),
            (Some(32000), Some(5), 1)
        );
        assert!(body::parse::<Params>(b"{}").expect_err("it is required").message.contains("max_tokens"));
    }
}
