//! Durable jobs on their way to the disk and back: submitted, journalled, taken up again when the daemon starts.

use super::SchedulerActor;
use super::core::{Input, NewJob, Progress, Refusal, RestoredChoice, RestoredJob, Time};
use super::jobs::JobFacts;
use super::journal::Write;
use super::log::{JobLog, is_terminal};
use super::messages::{Submitted, fault_of, job_id};
use super::plan::{JobNumber, ModelName};
use crate::clock::Clock;
use crate::config::JobSettings;
use crate::device::port::TextFacts;
use crate::job_disk::{
    Ending, JobDisk, Opened, StoredJob, Summary, TokenEntry, decode_request, encode_request,
};
use crate::limits::{MAX_IDLE_DEATHS, MAX_STORING, OPENING_RETRY, RETRY_AFTER};
use crate::metrics::Outcome;
use crate::pulse::Pulses;
use actix::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot::Receiver;
use zllm_state::{ByTier, JobChange, JobClass, JobRecord, JobState, Retention};
use zllm_wire::{Class, ErrorCode, Event, Fault, FinishReason, GenerationParams, IdempotencyKey, SessionId};

/// Whether jobs can be durable.
pub(crate) enum Durable {
    /// Not, and why. What is configured is tried again.
    Off { why: String, settings: Option<JobSettings> },
    /// The disk is being opened, or is open.
    On {
        disk: JobDisk,
        /// What was there at the start, until it is waited for.
        opened: Option<Receiver<Result<Opened, String>>>,
        /// It is taken up.
        ready: bool,
        settings: JobSettings,
    },
}

/// Takes up what an earlier run left; answered when that is done, or known to be impossible.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Recover;

impl Durable {
    /// Begins to open what is kept.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(settings: &JobSettings, clock: Clock, pulses: &Pulses) -> std::io::Result<Self> {
        let Some(dir) = settings.dir.clone() else {
            let why = "no folder is configured for them; set jobs.dir or kv.dir".to_owned();
            return Ok(Self::Off { why, settings: None });
        };
        let retention = Retention {
            max_age_ms: settings.keep.map_or(u64::MAX, |keep| keep.as_millis() as u64),
            max_jobs: settings.keep_jobs,
            max_bytes: settings.keep_bytes,
        };
        let (disk, opened) = JobDisk::spawn(dir, retention, clock, pulses)?;
        Ok(Self::On { disk, opened: Some(opened), ready: false, settings: settings.clone() })
    }

    /// # Errors
    /// Why no job is durable, or not now, as a client is told; `storing` are on their way to the disk.
    pub(super) fn takes(&self, storing: usize) -> Result<(), Fault> {
        match self {
            Self::On { .. } if storing >= MAX_STORING => {
                let message = format!("{storing} jobs are on their way to the disk");
                let retry_after_ms = RETRY_AFTER.start().as_millis() as u64;
                Err(Fault { code: ErrorCode::Refused { retry_after_ms }, message })
            }
            // A key's first job may be among those that are not taken up yet.
            Self::On { ready: false, .. } => Err(Self::opening()),
            Self::On { .. } => Ok(()),
            Self::Off { why, .. } => {
                let message = format!("durable jobs cannot be taken: {why}");
                Err(Fault { code: ErrorCode::Failed, message })
            }
        }
    }

    /// # Errors
    /// What an earlier run left is still being taken up, so that its jobs cannot be told by a name that they share.
    pub(super) fn has_taken_up(&self) -> Result<(), Fault> {
        if matches!(self, Self::On { ready: false, .. }) { Err(Self::opening()) } else { Ok(()) }
    }

    fn opening() -> Fault {
        let message = "the durable jobs are still being opened".to_owned();
        Fault { code: ErrorCode::Refused { retry_after_ms: OPENING_RETRY.as_millis() as u64 }, message }
    }

    pub(super) fn fault(&self) -> Option<String> {
        match self {
            Self::On { ready: true, .. } => None,
            Self::On { .. } => Some("they are being opened".to_owned()),
            Self::Off { why, .. } => Some(why.clone()),
        }
    }

    /// # Panics
    /// When no job is durable.
    fn disk(&self) -> &JobDisk {
        match self {
            Self::On { disk, .. } => disk,
            Self::Off { why, .. } => unreachable!("a durable job has a disk: {why}"),
        }
    }
}

// ---- submitting ----

type Answer = ResponseActFuture<SchedulerActor, Result<Submitted, Fault>>;

impl SchedulerActor {
    pub(super) fn new_log(&self, number: JobNumber, durable: bool) -> Arc<JobLog> {
        if durable { JobLog::stored(number.0, self.durable.disk().clone(), 0) } else { JobLog::in_memory() }
    }

    /// Writes a new job's record; the job is acknowledged, and may start, when it is on disk.
    pub(super) fn store(&mut self, number: JobNumber, prompt: Vec<u32>) -> Answer {
        let facts = &self.jobs.get(number).expect("taken just now").facts;
        let disk = self.durable.disk().clone();
        let stored = disk.submit(record_of(number, facts, prompt));
        self.storing += 1;
        // A first job that is on disk and not listed is read.
        let stored = async move {
            let stored = stored.await;
            let first = match stored {
                Ok(Ok(zllm_state::Submitted::Known(first))) => {
                    disk.record(first).await.ok().and_then(Result::ok).flatten()
                }
                _ => None,
            };
            (stored, first)
        };
        Box::pin(stored.into_actor(self).map(move |(stored, on_disk), actor, ctx| {
            actor.storing -= 1;
            let message = match stored.unwrap_or_else(|_| Err("the job disk's thread has ended".to_owned())) {
                Ok(zllm_state::Submitted::New) => {
                    actor.journal.recorded(number);
                    actor.input(Input::Stored(number), ctx);
                    return Ok(actor.submitted(number, false).expect("kept until its end is on disk"));
                }
                Ok(zllm_state::Submitted::Known(first)) => {
                    actor.unstore(number, ctx);
                    if actor.jobs.get(JobNumber(first)).is_none() {
                        on_disk.iter().for_each(|record| actor.remember(record));
                    }
                    match actor.submitted(JobNumber(first), true) {
                        Some(known) => return Ok(known),
                        None => {
                            format!("its key's first job, {}, is no longer kept", job_id(JobNumber(first)))
                        }
                    }
                }
                Err(message) => {
                    actor.unstore(number, ctx);
                    message
                }
            };
            actor.fellows.metrics.request(Outcome::Refused);
            let message = format!("the job cannot be stored and was not taken: {message}");
            Err(Fault { code: ErrorCode::Failed, message })
        }))
    }

    fn unstore(&mut self, number: JobNumber, ctx: &mut Context<Self>) {
        // Whoever has found it in a listing and reads is told.
        let event = Event::Failed { message: "it was not stored, so it was not taken".to_owned() };
        if let Some(record) = self.jobs.get(number) {
            record.log.append_all([event]);
        }
        self.journal.forget(number);
        self.jobs.remove(number);
        self.samplers.retain(|sequence, _| sequence.job != number);
        self.input(Input::Unstored(number), ctx);
    }

    /// Refuses a job, unless it was taken before with the same key.
    pub(super) fn refuse(&mut self, refusal: Refusal, key: Option<(String, IdempotencyKey)>) -> Answer {
        let known = match (key, &self.durable) {
            (Some((tenant, key)), Durable::On { disk, .. }) => Some(disk.find(tenant, key.to_string())),
            _ => None,
        };
        let known = async move {
            match known {
                Some(known) => known.await.ok().and_then(Result::ok).flatten(),
                None => None,
            }
        };
        Box::pin(known.into_actor(self).map(move |known, actor, _| {
            let known = known.and_then(|first| actor.submitted(JobNumber(first), true));
            known.ok_or_else(|| fault_of(refusal))
        }))
    }

    /// The parameters of a job that ended in an earlier run.
    pub(super) fn params_on_disk(
        &self,
        number: JobNumber,
    ) -> impl Future<Output = Option<GenerationParams>> + 'static {
        let record = self.durable.disk().record(number.0);
        async move {
            let record = record.await.ok()?.ok()??;
            decode_request(&record.request).ok()
        }
    }

    // ---- journalling ----

    /// An event of a durable job: shown when it is in the log.
    pub(super) fn journal_event(&mut self, job: JobNumber, event: Event) {
        if !is_terminal(&event) {
            return self.journal.event(job, event);
        }
        let state = match &event {
            Event::Finished { reason: FinishReason::Cancelled, .. } => JobState::Cancelled,
            Event::Finished { .. } => JobState::Done,
            _ => JobState::Failed,
        };
        self.journal.end(job, event, state, self.fellows.clock.time());
    }

    /// Begins the writes that are due.
    pub(super) fn flush_journal(&mut self, ctx: &mut Context<Self>) {
        let Durable::On { disk, .. } = &self.durable else { return };
        let disk = disk.clone();
        for (job, write) in self.journal.take_writes(self.fellows.clock.time()) {
            let written = match &write {
                Write::Append { tokens, events } => disk.append(job.0, tokens.clone(), events.clone()),
                Write::Change(change) => disk.change(change.clone()),
                Write::Finish { change, events } => {
                    let summary = Some(self.summary(job, events));
                    disk.finish(JobChange { summary, ..change.clone() }, events.clone())
                }
            };
            ctx.spawn(written.into_actor(self).map(move |result, actor, ctx| {
                let result = result.unwrap_or_else(|_| Err("the job disk's thread has ended".to_owned()));
                actor.written(job, write, result, ctx);
            }));
        }
    }

    /// What listings will tell of a job that ends.
    fn summary(&self, job: JobNumber, rest: &[(u64, Event)]) -> Vec<u8> {
        let prompt_tokens = self.jobs.get(job).map_or(0, |record| record.facts.prompt_tokens) as u32;
        let ending = rest.last().map(|(offset, last)| Ending { events: offset + 1, last: last.clone() });
        Summary { prompt_tokens, ending, ..Summary::default() }.encode()
    }

    fn written(&mut self, job: JobNumber, write: Write, result: Result<(), String>, ctx: &mut Context<Self>) {
        let now = self.fellows.clock.time();
        if let Err(message) = &result {
            tracing::warn!(job = %job_id(job), message, "the job's journal cannot be written; trying again");
        }
        let is_change = matches!(write, Write::Change(_));
        let succeeded = result.is_ok();
        let shown = self.journal.written(job, write, result.map_err(|_| ()), now);
        self.jobs.events(job, shown, self.journal.stored_events(job), now);
        if is_change && succeeded && self.interrupted.remove(&job) {
            self.input(Input::Stored(job), ctx);
        }
        self.settle(ctx);
    }

    /// Forgets the jobs whose records are gone; opens the disk again if that failed.
    pub(super) fn look_after_disk(&mut self, ctx: &mut Context<Self>) {
        let Durable::On { disk, .. } = &self.durable else { return self.reopen(ctx) };
        let expired = disk.take_expired();
        ctx.spawn(expired.into_actor(self).map(|expired, actor, _| {
            for number in expired.ok().and_then(Result::ok).into_iter().flatten() {
                actor.jobs.remove(JobNumber(number));
            }
        }));
    }

    // ---- taking up ----

    /// Fails jobs that were submitted to another file of that name, or do not fit into its context any more.
    pub(super) fn refuse_changed(&mut self, model: &ModelName, now: &TextFacts) {
        let why = |facts: &JobFacts| {
            let most = facts.prompt_tokens + u64::from(facts.params.max_tokens.unwrap_or(0));
            if !facts.detached || facts.model != **model {
                None
            } else if facts.fingerprint != now.fingerprint {
                Some("its model's file has changed since it was submitted; submit it again".to_owned())
            } else if most > now.context_tokens as u64 {
                let context = now.context_tokens;
                Some(format!(
                    "its prompt and answer may take {most} tokens, its model's context is {context} now"
                ))
            } else {
                None
            }
        };
        let open = self.jobs.latest_first().filter(|(_, record)| !record.has_ended());
        let those: Vec<_> = open.filter_map(|(number, record)| Some((number, why(&record.facts)?))).collect();
        self.failures.extend(those);
    }

    fn take_up(&mut self, opened: Opened, listed: Vec<JobRecord>, keep_jobs: usize, ctx: &mut Context<Self>) {
        self.last_job = self.last_job.max(opened.last_number);
        self.jobs.keep_durable(keep_jobs);
        let ended = listed.into_iter().filter(|record| record.state.is_terminal());
        // The first that ended first, as they will be forgotten.
        let mut ended: Vec<JobRecord> = ended.collect();
        ended.sort_by_key(|record| record.ended_ms);
        ended.iter().for_each(|record| self.remember(record));
        if !opened.jobs.is_empty() {
            tracing::info!(jobs = opened.jobs.len(), "durable jobs go on");
        }
        opened.jobs.into_iter().for_each(|stored| self.restore(stored, ctx));
    }

    fn restore(&mut self, stored: StoredJob, ctx: &mut Context<Self>) {
        let StoredJob { record, tokens, events, started } = stored;
        let number = JobNumber(record.number);
        let name = job_id(number);
        let facts = match decode_request(&record.request).and_then(|params| facts_of(&record, Some(params))) {
            Ok(facts) => facts,
            Err(message) => {
                tracing::error!(job = %name, message, "the job's record cannot be used; it stays on disk");
                return;
            }
        };
        let choices = restored_choices(&tokens, facts.params.n.unwrap_or(1));
        let started = started.and_then(|event| match event {
            Event::Started { cached_by_tier: at, .. } => {
                Some(ByTier { device: at.device, ram: at.ram, ssd: at.ssd })
            }
            _ => None,
        });
        let started =
            started.map(|cached| (milliseconds(record.started_ms.unwrap_or(record.submitted_ms)), cached));
        let (prompt, n) = (record.prompt, choices.len() as u32);
        let job = NewJob {
            id: number,
            model: facts.model.as_str().into(),
            tenant: facts.tenant.clone(),
            class: facts.class,
            bytes: prompt.len() * size_of::<u32>() + record.request.len(),
            max_tokens: facts.params.max_tokens.unwrap_or(1).max(1) as usize,
            prompt,
            choices: n,
            pooling: None,
            arrived_at: facts.submitted_at,
            start_by: facts.start_by,
            deadline: facts.deadline,
            owner: None,
        };
        let held = facts.held;
        let log = JobLog::stored(number.0, self.durable.disk().clone(), events);
        self.jobs.insert(number, facts, log);
        self.jobs.restored(number, tokens.len() as u64, record.attempts);
        self.journal.begin(number, record.state, record.attempts, events);
        if events == 0 {
            self.journal_event(number, Event::Queued { position: 0 });
        }
        let interrupted = record.state == JobState::Running;
        if interrupted {
            self.note_death(number, &record.summary, tokens.len() as u64);
        }
        let stored = !interrupted;
        self.input(Input::Restore(RestoredJob { job, stored, held, started, choices }), ctx);
    }

    /// The daemon died while a job ran, which may have been the reason. It goes on when that is on disk, so that a job that
    /// kills the daemon is found out however soon it does.
    fn note_death(&mut self, job: JobNumber, summary: &[u8], tokens: u64) {
        let Ok(before) = Summary::decode(summary) else { return };
        let idle_deaths = if tokens > before.tokens_before { 0 } else { before.idle_deaths + 1 };
        let now = Summary { tokens_before: tokens, idle_deaths, ..before }.encode();
        self.journal.interrupted(job);
        self.journal.settings(job, |change| change.summary = Some(now));
        self.interrupted.insert(job);
        if idle_deaths >= MAX_IDLE_DEATHS {
            let message = format!("the daemon died {idle_deaths} times while it ran, and it got no further");
            self.failures.push((job, message));
        }
    }

    /// A job that had ended before the daemon started.
    fn remember(&mut self, record: &JobRecord) {
        let number = JobNumber(record.number);
        let Ok(facts) = facts_of(record, None) else { return };
        let ending = Summary::decode(&record.summary).ok().and_then(|summary| summary.ending);
        let (Some(at), Some(Ending { events, last })) = (record.ended_ms, ending) else { return };
        if !is_terminal(&last) {
            return tracing::warn!(job = %job_id(number), "what is kept of the job has no end; it is not listed");
        }
        let log = JobLog::ended(number.0, self.durable.disk().clone(), events);
        self.jobs.insert(number, facts, log);
        self.jobs.restored(number, 0, record.attempts);
        self.jobs.ended_before(number, &last, milliseconds(at));
    }
}

impl SchedulerActor {
    /// Tries again to open what could not be opened.
    pub(super) fn reopen(&mut self, ctx: &mut Context<Self>) {
        let Durable::Off { settings: Some(settings), .. } = &self.durable else { return };
        let started = Durable::start(settings, self.fellows.clock, &self.fellows.pulses);
        self.durable = started.unwrap_or_else(|error| panic!("the job disk's thread: {error}"));
        let recovered = self.recover();
        ctx.spawn(recovered);
    }

    fn recover(&mut self) -> ResponseActFuture<Self, ()> {
        let Durable::On { disk, opened, settings, .. } = &mut self.durable else {
            return Box::pin(actix::fut::ready(()));
        };
        let (disk, settings) = (disk.clone(), settings.clone());
        let opened = opened.take().expect("jobs are taken up once");
        let keep_jobs = settings.keep_jobs as usize;
        let found = async move {
            let gone = || "the job disk's thread has ended".to_owned();
            let opened = opened.await.map_err(|_| gone())??;
            let listed = disk.latest(None, keep_jobs + opened.jobs.len()).await.map_err(|_| gone())??;
            Ok::<_, String>((opened, listed))
        };
        Box::pin(found.into_actor(self).map(move |found, actor, ctx| match found {
            Ok((opened, listed)) => {
                if let Durable::On { ready, .. } = &mut actor.durable {
                    *ready = true;
                }
                actor.take_up(opened, listed, keep_jobs, ctx);
            }
            Err(why) => {
                tracing::error!(reason = why, "there is no durable queue; it is tried again");
                actor.durable = Durable::Off { why, settings: Some(settings) };
            }
        }))
    }
}

impl Handler<Recover> for SchedulerActor {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, _: Recover, _: &mut Self::Context) -> Self::Result {
        self.recover()
    }
}

/// Where each answer is, from the tokens of all in the order in which they were drawn.
pub(super) fn restored_choices(tokens: &[TokenEntry], n: u32) -> Vec<RestoredChoice> {
    let mut choices: Vec<(Progress, Option<zllm_wire::ChoiceEnd>)> = vec![Default::default(); n as usize];
    for entry in tokens {
        let Some((progress, end)) = choices.get_mut(entry.choice as usize) else { continue };
        progress.generated.push(entry.token);
        progress.state = entry.state;
        progress.held.clone_from(&entry.held);
        if entry.sent {
            progress.unsent_tokens = 0;
            progress.unsent_logprobs.clear();
        } else {
            progress.unsent_tokens += 1;
            progress.unsent_logprobs.extend(entry.logprob.clone());
        }
        end.clone_from(&entry.end);
    }
    let choice = |(progress, end): (Progress, Option<_>)| match end {
        Some(end) => RestoredChoice::Ended { end, generated: progress.generated.len() },
        None => RestoredChoice::Open(progress),
    };
    choices.into_iter().map(choice).collect()
}

fn record_of(number: JobNumber, facts: &JobFacts, prompt: Vec<u32>) -> JobRecord {
    let unix_ms = |time: Time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    JobRecord {
        number: number.0,
        tenant: facts.tenant.clone(),
        model: facts.model.clone(),
        session: facts.session.as_ref().map(ToString::to_string),
        label: facts.label.clone(),
        batch: facts.batch.as_ref().map(ToString::to_string),
        key: facts.key.as_ref().map(ToString::to_string),
        class: stored_class(facts.class),
        held: facts.held,
        state: JobState::Queued,
        attempts: 0,
        submitted_ms: unix_ms(facts.submitted_at),
        started_ms: None,
        ended_ms: None,
        deadline_ms: facts.deadline.map(unix_ms),
        start_by_ms: facts.start_by.map(unix_ms),
        fingerprint: facts.fingerprint,
        summary: Summary { prompt_tokens: prompt.len() as u32, ..Summary::default() }.encode(),
        prompt,
        request: encode_request(&facts.params),
    }
}

/// # Errors
/// What in it cannot be read.
fn facts_of(record: &JobRecord, params: Option<GenerationParams>) -> Result<JobFacts, String> {
    let text = |error: zllm_wire::IdError| error.to_string();
    let session = record.session.clone().map(SessionId::new).transpose().map_err(text)?;
    let batch = record.batch.clone().map(zllm_wire::BatchId::new).transpose().map_err(text)?;
    let key = record.key.clone().map(IdempotencyKey::new).transpose().map_err(text)?;
    Ok(JobFacts {
        id: job_id(JobNumber(record.number)),
        label: record.label.clone(),
        model: record.model.clone(),
        tenant: record.tenant.clone(),
        session,
        class: wire_class(record.class),
        held: record.held,
        batch,
        key,
        detached: true,
        params_on_disk: params.is_none(),
        params: params.unwrap_or_default(),
        prompt_tokens: Summary::decode(&record.summary)?.prompt_tokens.into(),
        submitted_at: milliseconds(record.submitted_ms),
        start_by: record.start_by_ms.map(milliseconds),
        deadline: record.deadline_ms.map(milliseconds),
        fingerprint: record.fingerprint,
    })
}

fn milliseconds(ms: u64) -> Time {
    Duration::from_millis(ms)
}

pub(super) fn stored_class(class: Class) -> JobClass {
    match class {
        Class::Interactive => JobClass::Interactive,
        Class::Normal => JobClass::Normal,
        Class::Batch => JobClass::Batch,
    }
}

pub(super) fn wire_class(class: JobClass) -> Class {
    match class {
        JobClass::Interactive => Class::Interactive,
        JobClass::Normal => Class::Normal,
        JobClass::Batch => Class::Batch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[actix::test]
    async fn nothing_is_taken_before_what_was_there_is_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = JobSettings {
            dir: Some(folder.path().to_owned()),
            keep: None,
            keep_jobs: 10,
            keep_bytes: 1 << 20,
        };
        let (pulses, _) = Pulses::new(1);
        let mut durable = Durable::start(&settings, Clock::start(), &pulses).expect("a thread");
        for refused in [durable.takes(0), durable.has_taken_up()] {
            assert!(matches!(refused.expect_err("not yet").code, ErrorCode::Refused { .. }));
        }
        if let Durable::On { ready, .. } = &mut durable {
            *ready = true;
        }
        assert!(durable.takes(0).is_ok() && durable.has_taken_up().is_ok());
    }
}
