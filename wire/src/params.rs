//! What a client may ask of a generation. Every field that is `None` takes the daemon's default (`docs/API.md`).

use crate::limits::{MAX_LOGIT_BIASES, MAX_STOP_STRINGS};
use serde::{Deserialize, Deserializer, Serialize, de};
use std::marker::PhantomData;

/// How a generation samples and when it ends. Ranges are the daemon's to check.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GenerationParams {
    /// How the next token is chosen.
    pub sampling: SamplingParams,
    /// Most tokens to generate.
    pub max_tokens: Option<u32>,
    /// Strings that end the text; none of them is part of it. At most [`MAX_STOP_STRINGS`].
    #[serde(deserialize_with = "bounded::<_, _, MAX_STOP_STRINGS>")]
    pub stop: Vec<String>,
    /// Go on after the model's own end token.
    pub ignore_eos: bool,
}

/// The sampler chain's parameters; the same seed gives the same tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// 0 takes the likeliest token.
    pub temperature: Option<f32>,
    /// Keep this many of the likeliest tokens; 0 keeps all.
    pub top_k: Option<u32>,
    /// Keep the likeliest tokens until their probabilities sum to this.
    pub top_p: Option<f32>,
    /// Keep tokens at least this fraction as likely as the likeliest.
    pub min_p: Option<f32>,
    /// Divides (positive) or multiplies (negative) the logits of tokens in the penalty window; 1 does nothing.
    pub repeat_penalty: Option<f32>,
    /// Subtracted from a token's logit for every time it is in the penalty window.
    pub frequency_penalty: Option<f32>,
    /// Subtracted once from the logit of a token that is in the penalty window.
    pub presence_penalty: Option<f32>,
    /// How many of the latest tokens the penalties look at.
    pub penalty_window_tokens: Option<u32>,
    /// Added to single logits. At most [`MAX_LOGIT_BIASES`].
    #[serde(deserialize_with = "bounded::<_, _, MAX_LOGIT_BIASES>")]
    pub logit_bias: Vec<LogitBias>,
    /// Seed of the draws. Its default is constant too, so the same request gives the same tokens.
    pub seed: Option<u64>,
}

/// What to add to one token's logit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LogitBias {
    /// The token's id.
    pub token: u32,
    /// Added to its logit, -1000 to 1000; -1000 bans it for any sensible model.
    pub bias: f32,
}

/// Reads a list of at most `MAX` items; a longer one is an error before its items are read.
fn bounded<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
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
