//! How an answer is sampled and when it ends, in Ollama's words. Ranges are the daemon's to check.

use crate::http::problem::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use zllm_wire::limits::MAX_STOP_STRINGS;
use zllm_wire::{GenerationParams, SamplingParams};

/// The options that are honoured.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "OllamaOptions")]
pub(super) struct Options {
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    repeat_penalty: Option<f32>,
    /// -1: all of them.
    repeat_last_n: Option<i64>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    mirostat: Option<u32>,
    mirostat_tau: Option<f32>,
    mirostat_eta: Option<f32>,
    /// Any whole number of 64 bits.
    seed: Option<i64>,
    /// Most tokens of the answer. -1: as many as the daemon gives who asks for none; -2: as many as there is room for.
    num_predict: Option<i64>,
    stop: Option<Vec<String>>,
    /// A context that there must be, in tokens; the model's own is used whatever it says.
    pub(super) num_ctx: Option<u64>,
    tfs_z: Option<f32>,
}

impl Options {
    /// In the daemon's words.
    ///
    /// # Errors
    /// An option that makes no sense, or is not served.
    pub(super) fn into_generation(self) -> Result<GenerationParams, Problem> {
        if self.tfs_z.is_some_and(|z| z != 1.0) {
            return Err(Problem::of("options.tfs_z", "options.tfs_z other than 1 is not served"));
        }
        let stop = self.stop.unwrap_or_default();
        if stop.len() > MAX_STOP_STRINGS {
            let message = format!("options.stop has {} texts; at most {MAX_STOP_STRINGS}", stop.len());
            return Err(Problem::of("options.stop", message));
        }
        let count = |name: &str, value: i64| {
            u32::try_from(value).map_err(|_| {
                let param = format!("options.{name}");
                Problem::of(&param, format!("{param} is {value}, which is no number of tokens"))
            })
        };
        let max_tokens = match self.num_predict {
            None | Some(-1) => None,
            Some(-2) => Some(u32::MAX),
            Some(tokens) => Some(count("num_predict", tokens)?),
        };
        let repeat_last_n = match self.repeat_last_n {
            None => None,
            Some(-1) => Some(u32::MAX),
            Some(tokens) => Some(count("repeat_last_n", tokens)?),
        };
        let sampling = SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repeat_penalty: self.repeat_penalty,
            repeat_last_n,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            mirostat: self.mirostat,
            mirostat_tau: self.mirostat_tau,
            mirostat_eta: self.mirostat_eta,
            seed: self.seed.map(i64::cast_unsigned),
            ..SamplingParams::default()
        };
        Ok(GenerationParams { sampling, max_tokens, stop, ..GenerationParams::default() })
    }
}
