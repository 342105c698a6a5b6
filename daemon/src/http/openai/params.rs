//! How an answer is sampled and when it ends: the fields that chat completions and completions have in common.
//!
//! Those that OpenAI does not have are named as in llama.cpp's server. Ranges are the daemon's to check.

use crate::http::problem::Problem;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::collections::BTreeMap;
use zllm_wire::limits::{MAX_LOGIT_BIASES, MAX_STOP_STRINGS};
use zllm_wire::{GenerationParams, LogitBias, SamplingParams};

/// The fields.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Params {
    temperature: Option<f32>,
    dynatemp_range: Option<f32>,
    dynatemp_exponent: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    xtc_probability: Option<f32>,
    xtc_threshold: Option<f32>,
    mirostat: Option<u32>,
    mirostat_tau: Option<f32>,
    mirostat_eta: Option<f32>,
    repeat_penalty: Option<f32>,
    repeat_last_n: Option<u32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    dry_multiplier: Option<f32>,
    dry_base: Option<f32>,
    dry_allowed_length: Option<u32>,
    dry_penalty_last_n: Option<u32>,
    dry_sequence_breakers: Option<Vec<String>>,
    logit_bias: Option<BTreeMap<String, f32>>,
    /// Any whole number of 64 bits.
    seed: Option<i64>,
    max_tokens: Option<u32>,
    min_tokens: Option<u32>,
    ignore_eos: Option<bool>,
    /// A text, or several.
    #[serde(deserialize_with = "one_or_several")]
    #[schemars(with = "serde_json::Value")]
    stop: Vec<String>,
    n: Option<u32>,
    grammar: Option<Value>,
    json_schema: Option<Value>,
    pub(super) stream: Option<bool>,
    pub(super) stream_options: Option<StreamOptions>,
}

/// What a stream tells beside the answer.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct StreamOptions {
    pub(super) include_usage: Option<bool>,
}

impl Params {
    /// Whether the client asked for a chunk with what a stream took.
    pub(super) fn include_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// In the daemon's words.
    ///
    /// # Errors
    /// A field that has too much, or makes no sense.
    pub(super) fn into_generation(self) -> Result<GenerationParams, Problem> {
        if self.stop.len() > MAX_STOP_STRINGS {
            let message = format!("stop has {} texts; at most {MAX_STOP_STRINGS}", self.stop.len());
            return Err(Problem::of("stop", message));
        }
        for (name, constraint) in [("grammar", self.grammar), ("json_schema", self.json_schema)] {
            if constraint.is_some_and(|constraint| !constraint.is_null()) {
                let message = format!("{name} is not served yet: answers are not constrained");
                return Err(Problem::of(name, message));
            }
        }
        let sampling = SamplingParams {
            temperature: self.temperature,
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exponent,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            mirostat: self.mirostat,
            mirostat_tau: self.mirostat_tau,
            mirostat_eta: self.mirostat_eta,
            repeat_penalty: self.repeat_penalty,
            repeat_last_n: self.repeat_last_n,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            dry_multiplier: self.dry_multiplier,
            dry_base: self.dry_base,
            dry_allowed_length: self.dry_allowed_length,
            dry_penalty_last_n: self.dry_penalty_last_n,
            dry_sequence_breakers: self.dry_sequence_breakers,
            logit_bias: logit_bias(self.logit_bias.unwrap_or_default())?,
            seed: self.seed.map(i64::cast_unsigned),
        };
        Ok(GenerationParams {
            sampling,
            max_tokens: self.max_tokens,
            min_tokens: self.min_tokens,
            stop: self.stop,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            n: self.n,
            ..GenerationParams::default()
        })
    }
}

fn logit_bias(biases: BTreeMap<String, f32>) -> Result<Vec<LogitBias>, Problem> {
    if biases.len() > MAX_LOGIT_BIASES {
        let message = format!("logit_bias has {} tokens; at most {MAX_LOGIT_BIASES}", biases.len());
        return Err(Problem::of("logit_bias", message));
    }
    let bias = |(token, bias): (String, f32)| match token.parse() {
        Ok(token) => Ok(LogitBias { token, bias }),
        Err(_) => {
            let shown: String = token.chars().take(40).collect();
            let message = format!("logit_bias names {shown:?}, which is no token id, a whole number");
            Err(Problem::of("logit_bias", message))
        }
    };
    biases.into_iter().map(bias).collect()
}

/// A text, a list of texts, or null.
fn one_or_several<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text or a list of texts")]
    enum Stop {
        One(String),
        Several(Vec<String>),
    }
    Ok(match Option::<Stop>::deserialize(deserializer)? {
        None => Vec::new(),
        Some(Stop::One(text)) => vec![text],
        Some(Stop::Several(texts)) => texts,
    })
}
