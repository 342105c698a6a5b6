//! One sequence's answer: sampler, detokenizer, stop strings and limits. Knows no device and no batch.
//!
//! Invariant: what is sent never holds a part of a stop string or a split character, and the texts sent, put together,
//! are the whole answer.
//!
//! Invariant: tokens and the sampler's state are all that an answer is made of. One that is resumed from them goes on to
//! the bit as if it had never stopped.

use std::sync::Arc;

use crate::{
    detokenizer::{Detokenizer, TOKEN_BYTES},
    request::{
        FinishReason, GenerationParams, MAX_LOG_PROBABILITIES, MAX_STOP_TOKENS, RequestError, StopCause,
    },
    sampling::{DryBreakers, Sampler, SamplerState, known_token, log_probabilities_beside},
    stop::StopStrings,
    text_model::TextModel,
};

/// The state of one answer.
pub struct Generation {
    text_model: Arc<TextModel>,
    sampler: Sampler,
    detokenizer: Detokenizer,
    stop: StopStrings,
    stop_tokens: Vec<u32>,
    /// Tokens that may not be drawn before the answer may end.
    endings: Vec<u32>,
    /// Position of the next token.
    position: usize,
    /// Tokens that may still be drawn.
    left: usize,
    /// Tokens that must still be drawn before the answer may end.
    must: usize,
    ignore_eos: bool,
    logprobs: Option<usize>,
    /// The row as the model gave it, while log probabilities are wanted.
    untouched: Vec<f32>,
    /// Bytes of text that the detokenizer has given.
    text_bytes: usize,
    /// Reused for each token's text.
    piece: String,
}

/// What one token brought.
#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    /// The token.
    pub token: u32,
    /// Text that is safe to send; may be empty.
    pub text: String,
    /// Set when the answer is complete; the token is then not to be fed.
    pub finish: Option<FinishReason>,
    /// What stopped the answer, when that is why it is complete.
    pub stop: Option<StopCause>,
    /// What the model thought of the token, if that was asked for.
    pub report: Option<TokenReport>,
    /// What [`Generation::resume`] needs beside the tokens to go on after this one.
    pub state: SamplerState,
}

/// An answer taken up again from its tokens.
pub enum Resumed {
    /// It goes on with the token after them.
    Going(Box<Generation>),
    /// The last of them had completed it: what [`Accepted`] said of its end then.
    Ended {
        /// Text that the last token let go of.
        text: String,
        /// Why it is complete.
        finish: FinishReason,
        /// What stopped it, when that is why.
        stop: Option<StopCause>,
    },
}

/// A drawn token as the model saw it. Log probabilities are natural, of the model's own distribution: before penalties,
/// biases, temperature and filters.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenReport {
    /// The token.
    pub token: u32,
    /// What it adds to the text: perhaps a part of a character; nothing for a control token.
    pub bytes: Vec<u8>,
    /// Its log probability.
    pub log_probability: f32,
    /// Where its bytes begin in the answer's text. For a token that a stop cuts off, at or after the text's end.
    pub offset: usize,
    /// The most likely tokens at its place, most likely first.
    pub alternatives: Vec<Alternative>,
}

/// A token that could have been drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// The token.
    pub token: u32,
    /// What it would add to the text.
    pub bytes: Vec<u8>,
    /// Its log probability.
    pub log_probability: f32,
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

/// Why an answer cannot be taken up again.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// A parameter, or a token that the model does not have.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Tokens that these parameters cannot have given.
    #[error(
        "the answer was complete with token {token} at place {place}, but has {tokens} tokens: they were drawn with other \
         parameters or another model"
    )]
    PastItsEnd {
        /// The token that completes it.
        token: u32,
        /// Its index in the answer.
        place: usize,
        /// Tokens that were to be resumed from.
        tokens: usize,
    },
}

/// What a token did to the text.
struct Advance {
    text: String,
    finish: Option<FinishReason>,
    stop: Option<StopCause>,
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
        let left = params.max_tokens.map_or(room, |most| room.min(most as usize));
        let must = params.min_tokens as usize;
        if must > left {
            return Err(bad(
                "min_tokens",
                must,
                format!("it must be at most the tokens there is room for, {left}"),
            ));
        }
        if let (false, Err(error)) = (params.stop.is_empty(), text_model.tokenizer()) {
            return Err(bad("stop", "a list of texts", format!("it must be empty here: {error}")));
        }
        let breakers = dry_breakers(&text_model, params)?;
        let mut endings = params.stop_tokens.clone();
        if let Ok(tokenizer) = text_model.tokenizer()
            && !params.ignore_eos
        {
            endings.extend_from_slice(tokenizer.ends_of_generation());
        }
        Ok(Self {
            sampler: Sampler::with_breakers(params.sampling.clone(), breakers, prompt_tokens)
                .on(text_model.isa()),
            detokenizer: Detokenizer::new(),
            stop: StopStrings::new(params.stop.clone())?,
            stop_tokens: params.stop_tokens.clone(),
            endings,
            position: prompt_tokens.len(),
            left,
            must,
            ignore_eos: params.ignore_eos,
            logprobs: params.logprobs.map(|count| count as usize),
            untouched: Vec::new(),
            text_bytes: 0,
            piece: String::with_capacity(TOKEN_BYTES),
            text_model,
        })
    }

    /// The answer to `prompt_tokens` after it has drawn `generated`, in time linear in them: sampler, held back text, limits
    /// and positions are as they were. `state` is what [`Accepted`] gave with the last of them; without any token the answer
    /// begins, and `state` is not looked at.
    ///
    /// # Errors
    /// A parameter out of range, a token out of the vocabulary, or tokens after the answer's end.
    pub fn resume(
        text_model: Arc<TextModel>,
        prompt_tokens: &[u32],
        params: &GenerationParams,
        generated: &[u32],
        state: SamplerState,
    ) -> Result<Resumed, ResumeError> {
        let vocab_size = text_model.vocab_size();
        let mut generation = Self::new(text_model, prompt_tokens, params)?;
        for (place, &token) in generated.iter().enumerate() {
            if token as usize >= vocab_size {
                return Err(RequestError::BadToken { token, place, vocab_size }.into());
            }
            generation.sampler.remember(token);
            let Advance { text, finish, stop } = generation.advance(token);
            let Some(finish) = finish else { continue };
            if place + 1 < generated.len() {
                return Err(ResumeError::PastItsEnd { token, place, tokens: generated.len() });
            }
            return Ok(Resumed::Ended { text, finish, stop });
        }
        if !generated.is_empty() {
            generation.sampler = generation.sampler.resume_from(state);
        }
        Ok(Resumed::Going(Box::new(generation)))
    }

    /// Draws the next token from the logits after the last fed token.
    ///
    /// # Errors
    /// Logits that hold no number; the answer cannot go on.
    pub fn accept(&mut self, logits: &mut [f32]) -> Result<Accepted, NoLogits> {
        debug_assert!(self.left > 0, "an answer that is complete draws no more");
        if self.logprobs.is_some() {
            self.untouched.clear();
            self.untouched.extend_from_slice(logits);
        }
        let forbidden = if self.must == 0 { &[][..] } else { &self.endings };
        let token = self.sampler.sample_except(logits, self.position as u64, forbidden);
        if self.sampler.was_degenerate() {
            return Err(NoLogits { position: self.position });
        }
        let report = self.report(token);
        let Advance { text, finish, stop } = self.advance(token);
        Ok(Accepted { token, text, finish, stop, report, state: self.sampler.state() })
    }

    /// Counts a drawn token and brings it to text.
    fn advance(&mut self, token: u32) -> Advance {
        let may_end = self.must == 0;
        self.position += 1;
        self.left = self.left.saturating_sub(1);
        self.must = self.must.saturating_sub(1);
        let mut text = String::new();
        let mut stop = self.ended_by(token);
        if stop.is_none() {
            self.detokenize(token);
            stop = self.show(may_end, &mut text);
        }
        let is_complete = stop.is_some() || self.left == 0;
        if is_complete && self.stop.matched().is_none() {
            // What is let go of may hold the stop string that text to come could have made longer.
            stop = self.flush(may_end, &mut text).or(stop);
        }
        let finish = match (stop, is_complete) {
            (Some(_), _) => Some(FinishReason::Stop),
            (None, true) => Some(FinishReason::Length),
            (None, false) => None,
        };
        Advance { text, finish, stop }
    }

    /// The stop strings that it watches for.
    pub fn stop_strings(&self) -> &[String] {
        self.stop.stops()
    }

    /// The text that is held back just now, in whole characters: whoever may end the answer from outside at any time
    /// keeps it beside what was sent.
    pub fn held(&self) -> &str {
        self.stop.held()
    }

    /// The text that was held back, for an answer that ends from outside (cancelled).
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        self.flush(true, &mut text);
        text
    }

    /// Whether the token itself ends the answer.
    fn ended_by(&self, token: u32) -> Option<StopCause> {
        if self.stop_tokens.contains(&token) {
            return Some(StopCause::Token { token });
        }
        let tokenizer = self.text_model.tokenizer().ok()?;
        let ends = !self.ignore_eos && tokenizer.is_end_of_generation(token);
        ends.then_some(StopCause::EndOfText { token })
    }

    /// Puts the token's text into `piece`.
    fn detokenize(&mut self, token: u32) {
        self.piece.clear();
        // A model without a tokenizer answers in tokens alone, and rows that pad the embedding past the vocabulary have no
        // text.
        if let Ok(tokenizer) = self.text_model.tokenizer()
            && (token as usize) < tokenizer.vocab_size()
        {
            self.detokenizer.push(tokenizer, token, &mut self.piece);
        }
        self.text_bytes += self.piece.len();
    }

    /// Appends `piece` to `text` as far as it is safe, or all of it while the answer may not end.
    fn show(&mut self, may_end: bool, text: &mut String) -> Option<StopCause> {
        if !may_end {
            text.push_str(&self.piece);
        } else if self.stop.push(&self.piece, text) {
            return self.stopped();
        }
        None
    }

    /// Lets go of what was held back; the stop string that was complete in it.
    fn flush(&mut self, may_end: bool, text: &mut String) -> Option<StopCause> {
        self.piece.clear();
        self.detokenizer.finish(&mut self.piece);
        let stopped = self.show(may_end, text);
        if self.stop.finish(text) { self.stopped() } else { stopped }
    }

    fn stopped(&self) -> Option<StopCause> {
        self.stop.matched().map(|index| StopCause::Text { index })
    }

    /// The report on `token`, which was drawn from `untouched`.
    fn report(&self, token: u32) -> Option<TokenReport> {
        let found = log_probabilities_beside(self.text_model.isa(), &self.untouched, token, self.logprobs?)?;
        let alternative = |(token, log_probability)| Alternative {
            token,
            bytes: self.bytes_of(token).to_vec(),
            log_probability,
        };
        Some(TokenReport {
            token,
            bytes: self.bytes_of(token).to_vec(),
            log_probability: found.drawn,
            offset: self.text_bytes + self.detokenizer.held_bytes(),
            alternatives: found.top.into_iter().map(alternative).collect(),
        })
    }

    fn bytes_of(&self, token: u32) -> &[u8] {
        match self.text_model.tokenizer() {
            Ok(tokenizer) if (token as usize) < tokenizer.vocab_size() && !tokenizer.is_hidden(token) => {
                tokenizer.token_bytes(token)
            }
            _ => &[],
        }
    }
}

/// DRY's sequence breakers in the model's tokens; looks for them only when DRY is on.
fn dry_breakers(text_model: &TextModel, params: &GenerationParams) -> Result<DryBreakers, RequestError> {
    let breakers = &params.sampling.dry_sequence_breakers;
    if params.sampling.dry_multiplier == 0.0 || breakers.is_empty() {
        return Ok(DryBreakers::default());
    }
    let tokenizer = text_model.tokenizer().map_err(|error| {
        bad("dry_sequence_breakers", "a list of texts", format!("it must be empty here: {error}"))
    })?;
    Ok(DryBreakers::new(breakers, tokenizer))
}

fn bad(field: &str, found: impl ToString, expected: String) -> RequestError {
    RequestError::BadParameter { field: field.into(), found: found.to_string(), expected }
}

impl GenerationParams {
    /// Checks every field for a model of `vocab_size` tokens.
    ///
    /// # Errors
    /// The first field out of range, by name.
    pub fn validate(&self, vocab_size: usize) -> Result<(), RequestError> {
        self.sampling.validate(vocab_size)?;
        StopStrings::new(self.stop.clone())?;
        if self.stop_tokens.len() > MAX_STOP_TOKENS {
            let found = format!("a list of {}", self.stop_tokens.len());
            return Err(bad("stop_tokens", found, format!("at most {MAX_STOP_TOKENS} tokens are allowed")));
        }
        for &token in &self.stop_tokens {
            known_token("stop_tokens", token, vocab_size)?;
        }
        if let Some(count) = self.logprobs.filter(|&count| count as usize > MAX_LOG_PROBABILITIES) {
            return Err(bad("logprobs", count, format!("it must be from 0 to {MAX_LOG_PROBABILITIES}")));
        }
        match self.max_tokens {
            Some(0) => Err(bad("max_tokens", 0, "it must be at least 1".into())),
            Some(most) if self.min_tokens > most => {
                Err(bad("min_tokens", self.min_tokens, format!("it must be at most max_tokens, {most}")))
            }
            _ => Ok(()),
        }
    }
}
