//! One job inside the scheduler's core: where each of its answers is, and what it took so far.

use super::{
    ConnectionId, Generated, Lease, Measure, NewJob, Progress, RestoredChoice, RestoredJob, Time, token_tiers,
};
use crate::scheduler::plan::{Accepted, ModelName};
use std::sync::Arc;
use std::time::Duration;
use zllm_engine::{Pool, Pooling};
use zllm_state::{BLOCK_TOKENS, ByTier};
use zllm_wire::{ChoiceEnd, Class, Event, FinishReason, Usage};

#[derive(Debug)]
pub(super) struct Job {
    pub(super) model: ModelName,
    pub(super) tenant: String,
    pub(super) class: Class,
    pub(super) prompt: Arc<[u32]>,
    pub(super) max_tokens: usize,
    /// How its prompt becomes an embedding.
    pub(super) pooling: Option<Pooling>,
    pub(super) bytes: usize,
    pub(super) owner: Option<ConnectionId>,
    pub(super) arrived_at: Time,
    pub(super) start_by: Option<Time>,
    pub(super) deadline: Option<Time>,
    /// Its record is on disk, or it needs none.
    pub(super) stored: bool,
    /// It is from an earlier run of the daemon, so that no sampler came with it.
    pub(super) restored: bool,
    /// It waits until it is let go.
    pub(super) held: bool,
    /// To be ended as soon as whoever works on it has answered.
    pub(super) stopping: Option<Stop>,
    /// The KV store was told to bring its KV nearer.
    pub(super) prefetched: bool,
    /// Since when it waits: its arrival, or when it was parked.
    pub(super) waiting_since: Time,
    /// Jobs that came later and started earlier because that is less work.
    pub(super) bypassed: u32,
    /// Its answers, in order.
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
    Waiting(Progress),
    Running(Box<Running>),
    Ended(ChoiceEnd),
}

/// What a job took so far, all its answers together.
#[derive(Debug, Default)]
struct Tally {
    started_at: Option<Time>,
    cached: ByTier,
    generated: usize,
    first_token_at: Option<Time>,
    last_token_at: Option<Time>,
}

/// An admitted sequence.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) lease: Lease,
    choice: u32,
    /// The prompt and what was generated.
    pub(super) tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Tokens that it had when it was admitted.
    began_with: usize,
    /// Leading tokens whose KV is in the blocks. At least one token is always left: the next to feed.
    pub(super) computed: usize,
    /// What is pooled of them, if it becomes an embedding.
    pub(super) pool: Option<Pool>,
    /// Leading blocks that are committed.
    committed: usize,
    /// The class that it was admitted as: its own, or one above after a long wait.
    pub(super) level: u8,
    /// It gives way as soon as the step that it is in has ended.
    pub(super) parking: bool,
    /// The device keeps something for it.
    pub(super) device_knows: bool,
    /// Text, log probabilities and sampler since the last text event; its tokens are in `tokens`.
    progress: Progress,
    pub(super) started_at: Time,
    last_token_at: Option<Time>,
}

/// KV positions that an answer may fill: the last token that is sampled is never fed.
pub(super) fn capacity_tokens(prompt_tokens: usize, max_tokens: usize) -> usize {
    prompt_tokens + max_tokens.saturating_sub(1)
}

/// The end of a text that became an embedding.
pub(super) const POOLED: ChoiceEnd = ChoiceEnd { reason: FinishReason::Stop, stop: None };

/// The end of an answer that is cut short.
pub(super) const CANCELLED: ChoiceEnd = ChoiceEnd { reason: FinishReason::Cancelled, stop: None };

impl Job {
    pub(super) fn new(new: NewJob) -> Self {
        Self {
            model: new.model,
            tenant: new.tenant,
            class: new.class,
            prompt: new.prompt.into(),
            max_tokens: new.max_tokens,
            pooling: new.pooling,
            bytes: new.bytes,
            stored: new.owner.is_some(),
            owner: new.owner,
            arrived_at: new.arrived_at,
            start_by: new.start_by,
            deadline: new.deadline,
            restored: false,
            held: false,
            stopping: None,
            prefetched: false,
            waiting_since: new.arrived_at,
            bypassed: 0,
            choices: (0..new.choices).map(|_| Choice::Waiting(Progress::default())).collect(),
            tally: Tally::default(),
        }
    }

    /// A durable job as an earlier run of the daemon left it.
    pub(super) fn restored(restored: RestoredJob) -> Self {
        let RestoredJob { job, stored, held, started, choices } = restored;
        assert_eq!(choices.len(), job.choices as usize, "a restored job has all of its answers");
        let mut job = Self { held, stored, restored: true, ..Self::new(job) };
        if let Some((at, cached)) = started {
            let generated = choices.iter().map(|choice| match choice {
                RestoredChoice::Open(progress) => progress.generated.len(),
                RestoredChoice::Ended { generated, .. } => *generated,
            });
            let generated = generated.sum();
            let first_token_at = (generated > 0).then_some(at);
            job.tally =
                Tally { started_at: Some(at), cached, generated, first_token_at, last_token_at: None };
        }
        let choice = |choice| match choice {
            RestoredChoice::Open(progress) => Choice::Waiting(progress),
            RestoredChoice::Ended { end, .. } => Choice::Ended(end),
        };
        job.choices = choices.into_iter().map(choice).collect();
        job
    }

    pub(super) fn is_durable(&self) -> bool {
        self.owner.is_none()
    }

    /// The answer that starts next.
    pub(super) fn next_waiting(&self) -> Option<u32> {
        self.choices
            .iter()
            .position(|choice| matches!(choice, Choice::Waiting(_)))
            .map(|choice| choice as u32)
    }

    /// Whether its first answer has begun, now or before it was parked.
    pub(super) fn has_started(&self) -> bool {
        self.tally.started_at.is_some()
    }

    pub(super) fn is_running(&self) -> bool {
        self.choices.iter().any(|choice| matches!(choice, Choice::Running(_)))
    }

    /// Whether its time is over: it fails with the next tick.
    pub(super) fn is_late(&self, now: Time) -> bool {
        let passed = |time: Option<Time>| time.is_some_and(|time| now >= time);
        passed(self.deadline) || (passed(self.start_by) && !self.has_started())
    }

    /// Tokens generated so far, in all answers.
    pub(super) fn generated(&self) -> usize {
        self.tally.generated
    }

    /// Whether its next answer may start. The first computes the prompt; the others find most of it in the KV cache when
    /// that is done.
    pub(super) fn may_start_next(&self) -> bool {
        if self.stopping.is_some() || self.held || !self.stored {
            return false;
        }
        match (self.next_waiting(), &self.choices[0]) {
            (None, _) => false,
            (Some(0), _) | (_, Choice::Ended(_)) => true,
            (_, Choice::Running(first)) => first.generated() > 0,
            (_, Choice::Waiting(_)) => unreachable!("the first answer that waits is the next one"),
        }
    }

    /// The part of its prompt that may be in the KV cache.
    pub(super) fn shareable(&self) -> Arc<[u32]> {
        if self.pooling.is_some() { Arc::default() } else { self.prompt.clone() }
    }

    /// The prompt, and what an answer that waits has generated.
    pub(super) fn tokens_of(&self, choice: u32) -> Arc<[u32]> {
        match &self.choices[choice as usize] {
            Choice::Waiting(progress) if !progress.generated.is_empty() => {
                self.prompt.iter().chain(&progress.generated).copied().collect()
            }
            Choice::Waiting(_) => self.prompt.clone(),
            other => unreachable!("answer {choice} does not wait: {other:?}"),
        }
    }

    /// Starts an answer, or goes on with it; true when it is the start of the job. One whose job is stopping takes its lease
    /// to give it back, and leaves no trace.
    pub(super) fn start(&mut self, choice: u32, lease: Lease, level: u8, now: Time) -> bool {
        let tokens = self.tokens_of(choice).to_vec();
        let place = &mut self.choices[choice as usize];
        let Choice::Waiting(progress) = std::mem::replace(place, Choice::Ended(CANCELLED)) else {
            unreachable!("an answer starts when it waits");
        };
        let cached = lease.cache.cached;
        let mut running = Running::new(choice, self.prompt.len(), tokens, progress, lease, level, now);
        running.pool = self.pooling.map(Pool::new);
        *place = Choice::Running(Box::new(running));
        let first = self.tally.started_at.is_none() && self.stopping.is_none();
        if first {
            self.tally.started_at = Some(now);
            self.tally.cached = cached;
        }
        first
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

    /// Has an answer that runs wait; what it held.
    pub(super) fn park_choice(&mut self, choice: u32, now: Time) -> Box<Running> {
        let mut running = self.end_choice(choice, CANCELLED);
        self.choices[choice as usize] = Choice::Waiting(running.take_progress());
        self.waiting_since = now;
        running
    }

    /// Ends the answers that wait, with the text that they held back: what is cut short has let go of nothing.
    pub(super) fn end_waiting(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for (choice, place) in (0..).zip(&mut self.choices) {
            if let Choice::Waiting(progress) = place {
                events.extend(progress.last_event(choice));
                *place = Choice::Ended(CANCELLED);
            }
        }
        events
    }

    /// Counts a sampled token; the time since the token before it in its answer, or for the first of all since the request.
    pub(super) fn note_token(&mut self, choice: u32, token: u32, now: Time) -> Option<Measure> {
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
    pub(super) fn terminal_event(self, now: Time) -> Event {
        let usage = self.usage(now);
        if let Some(Stop::Failed(message)) = self.stopping {
            return Event::Failed { message };
        }
        let end = |choice| if let Choice::Ended(end) = choice { end } else { CANCELLED };
        let choices: Vec<ChoiceEnd> = self.choices.into_iter().map(end).collect();
        let reason = choices.iter().map(|end| end.reason).max().expect("a job has an answer");
        Event::Finished { reason, choices, usage }
    }

    fn usage(&self, now: Time) -> Usage {
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
    fn new(
        choice: u32,
        prompt_tokens: usize,
        tokens: Vec<u32>,
        progress: Progress,
        lease: Lease,
        level: u8,
        now: Time,
    ) -> Self {
        let cached_tokens = lease.cached_tokens();
        assert!(cached_tokens < tokens.len(), "one token at least is computed, for its logits");
        Self {
            choice,
            began_with: tokens.len(),
            tokens,
            prompt_tokens,
            computed: cached_tokens,
            pool: None,
            committed: cached_tokens / BLOCK_TOKENS,
            lease,
            level,
            parking: false,
            device_knows: false,
            progress: Progress { generated: Vec::new(), ..progress },
            started_at: now,
            last_token_at: None,
        }
    }

    /// What its sampler knows beside its tokens.
    pub(super) fn state(&self) -> f32 {
        self.progress.state
    }

    /// Tokens generated in this answer.
    pub(super) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_tokens
    }

    /// Tokens computed since it was admitted that it had then, and tokens generated since.
    pub(super) fn work(&self) -> (usize, usize) {
        let prompt = self.computed.min(self.began_with) - self.lease.cached_tokens();
        (prompt, self.tokens.len() - self.began_with)
    }

    /// The pool of a text that becomes an embedding, once all of it is in there.
    pub(super) fn whole_pool(&self) -> Option<&Pool> {
        self.pool.as_ref().filter(|_| self.pending() == 0)
    }

    /// Tokens whose KV is to be computed before the next one can be sampled.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Tokens of the blocks that have become full and may be shared, in order; each is given once. The first may have begun
    /// with cached tokens.
    pub(super) fn newly_full_blocks(&mut self) -> Vec<Vec<u32>> {
        if self.pool.is_some() {
            return Vec::new();
        }
        let full = self.computed / BLOCK_TOKENS;
        let blocks = self.committed..full;
        self.committed = full;
        blocks.map(|block| self.tokens[block * BLOCK_TOKENS..(block + 1) * BLOCK_TOKENS].to_vec()).collect()
    }

    /// Takes in what the device said of a sampled token that [`Job::note_token`] has counted: the text event that it leads
    /// to, if any, and what is to be kept of it.
    pub(super) fn take_token(&mut self, accepted: Accepted) -> (Option<Event>, Generated) {
        let Accepted { token, text, held, logprob, state, finish } = accepted;
        let progress = &mut self.progress;
        progress.state = state;
        progress.unsent_tokens += 1;
        progress.unsent_logprobs.extend(logprob.clone());
        progress.held.clone_from(&held);
        let sent = !text.is_empty();
        let event = sent.then(|| progress.event_of(self.choice, text));
        let logprob = logprob.filter(|_| !sent);
        let generated = Generated { choice: self.choice, token, state, sent, logprob, held, end: finish };
        (event, generated)
    }

    /// The event that sends what was held back, or log probabilities that no text has taken along; none for neither.
    pub(super) fn last_event(&mut self) -> Option<Event> {
        self.progress.last_event(self.choice)
    }

    fn take_progress(&mut self) -> Progress {
        let generated = self.tokens[self.prompt_tokens..].to_vec();
        Progress { generated, ..std::mem::take(&mut self.progress) }
    }

    /// Appends a sampled token; the time since the one before.
    fn note_token(&mut self, token: u32, now: Time) -> Option<Duration> {
        assert_eq!(self.computed, self.tokens.len(), "a token is sampled after the last one");
        self.tokens.push(token);
        self.last_token_at.replace(now).map(|last| now.saturating_sub(last))
    }
}

impl Progress {
    fn last_event(&mut self, choice: u32) -> Option<Event> {
        let held = std::mem::take(&mut self.held);
        (!held.is_empty() || !self.unsent_logprobs.is_empty()).then(|| self.event_of(choice, held))
    }

    /// The event that sends `text` for all tokens since the last one.
    fn event_of(&mut self, choice: u32, text: String) -> Event {
        let tokens = std::mem::take(&mut self.unsent_tokens);
        let logprobs = std::mem::take(&mut self.unsent_logprobs);
        Event::Text { choice, text, tokens, logprobs }
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}
