//! The response itself, as it is served and kept.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

use super::items::Item;

/// An answer, or one that is being made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct Response {
    pub(super) id: String,
    /// `response`.
    pub(super) object: String,
    /// Seconds since the Unix epoch.
    pub(super) created_at: u64,
    pub(super) completed_at: Option<u64>,
    pub(super) status: Status,
    pub(super) background: bool,
    pub(super) error: Option<ResponseError>,
    pub(super) incomplete_details: Option<IncompleteDetails>,
    pub(super) instructions: Option<String>,
    pub(super) max_output_tokens: Option<u32>,
    pub(super) max_tool_calls: Option<u32>,
    pub(super) model: String,
    pub(super) output: Vec<Item>,
    pub(super) parallel_tool_calls: bool,
    pub(super) previous_response_id: Option<String>,
    pub(super) conversation: Option<ConversationId>,
    pub(super) prompt_cache_key: Option<String>,
    pub(super) reasoning: Option<Map<String, Value>>,
    pub(super) safety_identifier: Option<String>,
    pub(super) service_tier: Option<String>,
    /// Whether it can be asked for again.
    pub(super) store: bool,
    pub(super) temperature: Option<f32>,
    pub(super) text: Text,
    /// `auto` or `none`.
    pub(super) tool_choice: Value,
    /// As the client gave them.
    pub(super) tools: Vec<Value>,
    /// Kinds of the tools that were not shown to the model, because they are not run here; not OpenAI's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) skipped_tools: Vec<String>,
    pub(super) top_logprobs: u32,
    pub(super) top_p: Option<f32>,
    /// Always `disabled`: nothing is cut out of a conversation.
    pub(super) truncation: String,
    /// Null until it is over.
    pub(super) usage: Option<Usage>,
    pub(super) user: Option<String>,
    pub(super) metadata: BTreeMap<String, String>,
}

/// How far a response is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ResponseStatus")]
pub(super) enum Status {
    Queued,
    InProgress,
    Completed,
    Incomplete,
    Failed,
    Cancelled,
}

impl Status {
    /// Whether nothing follows on it.
    pub(super) fn is_over(self) -> bool {
        !matches!(self, Self::Queued | Self::InProgress)
    }

    /// Whether it can be gone on from.
    pub(super) fn is_answer(self) -> bool {
        matches!(self, Self::Completed | Self::Incomplete)
    }
}

/// Why it failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct ResponseError {
    pub(super) code: String,
    pub(super) message: String,
}

/// Why it is not whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct IncompleteDetails {
    /// `max_output_tokens`.
    pub(super) reason: String,
}

/// A conversation that it belongs to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct ConversationId {
    pub(super) id: String,
}

/// How its text is to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseText")]
pub(super) struct Text {
    pub(super) format: Format,
}

/// Always `text`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseTextFormat")]
pub(super) struct Format {
    #[serde(rename = "type")]
    pub(super) kind: String,
}

/// What it took, in tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseUsage")]
pub(super) struct Usage {
    pub(super) input_tokens: u64,
    pub(super) input_tokens_details: InputTokensDetails,
    pub(super) output_tokens: u64,
    pub(super) output_tokens_details: OutputTokensDetails,
    pub(super) total_tokens: u64,
}

/// Of the prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct InputTokensDetails {
    /// Those that were not computed again.
    pub(super) cached_tokens: u64,
}

/// Of the answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct OutputTokensDetails {
    pub(super) reasoning_tokens: u64,
}

impl Usage {
    pub(super) fn new(usage: &zllm_wire::Usage, reasoning_tokens: u64) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputTokensDetails { cached_tokens: usage.cached_tokens },
            output_tokens: usage.generated_tokens,
            output_tokens_details: OutputTokensDetails { reasoning_tokens },
            total_tokens: usage.prompt_tokens + usage.generated_tokens,
        }
    }
}
