//! Runs the tests of `bench` as jobs of a tenant and of sessions of its own, so that their KV can be dropped by name.
//!
//! Ctrl-C does not break the connection: the jobs are cancelled and the sessions dropped over it first.
//!
//! Invariant: between two tests no job is in flight and no session is left.

use super::plan::Test;
use crate::client::{Connection, unexpected};
use crate::clock;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::limits::{INTERRUPT_PERIOD, MAX_CLEANING};
use std::{collections::BTreeMap, time::Instant};
use zllm_wire::{
    Answer, CancelTarget, Class, ErrorCode, Event, EvictTarget, Fault, GenerationParams, Op, Prompt,
    SamplingParams, SessionId, SessionRef, Submit, Tenant, TokenIds, Usage,
};

/// What came of a test.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    /// Tokens of all sessions per second, and the time from the request to the first token, of several sessions the longest.
    Figures { tokens_per_s: f64, first_token_ms: f64 },
    /// Why it was not measured.
    LeftOut(String),
}

impl Outcome {
    pub(super) fn in_words(&self) -> String {
        match self {
            Self::Figures { tokens_per_s, .. } => format!("{tokens_per_s:.1} tokens/s"),
            Self::LeftOut(reason) => format!("left out: {reason}"),
        }
    }

    /// The better of both, figure by figure.
    fn better(self, other: Self) -> Self {
        let (
            Self::Figures { tokens_per_s: a, first_token_ms: c },
            Self::Figures { tokens_per_s: b, first_token_ms: d },
        ) = (&self, &other)
        else {
            return if matches!(self, Self::LeftOut(_)) { self } else { other };
        };
        Self::Figures { tokens_per_s: a.max(*b), first_token_ms: c.min(*d) }
    }
}

/// A job as this client sees it.
#[derive(Debug, Default)]
struct Job {
    /// When pieces of text came, and how many tokens each took.
    pieces: Vec<(Instant, u32)>,
    usage: Option<Usage>,
}

/// One connection, on which tests run one after the other.
pub(super) struct Runner<'a> {
    connection: Connection,
    interrupt: &'a Interrupt,
    model: String,
    tenant: Tenant,
    /// Ids below it are tokens.
    vocabulary: u32,
    random: u64,
    /// Sessions made so far; the ids of those of the test at hand are the last ones.
    made: u64,
    sessions: Vec<SessionId>,
    /// Jobs by the request that they came from; those that have not ended.
    going: BTreeMap<u64, Job>,
    ended: Vec<Job>,
}

impl<'a> Runner<'a> {
    pub(super) fn new(
        connection: Connection,
        interrupt: &'a Interrupt,
        model: &str,
        vocabulary: u32,
    ) -> Result<Self, Failure> {
        let (process, seconds) = (std::process::id(), clock::unix_seconds());
        let tenant = Tenant::new(format!("zllmctl-bench-{process}-{seconds}"));
        Ok(Self {
            connection,
            interrupt,
            model: model.to_owned(),
            tenant: tenant.map_err(|error| Failure::Failed(error.to_string()))?,
            vocabulary,
            // Other prompts each time; never 0, which the generator would stay at.
            random: seconds << 32 | u64::from(process) | 1,
            made: 0,
            sessions: Vec::new(),
            going: BTreeMap::new(),
            ended: Vec::new(),
        })
    }

    /// For questions between two tests.
    pub(super) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Runs a test so often, or until it is left out.
    pub(super) fn best_of(&mut self, test: &Test, repeat: u32) -> Result<Outcome, Failure> {
        let mut best: Option<Outcome> = None;
        for _ in 0..repeat {
            let measured = self.measure(*test);
            let cleaned = self.clean();
            let outcome = measured?;
            cleaned?;
            let outcome = best.take().map_or(outcome.clone(), |best| best.better(outcome));
            if matches!(outcome, Outcome::LeftOut(_)) {
                return Ok(outcome);
            }
            best = Some(outcome);
        }
        Ok(best.expect("at least one repeat"))
    }

    fn measure(&mut self, test: Test) -> Result<Outcome, Failure> {
        self.ended.clear();
        for _ in 0..test.jobs() {
            self.submit(test)?;
        }
        while !self.going.is_empty() {
            if self.interrupt.was_hit() {
                return Err(Failure::Interrupted);
            }
            if let Some(fault) = self.take_answer()? {
                return match fault.code {
                    ErrorCode::Refused { .. } | ErrorCode::Invalid => Ok(Outcome::LeftOut(fault.message)),
                    _ => Err(fault.into()),
                };
            }
        }
        figures(test, &self.ended)
    }

    fn submit(&mut self, test: Test) -> Result<(), Failure> {
        self.made += 1;
        let session = SessionId::new(format!("bench-{}", self.made));
        let session = session.map_err(|error| Failure::Failed(error.to_string()))?;
        let tokens = (0..test.prompt_tokens()).map(|_| self.random_token()).collect();
        let submit = Submit {
            model: self.model.clone(),
            prompt: Prompt::Tokens(TokenIds(tokens)),
            params: GenerationParams {
                sampling: SamplingParams { temperature: Some(0.0), ..SamplingParams::default() },
                max_tokens: Some(test.answer_tokens()),
                ignore_eos: true,
                ..GenerationParams::default()
            },
            session: Some(session.clone()),
            tenant: Some(self.tenant.clone()),
            detached: false,
            stream: true,
            label: Some("zllmctl bench".into()),
            class: Class::Normal,
            deadline_ms: None,
            max_wait_ms: None,
            key: None,
            batch: None,
        };
        self.sessions.push(session);
        self.going.insert(self.connection.next_id(), Job::default());
        self.connection.send(Op::Submit(Box::new(submit)))
    }

    /// A generator with 64 bits of state (Marsaglia's xorshift): random enough that no prompt begins like another.
    fn random_token(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u32 % self.vocabulary
    }

    /// Waits a moment for an answer to one of the jobs; a fault that it ended with is given.
    fn take_answer(&mut self) -> Result<Option<Fault>, Failure> {
        let Some((id, answer)) = self.connection.any_answer(INTERRUPT_PERIOD)? else { return Ok(None) };
        let Some(job) = self.going.get_mut(&id) else {
            // An order of `clean`.
            return Ok(None);
        };
        match answer {
            Answer::Event { event: Event::Text { tokens, .. }, .. } => {
                job.pieces.push((clock::now(), tokens))
            }
            Answer::Event { event: Event::Finished { usage, .. }, .. } => job.usage = Some(usage),
            Answer::Event { event: Event::Failed { message }, .. } => return Err(Failure::Failed(message)),
            Answer::Accepted { .. } | Answer::Event { .. } => {}
            Answer::Done => self.ended.extend(self.going.remove(&id)),
            Answer::Error(fault) => {
                self.going.remove(&id);
                return Ok(Some(fault));
            }
            other => return Err(unexpected(&other)),
        }
        Ok(None)
    }

    /// Ends the jobs that go on, and drops the sessions with their KV.
    fn clean(&mut self) -> Result<(), Failure> {
        let sessions = std::mem::take(&mut self.sessions);
        let named = |id: &SessionId| SessionRef { tenant: Some(self.tenant.clone()), id: id.clone() };
        let named: Vec<_> = sessions.iter().map(named).collect();
        if !self.going.is_empty() {
            for session in &named {
                self.connection.send(Op::Cancel { target: CancelTarget::Session(session.clone()) })?;
            }
        }
        let give_up = clock::now() + MAX_CLEANING;
        while !self.going.is_empty() && clock::now() < give_up {
            // How they end does not matter here.
            match self.take_answer() {
                Ok(_) | Err(Failure::Failed(_)) => {}
                Err(lost) => return Err(lost),
            }
        }
        if !self.going.is_empty() {
            let seconds = MAX_CLEANING.as_secs();
            return Err(Failure::Lost(format!(
                "{} cancelled jobs did not end in {seconds} s",
                self.going.len()
            )));
        }
        for session in named {
            // What waits for its write to the SSD is not evicted. Without an SSD nothing does, and this is refused.
            self.order(Op::Save { session: Some(session.clone()) })?;
            match self.order(Op::Evict { target: EvictTarget::Session(session), tier: None })? {
                Answer::Evicted { .. } => {}
                // A job that never started left no session.
                Answer::Error(Fault { code: ErrorCode::NotFound, .. }) => {}
                Answer::Error(fault) => return Err(fault.into()),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(())
    }

    /// The answer to something that is done at once, whatever else comes before it.
    fn order(&mut self, op: Op) -> Result<Answer, Failure> {
        let asked = self.connection.next_id();
        self.connection.send(op)?;
        let give_up = clock::now() + MAX_CLEANING;
        while clock::now() < give_up {
            match self.connection.any_answer(INTERRUPT_PERIOD)? {
                Some((id, answer)) if id == asked => return Ok(answer),
                _ => {}
            }
        }
        Err(Failure::Lost(format!("no answer in {} s", MAX_CLEANING.as_secs())))
    }
}

/// What the jobs of a test, all ended, add up to.
fn figures(test: Test, jobs: &[Job]) -> Result<Outcome, Failure> {
    let usages: Option<Vec<&Usage>> = jobs.iter().map(|job| job.usage.as_ref()).collect();
    let Some(usages) = usages.filter(|usages| !usages.is_empty()) else {
        return Err(Failure::Failed("a job ended without saying what it took".into()));
    };
    let first_token_ms = usages.iter().map(|usage| usage.first_token_ms).fold(0.0, f64::max);
    let tokens_per_ms = match test {
        Test::Prefill(_) => {
            let usage = usages[0];
            (usage.prompt_tokens - usage.cached_tokens) as f64 / usage.prefill_ms
        }
        Test::Decode { .. } => (usages[0].generated_tokens.saturating_sub(1)) as f64 / usages[0].decode_ms,
        Test::Sessions { .. } => match rate_together(jobs) {
            Some(tokens_per_ms) => tokens_per_ms,
            None => {
                let reason = "the first had ended before the last had begun; a larger --decode may help";
                return Ok(Outcome::LeftOut(reason.into()));
            }
        },
    };
    Ok(Outcome::Figures { tokens_per_s: 1e3 * tokens_per_ms, first_token_ms })
}

/// Tokens of all jobs per millisecond, from the moment when the last of them has text to the moment when the first of them
/// ends; `None` when there is no such time.
fn rate_together(jobs: &[Job]) -> Option<f64> {
    let firsts: Option<Vec<Instant>> = jobs.iter().map(|job| Some(job.pieces.first()?.0)).collect();
    let lasts: Option<Vec<Instant>> = jobs.iter().map(|job| Some(job.pieces.last()?.0)).collect();
    let (from, to) = (firsts?.into_iter().max()?, lasts?.into_iter().min()?);
    let within = jobs.iter().flat_map(|job| &job.pieces).filter(|(when, _)| from < *when && *when <= to);
    let tokens: u32 = within.map(|(_, tokens)| tokens).sum();
    let ms = 1e3 * to.checked_duration_since(from)?.as_secs_f64();
    (tokens > 0 && ms > 0.0).then(|| f64::from(tokens) / ms)
}
