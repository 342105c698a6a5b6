//! One job inside the scheduler's core: where it is, and what it took so far.

use super::{ConnectionId, Lease, Measure, NewJob, Uptime};
use crate::scheduler::plan::ModelName;
use std::sync::Arc;
use std::time::Duration;
use zllm_state::BLOCK_TOKENS;
use zllm_wire::{Event, TokenLogprob, Usage};

#[derive(Debug)]
pub(super) struct Job {
    pub(super) model: ModelName,
    pub(super) prompt: Arc<[u32]>,
    pub(super) max_tokens: usize,
    pub(super) bytes: usize,
    pub(super) owner: Option<ConnectionId>,
    pub(super) arrived_at: Uptime,
    /// To be ended as soon as whoever works on it has answered.
    pub(super) cancelled: bool,
    /// The device keeps something for it.
    pub(super) device_knows: bool,
    pub(super) phase: Phase,
}

#[derive(Debug)]
pub(super) enum Phase {
    Queued,
    Running(Running),
}

/// An admitted sequence.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) lease: Lease,
    /// The prompt and what was generated.
    pub(super) tokens: Vec<u32>,
    /// Leading tokens whose KV is in the blocks. At least one token is always left: the next to feed.
    pub(super) computed: usize,
    /// Leading blocks that are committed.
    committed: usize,
    pub(super) generated: usize,
    /// Tokens generated since the last text event.
    pub(super) unsent_tokens: u32,
    /// Their log probabilities, when the request wants them.
    pub(super) unsent_logprobs: Vec<TokenLogprob>,
    /// Text of those tokens that waits for the end of what may be a stop string.
    pub(super) held: String,
    pub(super) started_at: Uptime,
    first_token_at: Option<Uptime>,
    last_token_at: Option<Uptime>,
}

/// KV positions that a request may fill: the last token that is sampled is never fed.
pub(super) fn capacity_tokens(prompt_tokens: usize, max_tokens: usize) -> usize {
    prompt_tokens + max_tokens - 1
}

impl Job {
    pub(super) fn new(new: NewJob) -> Self {
        Self {
            model: new.model,
            prompt: new.prompt.into(),
            max_tokens: new.max_tokens,
            bytes: new.bytes,
            owner: new.owner,
            arrived_at: new.arrived_at,
            cancelled: false,
            device_knows: false,
            phase: Phase::Queued,
        }
    }

    pub(super) fn usage(&self, now: Uptime) -> Usage {
        let mut usage = Usage { prompt_tokens: self.prompt.len() as u64, ..Usage::default() };
        let Phase::Running(running) = &self.phase else {
            usage.queue_ms = milliseconds(now.saturating_sub(self.arrived_at));
            return usage;
        };
        usage.cached_tokens = running.lease.cached_tokens as u64;
        usage.generated_tokens = running.generated as u64;
        usage.queue_ms = milliseconds(running.started_at.saturating_sub(self.arrived_at));
        let first = running.first_token_at.unwrap_or(now);
        usage.prefill_ms = milliseconds(first.saturating_sub(running.started_at));
        usage.first_token_ms =
            running.first_token_at.map_or(0.0, |at| milliseconds(at.saturating_sub(self.arrived_at)));
        usage.decode_ms = milliseconds(running.last_token_at.unwrap_or(first).saturating_sub(first));
        usage
    }
}

impl Running {
    pub(super) fn new(prompt: &[u32], lease: Lease, now: Uptime) -> Self {
        assert!(lease.cached_tokens < prompt.len(), "one prompt token at least is computed, for its logits");
        Self {
            tokens: prompt.to_vec(),
            computed: lease.cached_tokens,
            committed: lease.cached_tokens / BLOCK_TOKENS,
            lease,
            generated: 0,
            unsent_tokens: 0,
            unsent_logprobs: Vec::new(),
            held: String::new(),
            started_at: now,
            first_token_at: None,
            last_token_at: None,
        }
    }

    /// Tokens of the blocks that have become full, in order; each is given once.
    pub(super) fn newly_full_blocks(&mut self) -> Vec<Vec<u32>> {
        let full = self.computed / BLOCK_TOKENS;
        let blocks = self.committed..full;
        self.committed = full;
        blocks.map(|block| self.tokens[block * BLOCK_TOKENS..(block + 1) * BLOCK_TOKENS].to_vec()).collect()
    }

    /// The event that sends `text` for all tokens since the last one; none for no text.
    pub(super) fn text_event(&mut self, text: String) -> Option<Event> {
        (!text.is_empty()).then(|| self.event_of(text))
    }

    /// The event that sends what was held back, or log probabilities that no text has taken along; none for neither.
    pub(super) fn last_event(&mut self) -> Option<Event> {
        let held = std::mem::take(&mut self.held);
        (!held.is_empty() || !self.unsent_logprobs.is_empty()).then(|| self.event_of(held))
    }

    fn event_of(&mut self, text: String) -> Event {
        let tokens = std::mem::take(&mut self.unsent_tokens);
        Event::Text { choice: 0, text, tokens, logprobs: std::mem::take(&mut self.unsent_logprobs) }
    }

    /// Appends a sampled token; returns the time it took since the token before, or since the request.
    pub(super) fn note_token(&mut self, token: u32, now: Uptime, arrived_at: Uptime) -> Measure {
        assert_eq!(self.computed, self.tokens.len(), "a token is sampled after the last one");
        self.tokens.push(token);
        self.generated += 1;
        let measure = match self.last_token_at {
            Some(last) => Measure::InterToken(now.saturating_sub(last)),
            None => Measure::FirstToken(now.saturating_sub(arrived_at)),
        };
        self.first_token_at.get_or_insert(now);
        self.last_token_at = Some(now);
        measure
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}
