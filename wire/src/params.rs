//! What a client may ask of a generation. Every field that is `None` takes the daemon's default (`docs/SOCKET.md`).

use crate::limits::{MAX_DRY_BREAKERS, MAX_LOGIT_BIASES, MAX_STOP_STRINGS, MAX_STOP_TOKENS};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use std::marker::PhantomData;

/// How a generation samples and when it ends. Ranges are the daemon's to check.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GenerationParams {
    /// How the next token is chosen.
    pub sampling: SamplingParams,
    /// Most tokens to generate, in each answer.
    pub max_tokens: Option<u32>,
    /// Fewest tokens to generate before an end token, stop token or stop string counts.
    pub min_tokens: Option<u32>,
    /// Strings that end the text; none of them is part of it. At most [`MAX_STOP_STRINGS`].
    #[serde(deserialize_with = "bounded::<_, _, MAX_STOP_STRINGS>")]
    pub stop: Vec<String>,
    /// Tokens that end the text; none of them is part of it. At most [`MAX_STOP_TOKENS`].
    #[serde(deserialize_with = "bounded::<_, _, MAX_STOP_TOKENS>")]
    pub stop_tokens: Vec<u32>,
    /// Go on after the model's own end token.
    pub ignore_eos: bool,
    /// How many answers, each drawn with a seed of its own.
    pub n: Option<u32>,
    /// Report each token's log probability, and those of this many of the likeliest tokens beside it.
    pub logprobs: Option<u32>,
}

/// The sampler chain's parameters; the same seed gives the same tokens. What each does: `docs/SOCKET.md`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SamplingParams {
    /// 0 takes the likeliest token.
    pub temperature: Option<f32>,
    /// The temperature moves this far up and down, with how undecided the model is.
    pub dynatemp_range: Option<f32>,
    /// The shape of that move.
    pub dynatemp_exponent: Option<f32>,
    /// Keep this many of the likeliest tokens; 0 keeps all.
    pub top_k: Option<u32>,
    /// Keep the likeliest tokens until their probabilities sum to this.
    pub top_p: Option<f32>,
    /// Keep tokens at least this fraction as likely as the likeliest.
    pub min_p: Option<f32>,
    /// Keep the tokens whose surprise is nearest to the expected one until their probabilities sum to this.
    pub typical_p: Option<f32>,
    /// How often the likeliest tokens are left out.
    pub xtc_probability: Option<f32>,
    /// How likely a token must be to count as one of them.
    pub xtc_threshold: Option<f32>,
    /// 2 keeps the text's surprise near `mirostat_tau`; 0 does not.
    pub mirostat: Option<u32>,
    /// The surprise to aim at, in bits.
    pub mirostat_tau: Option<f32>,
    /// How fast the aim is followed.
    pub mirostat_eta: Option<f32>,
    /// Divides (positive) or multiplies (negative) the logits of tokens in the penalty window; 1 does nothing.
    pub repeat_penalty: Option<f32>,
    /// How many of the latest tokens the penalties look at.
    pub repeat_last_n: Option<u32>,
    /// Subtracted from a token's logit for every time it is in the penalty window.
    pub frequency_penalty: Option<f32>,
    /// Subtracted once from the logit of a token that is in the penalty window.
    pub presence_penalty: Option<f32>,
    /// How hard a token is punished that would prolong a repetition; 0 does nothing.
    pub dry_multiplier: Option<f32>,
    /// How much harder with each token that the repetition has more.
    pub dry_base: Option<f32>,
    /// Longest repetition that may be prolonged freely, in tokens.
    pub dry_allowed_length: Option<u32>,
    /// How many of the latest tokens are searched for the repetition.
    pub dry_penalty_last_n: Option<u32>,
    /// Texts that no repetition goes across. At most [`MAX_DRY_BREAKERS`].
    #[serde(deserialize_with = "optional_bounded::<_, _, MAX_DRY_BREAKERS>")]
    pub dry_sequence_breakers: Option<Vec<String>>,
    /// Added to single logits. At most [`MAX_LOGIT_BIASES`].
    #[serde(deserialize_with = "bounded::<_, _, MAX_LOGIT_BIASES>")]
    pub logit_bias: Vec<LogitBias>,
    /// Seed of the draws. Its default is constant too, so the same request gives the same tokens.
    pub seed: Option<u64>,
}

/// What to add to one token's logit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogitBias {
    /// The token's id.
    pub token: u32,
    /// Added to its logit, -1000 to 1000; -1000 bans it for any sensible model.
    pub bias: f32,
}

/// Reads a list of at most `MAX` items; a longer one is an error before its items are read.
pub(crate) fn bounded<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Items<T, const MAX: usize>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MAX: usize> de::Visitor<'de> for Items<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "at most {MAX} items")
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let announced = seq.size_hint().unwrap_or(0);
            let mut items = Vec::new();
            if announced <= MAX {
                while let Some(item) = seq.next_element()? {
                    if items.len() == MAX {
                        return Err(de::Error::invalid_length(MAX + 1, &self));
                    }
                    items.push(item);
                }
                return Ok(items);
            }
            Err(de::Error::invalid_length(announced, &self))
        }
    }
    deserializer.deserialize_seq(Items::<T, MAX>(PhantomData))
}

/// As [`bounded`], for a list that may be absent.
fn optional_bounded<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Present<T, const MAX: usize>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MAX: usize> de::Visitor<'de> for Present<T, MAX> {
        type Value = Option<Vec<T>>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "nothing, or at most {MAX} items")
        }

        fn visit_none<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
            bounded::<D, T, MAX>(deserializer).map(Some)
        }
    }
    deserializer.deserialize_option(Present::<T, MAX>(PhantomData))
}
