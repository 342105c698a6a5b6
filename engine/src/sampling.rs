//! From a row of logits to the next token.
//!
//! The order is fixed, and each step works on what the ones before it left:
//!
//! 1. repeat, frequency and presence penalties, over a window of tokens (`penalties.rs`);
//! 2. DRY, over a window of its own (`dry.rs`);
//! 3. logit bias, and then the tokens that are forbidden at this place (end tokens before `min_tokens`);
//! 4. temperature, dynamic if asked for (`temperature.rs`);
//! 5. top-k, 6. top-p, 7. min-p (`distribution.rs`);
//! 8. typical (`typical.rs`), 9. XTC (`xtc.rs`), 10. mirostat 2 (`mirostat.rs`);
//! 11. the draw.
//!
//! Why this order: penalties read the model's own logits (a repeat penalty depends on a logit's sign, which biases would
//! change); biases come after them so that what the caller says of a token is the last word on it, and a ban is final.
//! Temperature comes before all that measures probabilities, so that a share of 0.9 is nine in ten of what would be
//! drawn; Hugging Face's generation and OpenAI's API mean the same. Filters go from the plain to those that read the
//! shape of what is left; XTC is behind them, because it takes the top away and must not hand the draw to a tail that a
//! filter would have cut. llama.cpp's default order is penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC,
//! temperature: there the filters see the distribution at temperature 1.
//!
//! A temperature below [`GREEDY_BELOW`] takes the most likely token after step 3 (ties: the lowest id).
//!
//! Invariants: the result depends on the parameters, the logits, the tokens so far, the position and, for mirostat, the
//! [`SamplerState`] alone, bit for bit on every machine (f32 and f64 operations in a fixed order, integer sums, no library
//! `exp` or `ln`, no hash order). A draw at a position needs no draw before it, so a sequence resumed from its tokens (and
//! its state) goes on as if it had never stopped. A NaN logit is never chosen. Nothing is allocated per token once the
//! buffers have grown.

mod candidates;
mod distribution;
mod dry;
mod log_probabilities;
mod math;
mod mirostat;
mod params;
#[cfg(test)]
mod peer_tests;
mod penalties;
mod random;
mod temperature;
#[cfg(test)]
mod tests;
mod typical;
mod xtc;

pub use dry::DryBreakers;
pub(crate) use log_probabilities::log_probabilities_beside;
pub use log_probabilities::{TokenLogProbabilities, log_probabilities};
pub(crate) use params::known_token;
pub use params::{
    GREEDY_BELOW, MAX_DRY_BREAKER_BYTES, MAX_DRY_BREAKERS, MAX_LOGIT_BIASES, SamplingError, SamplingParams,
};
pub use random::random_u64;

use candidates::Candidate;
use distribution::{Distribution, Filters};
use dry::Dry;
use penalties::Penalties;
use random::{Stream, random_stream_u64};
use serde::{Deserialize, Serialize};
use typical::Distance;
use zllm_kernels::cpu::isa::Isa;

/// What a sampler knows that parameters and tokens do not tell. Whoever wants to resume a sequence later keeps it beside
/// the tokens; without mirostat it never changes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplerState {
    /// Mirostat's bound on a token's surprise, in bits. It follows the probabilities of all draws so far.
    pub mirostat_mu: f32,
}

impl SamplerState {
    /// The state before the first draw.
    pub fn new(params: &SamplingParams) -> Self {
        Self { mirostat_mu: 2.0 * params.mirostat_tau }
    }
}

/// Draws the tokens of one sequence.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    penalties: Penalties,
    dry: Option<Dry>,
    state: SamplerState,
    distribution: Distribution,
    candidates: Vec<Candidate>,
    distances: Vec<Distance>,
    was_degenerate: bool,
}

impl Sampler {
    /// A sampler for a sequence that so far holds `prompt_tokens` (when resuming: all its tokens). Without
    /// [`Sampler::with_breakers`] DRY knows no sequence breakers.
    ///
    /// `params` must have passed [`SamplingParams::validate`].
    pub fn new(params: SamplingParams, prompt_tokens: &[u32]) -> Self {
        Self::with_breakers(params, DryBreakers::default(), prompt_tokens)
    }

    /// The same with DRY's sequence breakers, found in the model's vocabulary.
    pub fn with_breakers(params: SamplingParams, breakers: DryBreakers, prompt_tokens: &[u32]) -> Self {
        Self {
            penalties: Penalties::new(&params, prompt_tokens),
            dry: Dry::new(&params, breakers, prompt_tokens),
            state: SamplerState::new(&params),
            distribution: Distribution::default(),
            candidates: Vec::new(),
            distances: Vec::new(),
            was_degenerate: false,
            params,
        }
    }

    /// Lets it draw with the instructions of `isa`, which this machine must have; without, with its best. The tokens are the
    /// same.
    pub fn on(mut self, isa: Isa) -> Self {
        self.distribution.set_isa(isa);
        self
    }

    /// Goes on from the state of an earlier sampler of the same sequence.
    pub fn resume_from(mut self, state: SamplerState) -> Self {
        self.state = state;
        self
    }

    /// The state after the last draw.
    pub fn state(&self) -> SamplerState {
        self.state
    }

    /// Draws the token that will stand at index `position` of the sequence, and remembers it for the penalties.
    ///
    /// `logits` holds one value per token id and is used as scratch. Panics if it is empty.
    pub fn sample(&mut self, logits: &mut [f32], position: u64) -> u32 {
        self.sample_except(logits, position, &[])
    }

    /// As [`Sampler::sample`], but none of the `forbidden` tokens, whatever their bias.
    pub fn sample_except(&mut self, logits: &mut [f32], position: u64, forbidden: &[u32]) -> u32 {
        assert!(!logits.is_empty(), "a row of logits holds at least one token");
        self.penalties.apply(logits);
        if let Some(dry) = &mut self.dry {
            dry.apply(logits);
        }
        for &(id, bias) in &self.params.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
        for &id in forbidden {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        let max = self.distribution.read(logits);
        self.was_degenerate = max == f32::NEG_INFINITY;
        let token = if self.was_degenerate { 0 } else { self.choose(logits, max, position) };
        self.remember(token);
        token
    }

    /// Notes a token that was drawn, as [`Sampler::sample`] does, without drawing it.
    pub fn remember(&mut self, token: u32) {
        self.penalties.push(token);
        if let Some(dry) = &mut self.dry {
            dry.push(token);
        }
    }

    /// Steps 4 to 11, for a row whose largest logit is `max`.
    fn choose(&mut self, logits: &mut [f32], max: f32, position: u64) -> u32 {
        let params = &self.params;
        let temperature = if params.dynatemp_range == 0.0 {
            params.temperature
        } else {
            temperature::dynamic(logits, params.temperature, params.dynatemp_range, params.dynatemp_exponent)
        };
        if temperature < GREEDY_BELOW || params.top_k == 1 {
            self.follow(0.0);
            return self.distribution.first_at(logits, max);
        }
        let filters =
            Filters { temperature, top_k: params.top_k as usize, top_p: params.top_p, min_p: params.min_p };
        let random = random_u64(params.seed, position);
        if params.typical_p == 1.0 && params.xtc_probability == 0.0 && params.mirostat == 0 {
            return self.distribution.draw(logits, &filters, random);
        }
        self.distribution.keep(logits, &filters, &mut self.candidates);
        if params.typical_p < 1.0 {
            typical::keep(&mut self.candidates, params.typical_p, &mut self.distances);
        }
        if xtc::is_due(params.xtc_probability, random_stream_u64(params.seed, position, Stream::Xtc)) {
            xtc::leave_out(&mut self.candidates, params.xtc_threshold);
        }
        if params.mirostat != 0 {
            mirostat::keep(&mut self.candidates, self.state.mirostat_mu);
        }
        let drawn = candidates::draw(&self.candidates, random);
        if params.mirostat != 0 {
            self.follow(mirostat::surprise(&self.candidates, drawn));
        }
        drawn.id
    }

    /// Moves mirostat's bound after a draw of `surprise` bits.
    fn follow(&mut self, surprise: f32) {
        if self.params.mirostat != 0 {
            let (tau, eta) = (self.params.mirostat_tau, self.params.mirostat_eta);
            self.state.mirostat_mu = mirostat::follow(self.state.mirostat_mu, tau, eta, surprise);
        }
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
