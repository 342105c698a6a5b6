//! Repeat, frequency and presence penalties over a window of the sequence's last tokens.
//!
//! Prompt and generated tokens count alike, so a sequence resumed from its tokens is penalised as before.
//! Invariant: `counts` is sorted by id, holds no zero, and counts exactly the tokens in `window`.

use super::SamplingParams;
use std::collections::VecDeque;

#[derive(Debug, Clone)]
pub(super) struct Penalties {
    repeat: f32,
    frequency: f32,
    presence: f32,
    /// Tokens looked back at; 0 when no penalty is on, and then nothing is remembered.
    window_length: usize,
    window: VecDeque<u32>,
    counts: Vec<(u32, u32)>,
}

impl Penalties {
    pub(super) fn new(params: &SamplingParams, tokens: &[u32]) -> Self {
        let is_on =
            params.repeat_penalty != 1.0 || params.frequency_penalty != 0.0 || params.presence_penalty != 0.0;
        let mut penalties = Self {
            repeat: params.repeat_penalty,
            frequency: params.frequency_penalty,
            presence: params.presence_penalty,
            window_length: if is_on { params.repeat_last_n as usize } else { 0 },
            window: VecDeque::new(),
            counts: Vec::new(),
        };
        for &token in &tokens[tokens.len().saturating_sub(penalties.window_length)..] {
            penalties.push(token);
        }
        penalties
    }

    pub(super) fn push(&mut self, token: u32) {
        if self.window_length == 0 {
            return;
        }
        if self.window.len() == self.window_length
            && let Some(oldest) = self.window.pop_front()
        {
            self.forget(oldest);
        }
        self.window.push_back(token);
        match self.counts.binary_search_by_key(&token, |&(id, _)| id) {
            Ok(index) => self.counts[index].1 += 1,
            Err(index) => self.counts.insert(index, (token, 1)),
        }
    }

    fn forget(&mut self, token: u32) {
        let index =
            self.counts.binary_search_by_key(&token, |&(id, _)| id).expect("the window's tokens are counted");
        self.counts[index].1 -= 1;
        if self.counts[index].1 == 0 {
            self.counts.remove(index);
        }
    }

    pub(super) fn apply(&self, logits: &mut [f32]) {
        for &(id, count) in &self.counts {
            let Some(logit) = logits.get_mut(id as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / self.repeat } else { *logit * self.repeat };
            *logit -= count as f32 * self.frequency + self.presence;
        }
    }
}
