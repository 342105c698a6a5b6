//! What chats and generations have in common before they are answered: the fields of both, and the loaded model.

use super::options::Options;
use crate::clock::Uptime;
use crate::http::problem::Problem;
use crate::http::{Http, models};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;
use zllm_wire::GenerationParams;

/// The fields of both.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaCommon")]
pub(super) struct Common {
    pub(super) model: String,
    options: Option<Options>,
    /// Whether the answer comes in lines of JSON; it does, unless asked not to.
    stream: Option<bool>,
    /// `true` is for models that think; `false` for those that do not.
    think: Option<Value>,
    format: Option<Value>,
    /// Has no effect: a model stays loaded until it is unloaded.
    keep_alive: Option<Value>,
    logprobs: Option<bool>,
}

/// What a request may count on.
pub(super) struct Ready {
    /// The model's own name.
    pub(super) model: String,
    pub(super) generation: GenerationParams,
    pub(super) asked: Asked,
}

/// What of a request its answer repeats or depends on.
pub(super) struct Asked {
    /// The model, as the client calls it.
    pub(super) model: String,
    pub(super) stream: bool,
    /// When the request came.
    pub(super) began: Uptime,
    /// How long the model took to be there.
    pub(super) load: Duration,
}

/// The model that is called so.
///
/// # Errors
/// There is none.
pub(super) fn find(http: &Http, name: &str) -> Result<String, Problem> {
    let plain = name.strip_suffix(":latest").filter(|_| models::known(http, name).is_err()).unwrap_or(name);
    models::known(http, plain)?;
    Ok(plain.to_owned())
}

impl Common {
    /// Loads the model for a request that has nothing to answer.
    ///
    /// # Errors
    /// What cannot be honoured; that the model should go rather than come.
    pub(super) async fn only_load(self, http: &Http) -> Result<Ready, Problem> {
        let unloads = match &self.keep_alive {
            Some(Value::Number(number)) => number.as_f64() == Some(0.0),
            Some(Value::String(text)) => text.trim_end_matches(['s', 'm', 'h']) == "0",
            _ => false,
        };
        if unloads {
            let message = "keep_alive 0 is not served; `zllmctl unload NAME` unloads a model";
            return Err(Problem::of("keep_alive", message));
        }
        self.prepare(http, true).await
    }

    /// Loads the model and looks at what is asked of it; `taken_apart`: whether what it thinks is told apart from what it says.
    ///
    /// # Errors
    /// What cannot be honoured.
    pub(super) async fn prepare(self, http: &Http, taken_apart: bool) -> Result<Ready, Problem> {
        if self.format.as_ref().is_some_and(|format| !format.is_null() && format != "") {
            return Err(Problem::of("format", "format is not served yet"));
        }
        if self.logprobs == Some(true) {
            return Err(Problem::of("logprobs", "logprobs is not served here; /v1/chat/completions has it"));
        }
        let began = http.services.clock.now();
        let model = find(http, &self.model)?;
        let options = self.options.unwrap_or_default();
        let num_ctx = options.num_ctx;
        let generation = options.into_generation()?;
        let facts = |text: &dyn crate::device::port::TextModel| {
            (text.facts().context_tokens as u64, text.customs().thinks)
        };
        let (context, thinks) = http.services.with_text(&model, facts).await?;
        if let Some(num_ctx) = num_ctx.filter(|num_ctx| *num_ctx > context) {
            let message = format!("options.num_ctx is {num_ctx}, the model's context has {context} tokens");
            return Err(Problem::of("options.num_ctx", message));
        }
        check_think(self.think.as_ref(), thinks && taken_apart)?;
        let load = http.services.clock.now().saturating_sub(began);
        let asked = Asked { model: self.model, stream: self.stream.unwrap_or(true), began, load };
        Ok(Ready { model, generation, asked })
    }
}

fn check_think(think: Option<&Value>, thinks: bool) -> Result<(), Problem> {
    let message = match think {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Bool(think)) if *think == thinks => return Ok(()),
        Some(Value::Bool(true)) => "think is true, and nothing that this model says is marked as thought",
        Some(Value::Bool(false)) => "think is false, and this model cannot be kept from thinking here",
        Some(_) => "think is neither true nor false; how much a model thinks cannot be said",
    };
    Err(Problem::of("think", message))
}
