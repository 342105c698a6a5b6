//! One job inside the scheduler's core: where each of its answers is, and what it took so far.

use super::{ConnectionId, Lease, Measure, NewJob, Uptime, token_tiers};
use crate::scheduler::plan::ModelName;
use std::sync::Arc;
use std::time::Duration;
use zllm_state::{BLOCK_TOKENS, ByTier};
use zllm_wire::{ChoiceEnd, Event, FinishReason, TokenLogprob, Usage};

#[derive(Debug)]
pub(super) struct Job {
    pub(super) model: ModelName,
    pub(super) tenant: String,
    pub(super) prompt: Arc<[u32]>,
    pub(super) max_tokens: usize,
    pub(super) bytes: usize,
    pub(super) owner: Option<ConnectionId>,
    pub(super) arrived_at: Uptime,
    /// To be ended as soon as whoever works on it has answered.
    pub(super) stopping: Option<Stop>,
    /// The KV store was told to bring its KV nearer.
    pub(super) prefetched: bool,
    /// Its answers, in order. They start in order, so those that wait are the last ones.
    pub(super) choices: Vec<Choice>,
    tally: Tally,
}

/// Why a job ends before all of its answers have ended by themselves.
#[derive(Debug)]
pub(super) enum Stop {
    Cancelled,
    Failed(String),
}

/// One answer.
#[derive(Debug)]
pub(super) enum Choice {
    Waiting,
    Running(Box<Running>),
    Ended(ChoiceEnd),
}

/// What a job took so far, all its answers together.
#[derive(Debug, Default)]
struct Tally {
    started_at: Option<Uptime>,
    cached: ByTier,
    generated: usize,
    first_token_at: Option<Uptime>,
    last_token_at: Option<Uptime>,
}

/// An admitted sequence.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) lease: Lease,
    choice: u32,
    /// The prompt and what was generated.
    pub(super) tokens: Vec<u32>,
    /// Leading tokens whose KV is in the blocks. At least one token is always left: the next to feed.
    pub(super) computed: usize,
    /// Leading blocks that are committed.
    committed: usize,
    pub(super) generated: usize,
    /// The device keeps something for it.
    pub(super) device_knows: bool,
    /// Tokens generated since the last text event.
    unsent_tokens: u32,
    /// Their log probabilities, when the request wants them.
    unsent_logprobs: Vec<TokenLogprob>,
    /// Text of those tokens that waits for the end of what may be a stop string.
    pub(super) held: String,
    pub(super) started_at: Uptime,
    last_token_at: Option<Uptime>,
}

/// KV positions that an answer may fill: the last token that is sampled is never fed.
pub(super) fn capacity_tokens(prompt_tokens: usize, max_tokens: usize) -> usize {
    prompt_tokens + max_tokens - 1
}

/// The end of an answer that is cut short.
pub(super) const CANCELLED: ChoiceEnd = ChoiceEnd { reason: FinishReason::Cancelled, stop: None };

impl Job {
    pub(super) fn new(new: NewJob) -> Self {
        Self {
            model: new.model,
            tenant: new.tenant,
            prompt: new.prompt.into(),
            max_tokens: new.max_tokens,
            bytes: new.bytes,
            owner: new.owner,
            arrived_at: new.arrived_at,
            stopping: None,
            prefetched: false,
            choices: (0..new.choices).map(|_| Choice::Waiting).collect(),
            tally: Tally::default(),
        }
    }

    /// The answer that starts next.
    pub(super) fn next_waiting(&self) -> Option<u32> {
        self.choices.iter().position(|choice| matches!(choice, Choice::Waiting)).map(|choice| choice as u32)
    }

    /// Whether its first answer has begun.
    pub(super) fn has_started(&self) -> bool {
        !matches!(self.choices[0], Choice::Waiting)
    }

    pub(super) fn is_running(&self) -> bool {
        self.choices.iter().any(|choice| matches!(choice, Choice::Running(_)))
    }

    /// Whether its next answer may start. The first computes the prompt; the others find most of it in the KV cache when
    /// that is done.
    pub(super) fn may_start_next(&self) -> bool {
        let prompt_is_computed = match &self.choices[0] {
            Choice::Waiting => return self.stopping.is_none(),
            Choice::Running(first) => first.generated > 0,
            Choice::Ended(_) => true,
        };
        prompt_is_computed && self.stopping.is_none() && self.next_waiting().is_some()
    }

    /// Starts an answer. One whose job is stopping takes its lease to give it back, and leaves no trace.
    pub(super) fn start(&mut self, choice: u32, lease: Lease, now: Uptime) {
        assert!(matches!(self.choices[choice as usize], Choice::Waiting), "an answer starts once");
        if choice == 0 && self.stopping.is_none() {
            self.tally.started_at = Some(now);
            self.tally.cached = lease.cache.cached;
        }
        self.choices[choice as usize] =
            Choice::Running(Box::new(Running::new(choice, &self.prompt, lease, now)));
    }

    /// An answer that is on the device.
    ///
    /// # Panics
    /// When it is not.
    pub(super) fn running(&self, choice: u32) -> &Running {
        match &self.choices[choice as usize] {
            Choice::Running(running) => running,
            other => unreachable!("answer {choice} does not run: {other:?}"),
        }
    }

    /// As [`Job::running`].
    pub(super) fn running_mut(&mut self, choice: u32) -> &mut Running {
        match &mut self.choices[choice as usize] {
            Choice::Running(running) => running,
            other => unreachable!("answer {choice} does not run: {other:?}"),
        }
    }

    /// Ends an answer that runs; what it held.
    pub(super) fn end_choice(&mut self, choice: u32, end: ChoiceEnd) -> Box<Running> {
        match std::mem::replace(&mut self.choices[choice as usize], Choice::Ended(end)) {
            Choice::Running(running) => running,
            other => unreachable!("answer {choice} does not run: {other:?}"),
        }
    }

    /// Counts a sampled token; the time since the token before it in its answer, or for the first of all since the request.
    pub(super) fn note_token(&mut self, choice: u32, token: u32, now: Uptime) -> Option<Measure> {
        let since_the_last = self.running_mut(choice).note_token(token, now);
        self.tally.generated += 1;
        self.tally.last_token_at = Some(now);
        if self.tally.first_token_at.is_none() {
            self.tally.first_token_at = Some(now);
            return Some(Measure::FirstToken(now.saturating_sub(self.arrived_at)));
        }
        since_the_last.map(Measure::InterToken)
    }

    /// The terminal event of a job of which nothing runs any more.
    pub(super) fn terminal_event(self, now: Uptime) -> Event {
        let usage = self.usage(now);
        if let Some(Stop::Failed(message)) = self.stopping {
            return Event::Failed { message };
        }
        let end = |choice| if let Choice::Ended(end) = choice { end } else { CANCELLED };
        let choices: Vec<ChoiceEnd> = self.choices.into_iter().map(end).collect();
        let reason = choices.iter().map(|end| end.reason).max().expect("a job has an answer");
        Event::Finished { reason, choices, usage }
    }

    fn usage(&self, now: Uptime) -> Usage {
        let Tally { started_at, cached, generated, first_token_at, last_token_at } = self.tally;
        let mut usage = Usage { prompt_tokens: self.prompt.len() as u64, ..Usage::default() };
        let Some(started_at) = started_at else {
            usage.queue_ms = milliseconds(now.saturating_sub(self.arrived_at));
            return usage;
        };
        usage.cached_tokens = cached.total();
        usage.cached_by_tier = token_tiers(cached);
        usage.generated_tokens = generated as u64;
        usage.queue_ms = milliseconds(started_at.saturating_sub(self.arrived_at));
        let first = first_token_at.unwrap_or(now);
        usage.prefill_ms = milliseconds(first.saturating_sub(started_at));
        usage.first_token_ms =
            first_token_at.map_or(0.0, |at| milliseconds(at.saturating_sub(self.arrived_at)));
        usage.decode_ms = milliseconds(last_token_at.unwrap_or(first).saturating_sub(first));
        usage
    }
}

impl Running {
    fn new(choice: u32, prompt: &[u32], lease: Lease, now: Uptime) -> Self {
        let cached_tokens = lease.cached_tokens();
        assert!(cached_tokens < prompt.len(), "one prompt token at least is computed, for its logits");
        Self {
            choice,
            tokens: prompt.to_vec(),
            computed: cached_tokens,
            committed: cached_tokens / BLOCK_TOKENS,
            lease,
            generated: 0,
            device_knows: false,
            unsent_tokens: 0,
            unsent_logprobs: Vec::new(),
            held: String::new(),
            started_at: now,
            last_token_at: None,
        }
    }

    /// Tokens of the blocks that have become full, in order; each is given once. The first may have begun with cached
    /// tokens.
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
        let logprobs = std::mem::take(&mut self.unsent_logprobs);
        Event::Text { choice: self.choice, text, tokens, logprobs }
    }

    /// Takes in what the device said of a sampled token that [`Job::note_token`] has counted.
    pub(super) fn take_text(&mut self, logprob: Option<TokenLogprob>, held: String) {
        self.unsent_tokens += 1;
        self.unsent_logprobs.extend(logprob);
        self.held = held;
    }

    /// Appends a sampled token; the time since the one before.
    fn note_token(&mut self, token: u32, now: Uptime) -> Option<Duration> {
        assert_eq!(self.computed, self.tokens.len(), "a token is sampled after the last one");
        self.tokens.push(token);
        self.generated += 1;
        self.last_token_at.replace(now).map(|last| now.saturating_sub(last))
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}
