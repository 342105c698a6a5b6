//! DRY, "don't repeat yourself": a token that would prolong a repetition loses the more, the longer the repetition is.
//!
//! Source: the description by its author (oobabooga/text-generation-webui, pull request 5677), with the rules of
//! llama.cpp's `llama_sampler_dry_apply` (`src/llama-sampler.cpp`). In the window of the last tokens:
//!
//! 1. A sequence breaker bounds everything: no repetition reaches back beyond the last breaker.
//! 2. Wherever the window's end occurs earlier too, for `length` tokens (at most up to the last breaker), the token that
//!    came next there would prolong it. For each such token the longest length counts.
//! 3. From `dry_allowed_length` on it loses `dry_multiplier * dry_base ^ (length - dry_allowed_length)`, unless the token
//!    holds a whole breaker by itself.
//!
//! All of it follows from the tokens so far, so a sequence resumed from its tokens goes on as before. The lengths come
//! from one pass (the Z function of the window read backwards), linear in the window.

use std::collections::HashMap;

use super::{SamplingParams, math};
use crate::tokenizer::Tokenizer;

/// Longest rest of a breaker that is looked for behind its first token, in tokens; as in llama.cpp.
const MAX_TAIL_TOKENS: usize = 20;

/// Sequence breakers as tokens: for each token that a breaker may begin in, the tokens that must follow for the whole of
/// it. None need to follow a token that holds a whole breaker.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DryBreakers {
    tails: HashMap<u32, Vec<Vec<u32>>>,
}

impl DryBreakers {
    /// Finds `breakers` in the vocabulary; looks at every token.
    pub fn new(breakers: &[String], tokenizer: &Tokenizer) -> Self {
        let mut found = Self::default();
        for id in 0..tokenizer.vocab_size() as u32 {
            let bytes = tokenizer.token_bytes(id);
            for breaker in breakers {
                found.add_token(id, bytes, breaker, tokenizer);
            }
        }
        found
    }

    fn add_token(&mut self, id: u32, bytes: &[u8], breaker: &str, tokenizer: &Tokenizer) {
        if bytes.windows(breaker.len()).any(|window| window == breaker.as_bytes()) {
            return self.add(id, Vec::new());
        }
        for start in (bytes.len() + 1).saturating_sub(breaker.len())..bytes.len() {
            let inside = bytes.len() - start;
            // A token that ends within a character of the breaker has no text to go on with.
            if breaker.is_char_boundary(inside) && breaker.as_bytes().starts_with(&bytes[start..]) {
                let mut tail = Vec::new();
                tokenizer.encode(&breaker[inside..], false, &mut tail);
                tail.truncate(MAX_TAIL_TOKENS);
                self.add(id, tail);
            }
        }
    }

    fn add(&mut self, head: u32, tail: Vec<u32>) {
        let tails = self.tails.entry(head).or_default();
        if !tails.contains(&tail) {
            tails.push(tail);
        }
    }

    /// Whether the token holds a whole breaker.
    fn is_breaker(&self, token: u32) -> bool {
        self.tails.get(&token).is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }

    /// How many of the last tokens come after the last breaker; all, if there is none.
    fn tokens_after_the_last(&self, window: &[u32]) -> usize {
        for (head, token) in window.iter().enumerate().rev() {
            let after = &window[head + 1..];
            let tails = self.tails.get(token).map_or(&[][..], Vec::as_slice);
            let longest = tails.iter().filter(|tail| after.starts_with(tail)).map(Vec::len).max();
            if let Some(longest) = longest {
                return after.len() - longest;
            }
        }
        window.len()
    }
}

/// The penalty of one sequence.
#[derive(Debug, Clone)]
pub(super) struct Dry {
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    window_length: usize,
    breakers: DryBreakers,
    /// The last tokens: those of the window, and perhaps older ones.
    tokens: Vec<u32>,
    /// For each distance back, how long the window's end occurs there.
    lengths: Vec<usize>,
    /// Tokens that would prolong a repetition, with its length.
    prolonging: Vec<(u32, usize)>,
}

impl Dry {
    /// The penalty for a sequence that so far holds `tokens`; `None` when `params` do not ask for it.
    pub(super) fn new(params: &SamplingParams, breakers: DryBreakers, tokens: &[u32]) -> Option<Self> {
        if params.dry_multiplier == 0.0 || params.dry_penalty_last_n == 0 {
            return None;
        }
        let window_length = params.dry_penalty_last_n as usize;
        Some(Self {
            multiplier: params.dry_multiplier,
            base: params.dry_base,
            allowed_length: params.dry_allowed_length as usize,
            window_length,
            breakers,
            tokens: tokens[tokens.len().saturating_sub(window_length)..].to_vec(),
            lengths: Vec::new(),
            prolonging: Vec::new(),
        })
    }

    /// Remembers a token that was drawn.
    pub(super) fn push(&mut self, token: u32) {
        if self.tokens.len() >= self.window_length.saturating_mul(2) {
            self.tokens.drain(..self.tokens.len() - self.window_length);
        }
        self.tokens.push(token);
    }

    /// Lowers the logits of tokens that would prolong a repetition.
    pub(super) fn apply(&mut self, logits: &mut [f32]) {
        self.find_prolonging();
        for &(token, length) in &self.prolonging {
            if let Some(logit) = logits.get_mut(token as usize)
                && !self.breakers.is_breaker(token)
            {
                let exponent = (length - self.allowed_length) as u32;
                let penalty = f64::from(self.multiplier) * math::whole_power(self.base.into(), exponent);
                // Finite, so that a row whose tokens are all punished still has one to draw.
                *logit -= penalty.min(f64::from(f32::MAX)) as f32;
            }
        }
    }

    /// Fills `prolonging`: each token once, with the longest repetition that it would prolong.
    fn find_prolonging(&mut self) {
        self.prolonging.clear();
        let window = &self.tokens[self.tokens.len().saturating_sub(self.window_length)..];
        let limit = self.breakers.tokens_after_the_last(window);
        if window.len() <= self.allowed_length || limit < self.allowed_length {
            return;
        }
        lengths_of_the_end(window, &mut self.lengths);
        for back in 1..window.len() {
            let length = self.lengths[back].min(limit);
            if length >= self.allowed_length {
                self.prolonging.push((window[window.len() - back], length));
            }
        }
        self.prolonging.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        self.prolonging.dedup_by_key(|&mut (token, _)| token);
    }
}

/// Sets `lengths[back]` to how many tokens before the last `back` ones equal the last tokens of the window: the Z function
/// of the window read backwards (Gusfield, "Algorithms on strings, trees and sequences", 1997, section 1.4).
fn lengths_of_the_end(window: &[u32], lengths: &mut Vec<usize>) {
    let at = |distance: usize| window[window.len() - 1 - distance];
    lengths.clear();
    lengths.resize(window.len(), 0);
    // The match found so far that reaches farthest back: it begins at `start` and ends before `end`.
    let (mut start, mut end) = (0, 0);
    for back in 1..window.len() {
        let mut length = if back < end { lengths[back - start].min(end - back) } else { 0 };
        while back + length < window.len() && at(length) == at(back + length) {
            length += 1;
        }
        if back + length > end {
            (start, end) = (back, back + length);
        }
        lengths[back] = length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn breakers(sequences: &[&[u32]]) -> DryBreakers {
        let mut breakers = DryBreakers::default();
        for sequence in sequences {
            breakers.add(sequence[0], sequence[1..].to_vec());
        }
        breakers
    }

    /// What each token of a vocabulary of 8 loses, straight from the rules above.
    fn twin(params: &SamplingParams, sequences: &[&[u32]], tokens: &[u32]) -> Vec<f64> {
        let window = &tokens[tokens.len().saturating_sub(params.dry_penalty_last_n as usize)..];
        let ends_of = |window: &[u32]| {
            (0..window.len()).rev().find_map(|head| {
                let fits = |sequence: &&&[u32]| window[head..].starts_with(sequence);
                sequences.iter().filter(fits).map(|sequence| head + sequence.len()).max()
            })
        };
        let limit = window.len() - ends_of(window).unwrap_or(0);
        let mut longest = [None; 8];
        for place in 1..window.len() {
            let before = &window[..place];
            let same = before.iter().rev().zip(window.iter().rev()).take_while(|(a, b)| a == b).count();
            let best = &mut longest[window[place] as usize];
            *best = (*best).max(Some(same.min(limit)));
        }
        let loss = |(token, longest): (usize, Option<usize>)| match longest {
            _ if sequences.iter().any(|sequence| **sequence == [token as u32]) => 0.0,
            Some(length) if length >= params.dry_allowed_length as usize => {
                let exponent = length as i32 - params.dry_allowed_length as i32;
                f64::from(params.dry_multiplier) * f64::from(params.dry_base).powi(exponent)
            }
            _ => 0.0,
        };
        longest.into_iter().enumerate().map(loss).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn as_the_rules_say(
            // Few tokens, so that there are repetitions.
            tokens in prop_oneof![prop::collection::vec(0u32..3, 0..60), prop::collection::vec(0u32..8, 0..60)],
            split in 0usize..60,
            window in prop_oneof![Just(u32::MAX), 1u32..70],
            allowed in 1u32..5,
            with in 0usize..4,
        ) {
            let params = SamplingParams {
                dry_multiplier: 0.8,
                dry_base: 1.5,
                dry_allowed_length: allowed,
                dry_penalty_last_n: window,
                ..SamplingParams::greedy()
            };
            let all: [&[&[u32]]; 4] = [&[], &[&[2]], &[&[1, 2], &[5]], &[&[2, 0, 1], &[2, 0], &[7]]];
            let (prompt, drawn) = tokens.split_at(split.min(tokens.len()));
            let mut dry = Dry::new(&params, breakers(all[with]), prompt).expect("it is on");
            drawn.iter().for_each(|&token| dry.push(token));
            let mut logits = [0.0f32; 8];
            dry.apply(&mut logits);
            for (token, loss) in twin(&params, all[with], &tokens).into_iter().enumerate() {
                let found = -f64::from(logits[token]);
                prop_assert!((found - loss).abs() <= 1e-6 * loss, "token {token} lost {found}, should lose {loss}");
            }
        }
    }

    #[test]
    fn a_penalty_beyond_all_numbers_leaves_a_finite_logit() {
        let params = SamplingParams {
            dry_multiplier: 100.0,
            dry_base: 100.0,
            dry_penalty_last_n: u32::MAX,
            ..SamplingParams::greedy()
        };
        let mut dry = Dry::new(&params, DryBreakers::default(), &[3; 500]).expect("it is on");
        let mut logits = [1.0; 4];
        dry.apply(&mut logits);
        assert_eq!(logits, [1.0, 1.0, 1.0, -f32::MAX]);
    }

    #[test]
    fn off_is_off() {
        let off = SamplingParams::default();
        assert!(Dry::new(&off, DryBreakers::default(), &[1]).is_none());
        let no_window = SamplingParams { dry_multiplier: 1.0, dry_penalty_last_n: 0, ..off };
        assert!(Dry::new(&no_window, DryBreakers::default(), &[1]).is_none());
    }
}
