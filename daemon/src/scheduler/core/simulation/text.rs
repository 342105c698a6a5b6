//! The simulated model and sampler, and what a job's answers are when it is alone on the machine.
//!
//! The KV of a position is a hash of its token and of the KV before it; the next token is a hash of the last position's KV,
//! of the answer's number and of the sampler's state. So a wrong block, a lost or doubled token, another tenant's KV or a
//! sampler that was not brought back as it was gives another text from there on.

use super::rng::mix;
use crate::scheduler::plan::Accepted;
use zllm_wire::{ChoiceEnd, Event, FinishReason, StopCause, TokenLogprob};

const TOKEN_OF_THE_END: u32 = 0;
/// Other tokens that the model may draw: 1 up to this.
const VOCABULARY: u64 = 997;

/// The KV before the first token: tenants share none.
pub(super) fn kv_root(model: usize, tenant: &str) -> u64 {
    tenant.bytes().fold(mix(model as u64 + 1), |kv, byte| kv_of(kv, byte.into()))
}

/// The KV of a token's position.
pub(super) fn kv_of(before: u64, token: u32) -> u64 {
    mix(before ^ (u64::from(token) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The one value of the row behind a position.
pub(super) fn row_of(kv: u64) -> f32 {
    (kv >> 40) as f32
}

/// The KV of each position.
pub(super) fn kv_chain(root: u64, tokens: &[u32]) -> Vec<u64> {
    let mut kv = root;
    let next = |token: &u32| {
        kv = kv_of(kv, *token);
        kv
    };
    tokens.iter().map(next).collect()
}

/// How answers are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sampling {
    /// One in so many tokens ends the text.
    pub(super) ends_in: u64,
    pub(super) logprobs: bool,
}

/// Of one answer, after some tokens.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sampler {
    sampling: Sampling,
    choice: u32,
    /// Follows from the tokens drawn so far, as mirostat's bound does.
    pub(super) state: f32,
    held: String,
}

impl Sampler {
    pub(super) fn new(sampling: Sampling, choice: u32) -> Self {
        Self { sampling, choice, state: 0.0, held: String::new() }
    }

    /// Draws the token after a position with this KV. Every third token's text waits for the next one.
    pub(super) fn draw(&mut self, kv: u64) -> Accepted {
        let hash = mix(kv ^ mix(u64::from(self.choice) ^ (u64::from(self.state.to_bits()) << 32)));
        let ends = hash.is_multiple_of(self.sampling.ends_in);
        let token = if ends { TOKEN_OF_THE_END } else { 1 + ((hash >> 20) % VOCABULARY) as u32 };
        self.state = ((self.state as u32 * 31 + token) % 4093) as f32;
        let mut text = std::mem::take(&mut self.held) + &format!("{token} ");
        if !ends && token.is_multiple_of(3) {
            self.held = std::mem::take(&mut text);
        }
        let logprob = TokenLogprob { token, bytes: Vec::new(), logprob: -1.0, offset: 0, top: Vec::new() };
        let stop = Some(StopCause::EndOfText { token });
        Accepted {
            token,
            text,
            held: self.held.clone(),
            logprob: self.sampling.logprobs.then_some(logprob),
            finish: ends.then_some(ChoiceEnd { reason: FinishReason::Stop, stop }),
            state: self.state,
        }
    }

    /// The sampler after the tokens of an answer to a prompt whose last position has this KV.
    ///
    /// # Errors
    /// When the model would not have drawn these.
    pub(super) fn resume(
        sampling: Sampling,
        choice: u32,
        mut kv: u64,
        generated: &[u32],
    ) -> Result<Self, String> {
        let mut sampler = Self::new(sampling, choice);
        for (at, token) in generated.iter().enumerate() {
            let drawn = sampler.draw(kv).token;
            if drawn != *token {
                return Err(format!("token {at} is {token}, the model draws {drawn} there"));
            }
            kv = kv_of(kv, *token);
        }
        Ok(sampler)
    }
}

/// The first tokens of an answer, computed alone.
pub(super) struct Alone {
    pub(super) events: Vec<Event>,
    /// Set when the answer ends with the last of them.
    pub(super) end: Option<ChoiceEnd>,
}

/// What the first `count` tokens of an answer look like, to a prompt whose last position has this KV, when it is cut there.
///
/// # Errors
/// When the answer is shorter.
pub(super) fn alone(
    sampling: Sampling,
    choice: u32,
    mut kv: u64,
    max_tokens: usize,
    count: usize,
) -> Result<Alone, String> {
    let mut sampler = Sampler::new(sampling, choice);
    let (mut events, mut end) = (Vec::new(), None);
    let (mut tokens, mut logprobs) = (0, Vec::new());
    for at in 0..count {
        if end.is_some() {
            return Err(format!("it ends after {at} tokens, {count} were sent"));
        }
        let accepted = sampler.draw(kv);
        kv = kv_of(kv, accepted.token);
        tokens += 1;
        logprobs.extend(accepted.logprob);
        if !accepted.text.is_empty() {
            let logprobs = std::mem::take(&mut logprobs);
            let tokens = std::mem::take(&mut tokens);
            events.push(Event::Text { choice, text: accepted.text, tokens, logprobs });
        }
        end = accepted.finish;
        if at + 1 == max_tokens {
            end.get_or_insert(ChoiceEnd { reason: FinishReason::Length, stop: None });
        }
    }
    if !sampler.held.is_empty() {
        events.push(Event::Text { choice, text: sampler.held, tokens, logprobs });
    }
    Ok(Alone { events, end })
}
