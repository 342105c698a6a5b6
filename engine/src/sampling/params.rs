//! What a request may ask of the sampler, and why it may be refused.
//!
//! Names and meanings are those of llama.cpp and OpenAI. Invariant: parameters that pass [`SamplingParams::validate`] are
//! all honoured; none is without effect because of another.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::random::{Stream, random_stream_u64};

/// Temperatures below this are greedy: dividing by them would leave f32's range.
pub const GREEDY_BELOW: f32 = 1e-5;
/// Most logit biases one request may carry; each costs work on every token.
pub const MAX_LOGIT_BIASES: usize = 4096;
/// Most DRY sequence breakers; each is looked for in the whole vocabulary.
pub const MAX_DRY_BREAKERS: usize = 32;
/// Longest DRY sequence breaker, in bytes.
pub const MAX_DRY_BREAKER_BYTES: usize = 40;
/// Longest repetition that DRY may be told to allow.
const MAX_DRY_ALLOWED_LENGTH: u32 = 1024;

/// How tokens are drawn. Missing fields deserialise to [`SamplingParams::default`]'s; unknown ones are refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// 0 to 100. Logits are divided by it; 0 is greedy.
    pub temperature: f32,
    /// 0 to 100. How far the temperature moves up and down with the distribution's entropy; 0 is off.
    pub dynatemp_range: f32,
    /// 0 to 100. The power of the entropy's part that the temperature follows.
    pub dynatemp_exponent: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// 0 to 1. Keep the fewest most likely tokens whose share of what top-k kept reaches it; 1 keeps all, 0 keeps one.
    pub top_p: f32,
    /// 0 to 1. Keep tokens at least `min_p` times as likely as the most likely one.
    pub min_p: f32,
    /// 0 to 1. Keep the fewest tokens, the most typical first, whose share reaches it; 1 keeps all, 0 keeps one.
    pub typical_p: f32,
    /// 0 to 1. How often the most likely tokens are left out; 0 is off.
    pub xtc_probability: f32,
    /// 0 to 0.5. The share from which a token counts as one of them.
    pub xtc_threshold: f32,
    /// 0 is off, 2 is mirostat's second version; the first is not here.
    pub mirostat: u32,
    /// 0 to 100. The surprise that mirostat keeps near, in bits.
    pub mirostat_tau: f32,
    /// 0 to 1. How fast its bound follows.
    pub mirostat_eta: f32,
    /// 0.01 to 100. Positive logits of tokens in the window are divided by it, negative ones multiplied; 1 is off.
    pub repeat_penalty: f32,
    /// How many tokens back (prompt included) the three penalties look; 0 turns them off.
    pub repeat_last_n: u32,
    /// -2 to 2. Subtracted from a logit once for each occurrence in the window.
    pub frequency_penalty: f32,
    /// -2 to 2. Subtracted from a logit if its token occurs in the window.
    pub presence_penalty: f32,
    /// 0 to 100. What a token loses that prolongs a repetition of the allowed length; 0 turns DRY off.
    pub dry_multiplier: f32,
    /// 1 to 100. How many times more with each token that the repetition is longer.
    pub dry_base: f32,
    /// 1 to 1024. The shortest repetition, in tokens, whose prolonging costs.
    pub dry_allowed_length: u32,
    /// How many tokens back (prompt included) DRY looks; 0 turns it off.
    pub dry_penalty_last_n: u32,
    /// At most [`MAX_DRY_BREAKERS`] texts of 1 to [`MAX_DRY_BREAKER_BYTES`] bytes that no repetition goes across.
    pub dry_sequence_breakers: Vec<String>,
    /// Token id and what to add to its logit, -1000 to 1000; an id given twice gets both.
    pub logit_bias: Vec<(u32, f32)>,
    /// With the position, all the randomness there is.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            mirostat: 0,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: 64,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(String::from).to_vec(),
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
    /// A version of mirostat that is not here.
    #[error("mirostat is {version}, must be 0 (off) or 2: only the second version is here")]
    Mirostat {
        /// What was given.
        version: u32,
    },
    /// Two parameters that contradict each other.
    #[error("{field} cannot be used with {with}: {why}")]
    Conflict {
        /// The parameter that would have no effect.
        field: &'static str,
        /// The one that takes it away.
        with: &'static str,
        /// How.
        why: &'static str,
    },
    /// A parameter that only tunes another, which is off.
    #[error("{field} has no effect without {needs}; give that too, or leave it out")]
    Idle {
        /// The parameter given.
        field: &'static str,
        /// What it tunes.
        needs: &'static str,
    },
    /// A DRY sequence breaker that cannot be looked for.
    #[error(
        "dry_sequence_breakers has one of {bytes} bytes at place {index}, must be from 1 to {MAX_DRY_BREAKER_BYTES}"
    )]
    BreakerLength {
        /// Its place in the list, from 0.
        index: usize,
        /// Its length.
        bytes: usize,
    },
    /// Too many DRY sequence breakers.
    #[error("dry_sequence_breakers has {count} entries, must be at most {MAX_DRY_BREAKERS}")]
    TooManyBreakers {
        /// Entries given.
        count: usize,
    },
    /// A list names a token that the model does not have.
    #[error("{field} names token {id}, must be from 0 to {} (the vocabulary has {vocab_size} tokens)", vocab_size - 1)]
    UnknownToken {
        /// The list's name.
        field: &'static str,
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

    /// Mirostat 2 and nothing else that leaves tokens out.
    pub fn mirostat() -> Self {
        Self { mirostat: 2, temperature: 0.8, ..Self::greedy() }
    }

    /// The parameters of one of several answers to the same prompt: another seed for each, the same for answer 0.
    pub fn for_choice(&self, choice: u32) -> Self {
        let seed = match choice {
            0 => self.seed,
            _ => random_stream_u64(self.seed, choice.into(), Stream::Choice),
        };
        Self { seed, ..self.clone() }
    }

    /// Whether the most likely token is taken whatever the row.
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_BELOW && self.dynatemp_range == 0.0
    }

    /// Checks every field against its documented bounds, for a model of `vocab_size` tokens.
    pub fn validate(&self, vocab_size: usize) -> Result<(), SamplingError> {
        for (field, value, min, max) in [
            ("temperature", self.temperature, 0.0, 100.0),
            ("dynatemp_range", self.dynatemp_range, 0.0, 100.0),
            ("dynatemp_exponent", self.dynatemp_exponent, 0.0, 100.0),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("typical_p", self.typical_p, 0.0, 1.0),
            ("xtc_probability", self.xtc_probability, 0.0, 1.0),
            ("xtc_threshold", self.xtc_threshold, 0.0, 0.5),
            ("mirostat_tau", self.mirostat_tau, 0.0, 100.0),
            ("mirostat_eta", self.mirostat_eta, 0.0, 1.0),
            ("repeat_penalty", self.repeat_penalty, 0.01, 100.0),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0),
            ("dry_multiplier", self.dry_multiplier, 0.0, 100.0),
            ("dry_base", self.dry_base, 1.0, 100.0),
        ] {
            in_range(field, value, min, max)?;
        }
        if !(1..=MAX_DRY_ALLOWED_LENGTH).contains(&self.dry_allowed_length) {
            let (value, max) = (self.dry_allowed_length as f32, MAX_DRY_ALLOWED_LENGTH as f32);
            return Err(SamplingError::OutOfRange { field: "dry_allowed_length", value, min: 1.0, max });
        }
        if self.mirostat != 0 && self.mirostat != 2 {
            return Err(SamplingError::Mirostat { version: self.mirostat });
        }
        self.check_lists(vocab_size)?;
        self.check_idle()?;
        self.check_conflicts()
    }

    fn check_lists(&self, vocab_size: usize) -> Result<(), SamplingError> {
        if self.logit_bias.len() > MAX_LOGIT_BIASES {
            return Err(SamplingError::TooManyBiases { count: self.logit_bias.len() });
        }
        for &(id, bias) in &self.logit_bias {
            known_token("logit_bias", id, vocab_size)?;
            in_range("logit_bias", bias, -1000.0, 1000.0)?;
        }
        if self.dry_sequence_breakers.len() > MAX_DRY_BREAKERS {
            return Err(SamplingError::TooManyBreakers { count: self.dry_sequence_breakers.len() });
        }
        for (index, breaker) in self.dry_sequence_breakers.iter().enumerate() {
            if !(1..=MAX_DRY_BREAKER_BYTES).contains(&breaker.len()) {
                return Err(SamplingError::BreakerLength { index, bytes: breaker.len() });
            }
        }
        Ok(())
    }

    /// A parameter at its usual value asks for nothing, so that programs may send all of them.
    fn check_idle(&self) -> Result<(), SamplingError> {
        let usual = Self::default();
        let dynatemp = ("dynatemp_range", self.dynatemp_range != 0.0);
        let xtc = ("xtc_probability", self.xtc_probability != 0.0);
        let mirostat = ("mirostat", self.mirostat != 0);
        let penalties = self.frequency_penalty != 0.0 || self.presence_penalty != 0.0;
        let repeat = ("a repeat, frequency or presence penalty", self.repeat_penalty != 1.0 || penalties);
        let dry = ("dry_multiplier", self.dry_multiplier != 0.0);
        for (field, is_set, (needs, is_on)) in [
            ("dynatemp_exponent", self.dynatemp_exponent != usual.dynatemp_exponent, dynatemp),
            ("xtc_threshold", self.xtc_threshold != usual.xtc_threshold, xtc),
            ("mirostat_tau", self.mirostat_tau != usual.mirostat_tau, mirostat),
            ("mirostat_eta", self.mirostat_eta != usual.mirostat_eta, mirostat),
            ("repeat_last_n", self.repeat_last_n != usual.repeat_last_n, repeat),
            ("dry_base", self.dry_base != usual.dry_base, dry),
            ("dry_allowed_length", self.dry_allowed_length != usual.dry_allowed_length, dry),
            ("dry_penalty_last_n", self.dry_penalty_last_n != usual.dry_penalty_last_n, dry),
            ("dry_sequence_breakers", self.dry_sequence_breakers != usual.dry_sequence_breakers, dry),
        ] {
            if is_set && !is_on {
                return Err(SamplingError::Idle { field, needs });
            }
        }
        Ok(())
    }

    fn check_conflicts(&self) -> Result<(), SamplingError> {
        let filters = [
            ("top_k", self.top_k != 0),
            ("top_p", self.top_p != 1.0),
            ("min_p", self.min_p != 0.0),
            ("typical_p", self.typical_p != 1.0),
            ("xtc_probability", self.xtc_probability != 0.0),
        ];
        // These three may leave the most likely token out, which greedy takes; the other filters never do.
        let draws = [filters[3], filters[4], ("mirostat", self.mirostat != 0)];
        let refuse = |set: &[(&'static str, bool)], with, why| match set.iter().find(|(_, is_set)| *is_set) {
            Some(&(field, _)) => Err(SamplingError::Conflict { field, with, why }),
            None => Ok(()),
        };
        if self.is_greedy() {
            refuse(&draws, "temperature 0", "the most likely token is taken and nothing is drawn")?;
        }
        if self.mirostat != 0 {
            refuse(&filters, "mirostat", "it decides by itself how many tokens stay")?;
        }
        Ok(())
    }
}

/// Whether a list's token is in the vocabulary.
pub(crate) fn known_token(field: &'static str, id: u32, vocab_size: usize) -> Result<(), SamplingError> {
    if (id as usize) < vocab_size {
        Ok(())
    } else {
        Err(SamplingError::UnknownToken { field, id, vocab_size })
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
