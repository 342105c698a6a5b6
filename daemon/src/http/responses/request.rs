//! What a client asks for: read, checked, and made into a job and a response without output.

use crate::http::conversation::Conversation;
use crate::http::problem::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use zllm_wire::limits::MAX_LOGPROBS;
use zllm_wire::{GenerationParams, SamplingParams, Submit};

use super::items::{self, Item, shown};
use super::object::{ConversationId, Format, Response, Status, Text};
use super::tools::{Names, Tools};

/// A request for a response. Fields that are not here are ignored.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseRequest")]
pub(super) struct Create {
    pub(super) model: String,
    /// A text, or items.
    pub(super) input: Option<Input>,
    pub(super) instructions: Option<String>,
    pub(super) previous_response_id: Option<String>,
    pub(super) conversation: Option<ConversationRef>,
    /// Whether it can be asked for again; it can, unless this is false.
    pub(super) store: Option<bool>,
    pub(super) background: Option<bool>,
    pub(super) stream: Option<bool>,
    /// Over WebSocket: false makes a response without an answer, to go on from.
    pub(super) generate: Option<bool>,
    tools: Option<Vec<Value>>,
    /// `auto` or `none`.
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    max_tool_calls: Option<u32>,
    text: Option<TextSettings>,
    max_output_tokens: Option<u32>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_logprobs: Option<u32>,
    include: Option<Vec<String>>,
    reasoning: Option<Map<String, Value>>,
    /// `auto` or `disabled`; nothing is cut out in either.
    truncation: Option<String>,
    prompt: Option<Value>,
    prompt_cache_key: Option<String>,
    safety_identifier: Option<String>,
    service_tier: Option<String>,
    user: Option<String>,
    metadata: Option<BTreeMap<String, String>>,
}

/// What the model is to answer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a text or a list of items")]
#[schemars(rename = "ResponseInput")]
pub(super) enum Input {
    Text(String),
    Items(Vec<Value>),
}

/// A conversation, by its id.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "an id or an object with one")]
pub(super) enum ConversationRef {
    Id(String),
    Object { id: String },
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseTextSettings")]
struct TextSettings {
    format: Option<Map<String, Value>>,
}

/// A job to submit, and what is known of its response before.
pub(super) struct Plan {
    pub(super) submit: Submit,
    pub(super) response: Response,
    pub(super) names: Names,
    /// Whether reasoning is given in a form to send back.
    pub(super) carry: bool,
}

impl ConversationRef {
    fn id(&self) -> &str {
        let (Self::Id(id) | Self::Object { id }) = self;
        id
    }
}

impl Create {
    pub(super) fn conversation(&self) -> Option<&str> {
        self.conversation.as_ref().map(ConversationRef::id)
    }

    /// # Errors
    /// What is not served, or makes no sense, by its name.
    pub(super) fn check(&self) -> Result<(), Problem> {
        if self.prompt.as_ref().is_some_and(|prompt| !prompt.is_null()) {
            return Err(Problem::of("prompt", "prompt is not served: there are no stored prompts"));
        }
        if self.previous_response_id.is_some() && self.conversation.is_some() {
            let message = "previous_response_id and conversation exclude each other; give one of them";
            return Err(Problem::of("previous_response_id", message));
        }
        if self.background == Some(true) && self.store == Some(false) {
            return Err(Problem::of("background", "background needs store: it is asked for later"));
        }
        if self.background == Some(true) && self.generate == Some(false) {
            let message =
                "generate: false and background exclude each other: without an answer it is over at once";
            return Err(Problem::of("generate", message));
        }
        let format = self.text.as_ref().and_then(|text| text.format.as_ref());
        if format.and_then(|format| format.get("type")).is_some_and(|kind| kind != "text") {
            let message = "text.format of another type than \"text\" is not served yet";
            return Err(Problem::of("text.format", message));
        }
        if let Some(truncation) = self.truncation.as_deref()
            && !matches!(truncation, "auto" | "disabled")
        {
            let message = format!("truncation is {:?}; \"auto\" and \"disabled\" work", shown(truncation));
            return Err(Problem::of("truncation", message));
        }
        if self.max_output_tokens == Some(0) {
            return Err(Problem::of("max_output_tokens", "max_output_tokens is 0; at least 1 works"));
        }
        if let Some(top) = self.top_logprobs.filter(|top| *top > MAX_LOGPROBS) {
            let message = format!("top_logprobs is {top}, must be from 0 to {MAX_LOGPROBS}");
            return Err(Problem::of("top_logprobs", message));
        }
        match &self.tool_choice {
            None | Some(Value::Null) => Ok(()),
            Some(choice) if choice == "auto" || choice == "none" => Ok(()),
            Some(_) => {
                let message = "tool_choice other than \"auto\" and \"none\" is not served yet";
                Err(Problem::of("tool_choice", message))
            }
        }
    }

    fn includes(&self, name: &str) -> bool {
        self.include.iter().flatten().any(|included| included == name)
    }

    /// The job and the response; `items` are all that was said so far, the input last.
    ///
    /// # Errors
    /// What cannot be honoured.
    pub(super) fn plan<'a>(
        self,
        items: impl IntoIterator<Item = &'a Item>,
        id: String,
        created_at: u64,
    ) -> Result<Plan, Problem> {
        let given = self.tools.as_deref().unwrap_or_default();
        let mut tools = Tools::read(given)?;
        if self.tool_choice.as_ref().is_some_and(|choice| choice == "none") {
            // Not to be called, so not to be spoken of.
            tools.shown.clear();
        }
        let messages = items::messages(self.instructions.as_deref(), items, &tools.names);
        if messages.is_empty() {
            return Err(Problem::of("input", "input is empty; give a text or an item at least"));
        }
        let prompt = Conversation { messages, tools: tools.shown }.into_prompt()?;
        let wants_logprobs = self.includes("message.output_text.logprobs") || self.top_logprobs > Some(0);
        let sampling =
            SamplingParams { temperature: self.temperature, top_p: self.top_p, ..SamplingParams::default() };
        let params = GenerationParams {
            sampling,
            max_tokens: self.max_output_tokens,
            logprobs: wants_logprobs.then(|| self.top_logprobs.unwrap_or(0)),
            ..GenerationParams::default()
        };
        let background = self.background.unwrap_or(false);
        let submit = Submit { detached: background, ..Submit::new(self.model.clone(), prompt, params) };
        let carry = self.includes("reasoning.encrypted_content");
        let names = tools.names;
        let response = Response {
            id,
            object: "response".to_owned(),
            created_at,
            completed_at: None,
            status: if background { Status::Queued } else { Status::InProgress },
            background,
            error: None,
            incomplete_details: None,
            instructions: self.instructions,
            max_output_tokens: self.max_output_tokens,
            max_tool_calls: self.max_tool_calls,
            model: self.model,
            output: Vec::new(),
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            previous_response_id: self.previous_response_id,
            conversation: self
                .conversation
                .map(|conversation| ConversationId { id: conversation.id().to_owned() }),
            prompt_cache_key: self.prompt_cache_key,
            reasoning: self.reasoning,
            safety_identifier: self.safety_identifier,
            service_tier: self.service_tier,
            store: self.store.unwrap_or(true),
            temperature: self.temperature,
            text: Text { format: Format { kind: "text".to_owned() } },
            tool_choice: self.tool_choice.filter(|choice| !choice.is_null()).unwrap_or("auto".into()),
            tools: self.tools.unwrap_or_default(),
            skipped_tools: tools.skipped,
            top_logprobs: self.top_logprobs.unwrap_or(0),
            top_p: self.top_p,
            truncation: "disabled".to_owned(),
            usage: None,
            user: self.user,
            metadata: self.metadata.unwrap_or_default(),
        };
        Ok(Plan { submit, response, names, carry })
    }
}
