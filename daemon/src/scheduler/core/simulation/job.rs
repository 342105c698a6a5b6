//! A job as its client and the simulation know it, beside what the core knows.

use super::super::job::POOLED;
use super::super::{ConnectionId, NewJob, Progress, RestoredChoice, Time};
use super::text::{Sampling, alone, kv_chain, kv_root, row_of};
use crate::scheduler::plan::{JobNumber, ModelName};
use std::time::Duration;
use zllm_engine::{Pool, Pooling};
use zllm_wire::{ChoiceEnd, Class, Event, FinishReason};

/// What a client asks for.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) client: usize,
    pub(super) tenant: String,
    pub(super) class: Class,
    pub(super) model: usize,
    pub(super) prompt: Vec<u32>,
    pub(super) max_tokens: usize,
    pub(super) choices: u32,
    pub(super) sampling: Sampling,
    /// The connection that it belongs to; none is durable.
    pub(super) owner: Option<ConnectionId>,
    /// From its submission on.
    pub(super) start_within: Option<Duration>,
    pub(super) end_within: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Waiting,
    Running,
    Ended,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) place: Place,
    pub(super) tokens: Vec<u32>,
    /// The KV of each of them.
    chain: Vec<u64>,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) request: Request,
    prompt_chain: Vec<u64>,
    pub(super) arrived_at: Time,
    /// Its class now.
    pub(super) class: Class,
    pub(super) stored: bool,
    pub(super) held: bool,
    /// Its model is not loaded yet.
    pub(super) waits_for_model: bool,
    /// It was cancelled, or its connection has ended.
    pub(super) cancelled: bool,
    /// The core said that it is over.
    pub(super) over: bool,
    /// It was refused nothing by the bounds because it was accepted by an earlier run.
    pub(super) restored: bool,
    pub(super) started: bool,
    pub(super) waiting_since: Time,
    /// Later jobs of its tenant, model and class that started before it while it could have.
    pub(super) passed_over: u32,
    pub(super) answers: Vec<Answer>,
    /// Its embedding has come.
    pub(super) pooled: bool,
    /// The log as readers see it.
    pub(super) shown: Vec<Event>,
    /// Offset of the next event of this run.
    pub(super) offset: usize,
}

impl Job {
    pub(super) fn new(request: Request, now: Time) -> Self {
        let answer = || Answer { place: Place::Waiting, tokens: Vec::new(), chain: Vec::new() };
        Self {
            prompt_chain: kv_chain(kv_root(request.model, &request.tenant), &request.prompt),
            arrived_at: now,
            class: request.class,
            stored: request.owner.is_some(),
            held: false,
            waits_for_model: false,
            cancelled: false,
            over: false,
            restored: false,
            started: false,
            waiting_since: now,
            passed_over: 0,
            answers: (0..request.choices).map(|_| answer()).collect(),
            pooled: false,
            shown: Vec::new(),
            offset: 0,
            request,
        }
    }

    /// Whether it is a text to be embedded.
    pub(super) fn pools(&self) -> bool {
        self.request.max_tokens == 0
    }

    /// What a text's rows give, one after the other.
    pub(super) fn whole_pool(&self) -> Pool {
        let mut pool = Pool::new(Pooling::Mean);
        self.prompt_chain.iter().for_each(|kv| pool.add(&[row_of(*kv)], 1));
        pool
    }

    pub(super) fn is_durable(&self) -> bool {
        self.request.owner.is_none()
    }

    /// Size of the request, as the bounds count it.
    pub(super) fn bytes(&self) -> usize {
        4 * self.request.prompt.len() + 50
    }

    pub(super) fn submission(&self, id: JobNumber, model: ModelName) -> NewJob {
        let Request { tenant, prompt, max_tokens, choices, owner, .. } = self.request.clone();
        let after = |time: Option<Duration>| time.map(|time| self.arrived_at + time);
        NewJob {
            id,
            model,
            tenant,
            class: self.class,
            prompt,
            max_tokens,
            choices,
            pooling: self.pools().then_some(Pooling::Mean),
            bytes: self.bytes(),
            arrived_at: self.arrived_at,
            start_by: after(self.request.start_within),
            deadline: after(self.request.end_within),
            owner,
        }
    }

    /// Whether the scheduler may start one of its answers, as far as the job is concerned. The first computes the prompt for
    /// the others.
    pub(super) fn may_start(&self) -> bool {
        let waits = self.answers.iter().position(|answer| answer.place == Place::Waiting);
        let first = &self.answers[0];
        let has_prompt = first.place == Place::Ended || !first.tokens.is_empty();
        let may = self.stored && !self.held && !self.waits_for_model && !self.cancelled && !self.over;
        may && waits.is_some_and(|choice| choice == 0 || has_prompt)
    }

    /// Whether its time is over, so that it is not started any more.
    pub(super) fn is_late(&self, now: Time) -> bool {
        let passed = |time: Option<Duration>| time.is_some_and(|time| now >= self.arrived_at + time);
        passed(self.request.end_within) || (passed(self.request.start_within) && !self.started)
    }

    /// Whether it counts as queued: taken, not started and not ended.
    pub(super) fn is_queued(&self) -> bool {
        !self.started && !self.over
    }

    pub(super) fn is_running(&self) -> bool {
        self.answers.iter().any(|answer| answer.place == Place::Running)
    }

    /// The KV of a position of one of its answers.
    pub(super) fn kv(&self, choice: u32, at: usize) -> u64 {
        match at.checked_sub(self.prompt_chain.len()) {
            None => self.prompt_chain[at],
            Some(at) => self.answers[choice as usize].chain[at],
        }
    }

    /// The KV of the prompt's last position.
    pub(super) fn prompt_kv(&self) -> u64 {
        *self.prompt_chain.last().expect("a prompt has a token")
    }

    pub(super) fn push_token(&mut self, choice: u32, token: u32) {
        let at = self.prompt_chain.len() + self.answers[choice as usize].tokens.len();
        let kv = super::text::kv_of(self.kv(choice, at - 1), token);
        let answer = &mut self.answers[choice as usize];
        answer.tokens.push(token);
        answer.chain.push(kv);
    }

    /// Goes back to what an earlier run had written down.
    pub(super) fn restore(&mut self, choices: &[RestoredChoice], started: bool) {
        (self.stored, self.restored, self.started) = (true, true, started);
        (self.cancelled, self.over, self.passed_over, self.waiting_since) =
            (false, false, 0, self.arrived_at);
        for (answer, choice) in self.answers.iter_mut().zip(choices) {
            let (place, count) = match choice {
                RestoredChoice::Open(Progress { generated, .. }) => (Place::Waiting, generated.len()),
                RestoredChoice::Ended { generated, .. } => (Place::Ended, *generated),
            };
            answer.place = place;
            answer.tokens.truncate(count);
            answer.chain.truncate(count);
        }
    }

    /// The log as an earlier run left it on disk. What readers saw is in it; only what was shown while the disk failed is not,
    /// and comes again. With several answers it may come in another order, so readers see those events anew.
    ///
    /// # Errors
    /// When readers saw something else.
    pub(super) fn take_up(&mut self, events: &[Event]) -> Result<(), String> {
        let common = events.len().min(self.shown.len());
        if !events.iter().zip(&self.shown).all(|(event, before)| agrees(before, event)) {
            return Err(format!(
                "readers saw {:?}, on disk is {:?}",
                &self.shown[..common],
                &events[..common]
            ));
        }
        if self.answers.len() > 1 {
            self.shown.truncate(common);
        }
        self.shown.extend_from_slice(&events[common..]);
        self.offset = events.len();
        Ok(())
    }

    /// The next event of its log. An earlier run may have shown it already.
    ///
    /// # Errors
    /// When that was another one.
    pub(super) fn show(&mut self, event: Event) -> Result<(), String> {
        match self.shown.get(self.offset) {
            None => self.shown.push(event),
            Some(before) => {
                if !agrees(before, &event) {
                    return Err(format!("event {} was {before:?} and is {event:?} now", self.offset));
                }
            }
        }
        self.offset += 1;
        Ok(())
    }

    /// The whole log, once it has ended: its start, every answer as if computed alone, one end.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn judge(&self) -> Result<(), String> {
        let of = |test: fn(&Event) -> bool| self.shown.iter().filter(|event| test(event)).count();
        let queued = of(|event| matches!(event, Event::Queued { .. }));
        let started = of(|event| matches!(event, Event::Started { .. }));
        let ended = of(|event| matches!(event, Event::Finished { .. } | Event::Failed { .. }));
        if (queued, ended) != (1, 1) || started > 1 {
            return Err(format!(
                "it was queued {queued} times, started {started} times, ended {ended} times"
            ));
        }
        let (ends, generated) = match self.shown.last() {
            Some(Event::Finished { reason, choices, usage }) => {
                let last = choices.iter().map(|end| end.reason).max();
                if choices.len() != self.answers.len() || last != Some(*reason) {
                    return Err(format!("its end does not fit its answers: {reason:?}, {choices:?}"));
                }
                (Some(choices), Some(usage.generated_tokens))
            }
            Some(Event::Failed { .. }) => (None, None),
            other => return Err(format!("its last event is {other:?}")),
        };
        let ends_by_itself =
            ends.is_some_and(|ends| ends.iter().all(|end| end.reason != FinishReason::Cancelled));
        if self.pooled != (self.pools() && ends_by_itself) {
            return Err(format!("it ended so: {ends:?}, and its embedding has come: {}", self.pooled));
        }
        let mut sent = 0;
        for choice in 0..self.answers.len() as u32 {
            sent += self
                .judge_answer(choice, ends.map(|ends| &ends[choice as usize]))
                .map_err(|why| format!("answer {choice}: {why}"))?;
        }
        if generated.is_some_and(|generated| generated != sent as u64) {
            return Err(format!("{sent} tokens were sent, {generated:?} were generated"));
        }
        if started == 0 && sent > 0 {
            return Err(format!("it never started, and {sent} tokens were sent"));
        }
        Ok(())
    }

    /// Returns how many tokens were sent.
    fn judge_answer(&self, choice: u32, end: Option<&ChoiceEnd>) -> Result<usize, String> {
        let of_it = |event: &&Event| matches!(event, Event::Text { choice: of, .. } if *of == choice);
        let events: Vec<&Event> = self.shown.iter().filter(of_it).collect();
        let tokens =
            |event: &&Event| if let Event::Text { tokens, .. } = event { *tokens as usize } else { 0 };
        let sent = events.iter().map(tokens).sum();
        let Request { sampling, max_tokens, .. } = self.request;
        let alone = alone(sampling, choice, self.prompt_kv(), max_tokens, sent)?;
        let differs = alone.events.iter().zip(&events).position(|(one, other)| one != *other);
        if let Some(at) = differs {
            return Err(format!("alone its text has {:?}, here {:?}", alone.events[at], events[at]));
        }
        if alone.events.len() != events.len() {
            return Err(format!("alone its text has {} events, here {}", alone.events.len(), events.len()));
        }
        let by_itself = end.filter(|end| end.reason != FinishReason::Cancelled);
        let alone_end = if self.pools() { Some(POOLED) } else { alone.end };
        if by_itself.is_some() && by_itself != alone_end.as_ref() {
            return Err(format!("after {sent} tokens it ends with {by_itself:?}, alone {alone_end:?}"));
        }
        Ok(sent)
    }
}

/// Whether an event that was shown while the disk failed, and was lost then, may come again as another: where a job stood
/// in the queue and what was cached may differ, its text may not.
fn agrees(before: &Event, again: &Event) -> bool {
    match (before, again) {
        (Event::Queued { .. }, Event::Queued { .. }) | (Event::Started { .. }, Event::Started { .. }) => true,
        _ => before == again,
    }
}
