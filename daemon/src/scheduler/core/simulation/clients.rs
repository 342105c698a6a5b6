//! Who uses the daemon: people who talk, agents, batches, floods. Each has a generator of its own, so that one client's
//! requests do not change with what happens to others.

use super::super::{ConnectionId, Time};
use super::job::Request;
use super::rng::Rng;
use super::text::Sampling;
use crate::scheduler::plan::JobNumber;
use std::time::Duration;
use zllm_wire::Class;

/// Tokens of a question, an answer or a text, from and to. A job that asks for no answer is a text to be embedded.
type Range = (usize, usize);

#[derive(Debug, Clone)]
pub(super) enum Script {
    /// Asks, reads, thinks, and asks again after all that was said: of class interactive it is a person, else an agent. The
    /// job belongs to its connection.
    Talks { class: Class, beginning: usize, question: Range, answer: Range, think: Duration, longest: usize },
    /// Submits so many jobs each time, as fast as they are taken; each has one of a few beginnings.
    Batch {
        class: Class,
        durable: bool,
        jobs: usize,
        every: Duration,
        beginnings: usize,
        beginning: usize,
        own: Range,
        answer: Range,
    },
    /// Submits so many jobs at once, whether they are taken or not.
    Flood { class: Class, jobs: usize, every: Duration, own: Range, answer: Range },
}

#[derive(Debug, Clone)]
pub(super) struct ClientPlan {
    pub(super) script: Script,
    pub(super) tenant: String,
    pub(super) model: usize,
    /// When it comes first.
    pub(super) from: Time,
    /// When it submits nothing more.
    pub(super) until: Time,
}

pub(super) struct Client {
    pub(super) plan: ClientPlan,
    rng: Rng,
    index: usize,
    /// Its connection, which it may lose.
    pub(super) connection: ConnectionId,
    /// All that was said.
    conversation: Vec<u32>,
    pub(super) waits_for: Option<JobNumber>,
    /// Jobs of a batch that are still to be submitted.
    left: usize,
    asked: u32,
}

impl Client {
    pub(super) fn new(index: usize, plan: ClientPlan, rng: Rng) -> Self {
        let connection = ConnectionId(index as u64);
        Self { plan, rng, index, connection, conversation: Vec::new(), waits_for: None, left: 0, asked: 0 }
    }

    /// How many jobs it submits now at most, and how long it waits after the last of them.
    pub(super) fn submits(&mut self) -> (usize, Duration) {
        match &self.plan.script {
            Script::Talks { think, .. } => (usize::from(self.waits_for.is_none()), *think),
            Script::Batch { jobs, every, .. } => {
                self.left = if self.left == 0 { *jobs } else { self.left };
                (self.left, *every)
            }
            Script::Flood { jobs, every, .. } => (*jobs, *every),
        }
    }

    /// Whether a refusal keeps it from submitting the next one.
    pub(super) fn minds_refusals(&self) -> bool {
        !matches!(self.plan.script, Script::Flood { .. })
    }

    pub(super) fn think(&mut self) -> Duration {
        match &self.plan.script {
            Script::Talks { think, .. } => self.rng.pause(*think),
            Script::Batch { every, .. } | Script::Flood { every, .. } => *every,
        }
    }

    /// A job was taken.
    pub(super) fn taken(&mut self, id: JobNumber) {
        self.left = self.left.saturating_sub(1);
        if matches!(self.plan.script, Script::Talks { .. }) {
            self.waits_for = Some(id);
        }
    }

    /// The job that it waited for has ended, with this answer if it has one; true when it thinks now.
    pub(super) fn ended(&mut self, id: JobNumber, prompt: &[u32], answer: &[u32]) -> bool {
        if self.waits_for != Some(id) {
            return false;
        }
        self.waits_for = None;
        self.conversation = [prompt, answer].concat();
        true
    }

    /// What it asks next.
    pub(super) fn request(&mut self) -> Request {
        self.asked += 1;
        let (class, owner, answer, prompt) = match self.plan.script.clone() {
            Script::Talks { class, beginning, question, answer, longest, .. } => {
                let question = self.rng.between(question);
                if self.conversation.is_empty() || self.conversation.len() + question + answer.1 > longest {
                    self.conversation = text(self.plan.model as u32, beginning);
                }
                let mut prompt = self.conversation.clone();
                prompt.extend(self.words(question));
                (class, Some(self.connection), answer, prompt)
            }
            Script::Batch { class, durable, beginnings, beginning, own, answer, .. } => {
                let kind = 10 + self.asked % beginnings as u32;
                let count = self.rng.between(own);
                let prompt = [text(kind, beginning), self.words(count)].concat();
                (class, (!durable).then_some(self.connection), answer, prompt)
            }
            Script::Flood { class, own, answer, .. } => {
                let count = self.rng.between(own);
                (class, Some(self.connection), answer, self.words(count))
            }
        };
        let choices = if self.rng.chance(80) { 2 + self.rng.below(3) as u32 } else { 1 };
        let max_tokens = self.rng.between(answer);
        Request {
            client: self.index,
            tenant: self.plan.tenant.clone(),
            class,
            model: self.plan.model,
            prompt,
            max_tokens,
            choices: if max_tokens == 0 { 1 } else { choices },
            sampling: Sampling { ends_in: 250, logprobs: self.rng.chance(100) },
            owner,
            start_within: None,
            end_within: None,
        }
    }

    fn words(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| 1000 + self.rng.below(30_000) as u32).collect()
    }
}

/// A text that several prompts begin with.
fn text(kind: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|at| 40_000 + 1000 * kind + at % 1000).collect()
}
