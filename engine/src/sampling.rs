//! From a row of logits to the next token.
//!
//! The order is fixed: repeat, frequency and presence penalties; logit bias; temperature; top-k; top-p; min-p; draw.
//! A temperature below [`GREEDY_BELOW`] takes the most likely token after penalties and bias (ties: the lowest id).
//!
//! Invariants: the result depends on the parameters, the logits, the tokens so far and the position alone, bit for
//! bit on every machine (f32 operations in a fixed order, integer sums, no library `exp`, no hash order). A draw at a
//! position needs no draw before it, so a sequence resumed from its tokens goes on as if it had never stopped.
//! A NaN logit is never chosen. Nothing is allocated per token once the buffers have grown.

mod distribution;
mod log_probabilities;
mod penalties;
mod random;
#[cfg(test)]
mod tests;

pub use log_probabilities::log_probabilities;
pub use random::random_u64;

use distribution::{Distribution, Filters};
use penalties::Penalties;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Temperatures below this are greedy: dividing by them would leave f32's range.
pub const GREEDY_BELOW: f32 = 1e-5;
/// Most logit biases one request may carry; each costs work on every token.
pub const MAX_LOGIT_BIASES: usize = 4096;

/// How tokens are drawn. Missing fields deserialise to [`SamplingParams::default`]'s.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingParams {
    /// 0 to 100. Logits are divided by it; 0 is greedy.
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// 0 to 1. Keep the fewest most likely tokens whose share of what top-k kept reaches it; 1 keeps all, 0 keeps one.
    pub top_p: f32,
    /// 0 to 1. Keep tokens at least `min_p` times as likely as the most likely one.
    pub min_p: f32,
    /// 0.01 to 100. Positive logits of tokens in the window are divided by it, negative ones multiplied; 1 is off.
    pub repeat_penalty: f32,
    /// How many tokens back (prompt included) all three penalties look; 0 turns them off.
    pub repeat_last_n: u32,
    /// -2 to 2. Subtracted from a logit once for each occurrence in the window.
    pub frequency_penalty: f32,
    /// -2 to 2. Subtracted from a logit if its token occurs in the window.
    pub presence_penalty: f32,
    /// Token id and what to add to its logit, -1000 to 1000; an id given twice gets both.
    pub logit_bias: Vec<(u32, f32)>,
    /// With the position, all the randomness there is.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// Why sampling parameters are refused.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SamplingError {
    /// A number is NaN or outside its bounds.
    #[error("{field} is {value}, must be from {min} to {max}")]
    OutOfRange {
        /// The parameter's name.
        field: &'static str,
        /// What was given.
        value: f32,
        /// The smallest allowed value.
        min: f32,
        /// The largest allowed value.
        max: f32,
    },
    /// A bias names a token that the model does not have.
    #[error("logit_bias names token {id}, must be from 0 to {} (the vocabulary has {vocab_size} tokens)", vocab_size - 1)]
    UnknownToken {
        /// The id given.
        id: u32,
        /// Tokens in the model's vocabulary.
        vocab_size: usize,
    },
    /// Too many biases.
    #[error("logit_bias has {count} entries, must be at most {MAX_LOGIT_BIASES}")]
    TooManyBiases {
        /// Entries given.
        count: usize,
    },
}

impl SamplingParams {
    /// Greedy decoding without penalties.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Self::default() }
    }

    /// Checks every field against its documented bounds, for a model of `vocab_size` tokens.
    pub fn validate(&self, vocab_size: usize) -> Result<(), SamplingError> {
        in_range("temperature", self.temperature, 0.0, 100.0)?;
        in_range("top_p", self.top_p, 0.0, 1.0)?;
        in_range("min_p", self.min_p, 0.0, 1.0)?;
        in_range("repeat_penalty", self.repeat_penalty, 0.01, 100.0)?;
        in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        if self.logit_bias.len() > MAX_LOGIT_BIASES {
            return Err(SamplingError::TooManyBiases { count: self.logit_bias.len() });
        }
        for &(id, bias) in &self.logit_bias {
            if id as usize >= vocab_size {
                return Err(SamplingError::UnknownToken { id, vocab_size });
            }
            in_range("logit_bias", bias, -1000.0, 1000.0)?;
        }
        Ok(())
    }
}

fn in_range(field: &'static str, value: f32, min: f32, max: f32) -> Result<(), SamplingError> {
    // NaN is in no range.
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(SamplingError::OutOfRange { field, value, min, max })
    }
}

/// Draws the tokens of one sequence.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    penalties: Penalties,
    distribution: Distribution,
    was_degenerate: bool,
}

impl Sampler {
    /// A sampler for a sequence that so far holds `prompt_tokens` (when resuming: all its tokens).
    ///
    /// `params` must have passed [`SamplingParams::validate`].
    pub fn new(params: SamplingParams, prompt_tokens: &[u32]) -> Self {
        let penalties = Penalties::new(&params, prompt_tokens);
        Self { params, penalties, distribution: Distribution::default(), was_degenerate: false }
    }

    /// Draws the token that will stand at index `position` of the sequence, and remembers it for the penalties.
    ///
    /// `logits` holds one value per token id and is used as scratch. Panics if it is empty.
    pub fn sample(&mut self, logits: &mut [f32], position: u64) -> u32 {
        assert!(!logits.is_empty(), "a row of logits holds at least one token");
        self.penalties.apply(logits);
        for &(id, bias) in &self.params.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
        let max = distribution::maximum(logits);
        self.was_degenerate = max == f32::NEG_INFINITY;
        let token = if self.was_degenerate {
            0
        } else if self.params.temperature < GREEDY_BELOW || self.params.top_k == 1 {
            distribution::first_at(logits, max)
        } else {
            let filters = Filters {
                temperature: self.params.temperature,
                top_k: self.params.top_k as usize,
                top_p: self.params.top_p,
                min_p: self.params.min_p,
            };
            self.distribution.draw(logits, &filters, random_u64(self.params.seed, position))
        };
        self.penalties.push(token);
        token
    }

    /// Whether the last row had no logit above negative infinity (all NaN or -inf): token 0 was returned then.
    pub fn was_degenerate(&self) -> bool {
        self.was_degenerate
    }

    /// The parameters this sampler was made with.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }
}
