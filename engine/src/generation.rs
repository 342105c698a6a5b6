//! One sequence's answer: sampler, detokenizer, stop strings and limits. Knows no device and no batch.
//!
//! Invariant: what is sent never holds a part of a stop string or a split character, and the texts sent, put together,
//! are the whole answer.

use std::sync::Arc;

use crate::{
    detokenizer::Detokenizer,
    request::{FinishReason, GenerationParams, RequestError},
    sampling::Sampler,
    stop::StopStrings,
    text_model::TextModel,
};

/// The state of one answer.
pub struct Generation {
    text_model: Arc<TextModel>,
    sampler: Sampler,
    detokenizer: Detokenizer,
    stop: StopStrings,
    /// Position of the next token.
    position: usize,
    /// Tokens that may still be drawn.
    left: usize,
    ignore_eos: bool,
    /// Reused for each token's text.
    piece: String,
}

/// What one token brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The token.
    pub token: u32,
    /// Text that is safe to send; may be empty.
    pub text: String,
    /// Set when the answer is complete; the token is then not to be fed.
    pub finish: Option<FinishReason>,
}

/// The model gave no logit to draw from: all are NaN or minus infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model gave no number to draw token {position} from (all logits are NaN or -inf): its file is damaged"
)]
pub struct NoLogits {
    /// Position of the token that was to be drawn.
    pub position: usize,
}

impl Generation {
    /// An answer to `prompt_tokens`.
    ///
    /// # Errors
    /// A parameter out of range, by name.
    pub fn new(
        text_model: Arc<TextModel>,
        prompt_tokens: &[u32],
        params: &GenerationParams,
    ) -> Result<Self, RequestError> {
        params.validate(text_model.vocab_size())?;
        let room = text_model.context_length().saturating_sub(prompt_tokens.len());
        Ok(Self {
            sampler: Sampler::new(params.sampling.clone(), prompt_tokens),
            detokenizer: Detokenizer::new(),
            stop: StopStrings::new(params.stop.clone())?,
            position: prompt_tokens.len(),
            left: params.max_tokens.map_or(room, |most| room.min(most as usize)),
            ignore_eos: params.ignore_eos,
            piece: String::new(),
            text_model,
        })
    }

    /// Draws the next token from the logits after the last fed token.
    ///
    /// # Errors
    /// Logits that hold no number; the answer cannot go on.
    pub fn accept(&mut self, logits: &mut [f32]) -> Result<Accepted, NoLogits> {
        debug_assert!(self.left > 0, "an answer that is complete draws no more");
        let token = self.sampler.sample(logits, self.position as u64);
        if self.sampler.was_degenerate() {
            return Err(NoLogits { position: self.position });
        }
        self.position += 1;
        self.left = self.left.saturating_sub(1);
        let mut text = String::new();
        // A model without a tokenizer answers in tokens alone.
        let Ok(tokenizer) = self.text_model.tokenizer() else {
            let finish = (self.left == 0).then_some(FinishReason::Length);
            return Ok(Accepted { token, text, finish });
        };
        let ended = !self.ignore_eos && tokenizer.is_end_of_generation(token);
        if !ended {
            self.piece.clear();
            // Rows that pad the embedding past the vocabulary have no text.
            if (token as usize) < tokenizer.vocab_size() {
                self.detokenizer.push(tokenizer, token, &mut self.piece);
            }
            if self.stop.push(&self.piece, &mut text) {
                return Ok(Accepted { token, text, finish: Some(FinishReason::Stop) });
            }
        }
        let finish = match (ended, self.left) {
            (true, _) => Some(FinishReason::Stop),
            (false, 0) => Some(FinishReason::Length),
            (false, _) => None,
        };
        if finish.is_some() && self.flush(&mut text) {
            return Ok(Accepted { token, text, finish: Some(FinishReason::Stop) });
        }
        Ok(Accepted { token, text, finish })
    }

    /// The text that is held back just now, in whole characters: whoever may end the answer from outside at any time
    /// keeps it beside what was sent.
    pub fn held(&self) -> &str {
        self.stop.held()
    }

    /// The text that was held back, for an answer that ends from outside (cancelled).
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        self.flush(&mut text);
        text
    }

    /// Lets go of what was held back; whether a stop string was complete in it.
    fn flush(&mut self, text: &mut String) -> bool {
        self.piece.clear();
        self.detokenizer.finish(&mut self.piece);
        self.stop.push(&self.piece, text) || self.stop.finish(text)
    }
}

impl GenerationParams {
    /// Checks every field for a model of `vocab_size` tokens.
    ///
    /// # Errors
    /// The first field out of range, by name.
    pub fn validate(&self, vocab_size: usize) -> Result<(), RequestError> {
        self.sampling.validate(vocab_size)?;
        StopStrings::new(self.stop.clone())?;
        match self.max_tokens {
            Some(0) => Err(RequestError::BadParameter {
                field: "max_tokens".into(),
                found: "0".into(),
                expected: "it must be at least 1".into(),
            }),
            _ => Ok(()),
        }
    }
}
