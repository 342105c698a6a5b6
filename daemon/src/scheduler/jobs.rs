//! What is known of each job for `list`, `show` and `attach`: who asked, where it is, its log. Kept for a while after
//! it has ended: what belonged to a connection in memory, what is durable for as long as its record is on disk.

use super::core::{CacheOutcome, CacheReport, Time, token_tiers};
use super::log::{JobLog, is_terminal};
use super::plan::JobNumber;
use crate::limits::{MAX_ENDED_JOBS, MAX_ENDED_LOG_BYTES, MAX_MOMENTS, STORY_TOKENS};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use zllm_wire::{
    BatchId, BatchJob, ChoiceDetail, ChoiceEnd, Class, Event, FinishReason, GenerationParams, IdempotencyKey,
    JobDetail, JobId, JobInfo, JobState, Moment, MomentKind, SessionId, SessionRef, Tenant, TierBytes, Usage,
};

/// One job.
#[derive(Debug)]
pub(crate) struct JobRecord {
    pub(crate) facts: JobFacts,
    pub(crate) log: Arc<JobLog>,
    /// Lives as long as the job works: all that is logged about it carries its fields.
    pub(crate) span: tracing::Span,
    progress: Progress,
}

/// What a job is from its submission on; class and hold may be changed.
#[derive(Debug, Clone)]
pub(crate) struct JobFacts {
    pub(crate) id: JobId,
    pub(crate) label: Option<String>,
    pub(crate) model: String,
    pub(crate) tenant: String,
    pub(crate) session: Option<SessionId>,
    pub(crate) class: Class,
    pub(crate) held: bool,
    pub(crate) batch: Option<BatchId>,
    pub(crate) key: Option<IdempotencyKey>,
    /// Durable: it outlives its client and the daemon.
    pub(crate) detached: bool,
    pub(crate) params: GenerationParams,
    /// `params` are not known: they are in the job's record on disk.
    pub(crate) params_on_disk: bool,
    pub(crate) prompt_tokens: u64,
    pub(crate) submitted_at: Time,
    pub(crate) start_by: Option<Time>,
    pub(crate) deadline: Option<Time>,
    /// Of the model that its prompt was tokenized for.
    pub(crate) fingerprint: [u8; 32],
}

#[derive(Debug)]
struct Progress {
    state: JobState,
    cache: Option<CacheReport>,
    generated_tokens: u64,
    attempts: u32,
    changed_at: Time,
    ending: Option<Ending>,
    /// The latest of what happened to it.
    moments: VecDeque<(Time, MomentKind)>,
}

#[derive(Debug)]
enum Ending {
    Finished(FinishReason, Vec<ChoiceEnd>, Usage),
    Failed(String),
}

/// All records, by number.
#[derive(Debug, Default)]
pub(crate) struct JobTable {
    records: BTreeMap<JobNumber, JobRecord>,
    /// Ended jobs that are in memory alone, the first that ended first, with the size of their logs.
    ended: VecDeque<(JobNumber, usize)>,
    ended_bytes: usize,
    /// Ended jobs that are on disk, the first that ended first.
    ended_durable: VecDeque<JobNumber>,
    /// How many of them are listed.
    keep_durable: usize,
}

impl JobTable {
    pub(crate) fn insert(&mut self, number: JobNumber, facts: JobFacts, log: Arc<JobLog>) {
        let span = tracing::info_span!(
            "job", job = %facts.id, model = %facts.model, prompt_tokens = facts.prompt_tokens
        );
        let progress = Progress {
            state: JobState::Queued,
            cache: None,
            generated_tokens: 0,
            attempts: 0,
            changed_at: facts.submitted_at,
            ending: None,
            moments: VecDeque::new(),
        };
        self.records.insert(number, JobRecord { facts, log, span, progress });
    }

    /// Takes back a job that never existed, or forgets one whose record is gone.
    pub(crate) fn remove(&mut self, number: JobNumber) {
        self.records.remove(&number);
    }

    pub(crate) fn get(&self, number: JobNumber) -> Option<&JobRecord> {
        self.records.get(&number)
    }

    pub(crate) fn facts_mut(&mut self, number: JobNumber) -> Option<&mut JobFacts> {
        self.records.get_mut(&number).map(|record| &mut record.facts)
    }

    /// Notes what was found of a job's prompt.
    pub(crate) fn cached(&mut self, number: JobNumber, report: CacheReport) {
        let record = self.records.get_mut(&number).expect("a lease belongs to a known job");
        if let CacheOutcome::Diverged { before, kept, asked, .. } = &report.outcome {
            let longest = before.len().max(kept.len()).max(asked.len());
            assert!(
                longest <= STORY_TOKENS,
                "a report has at most {STORY_TOKENS} tokens of a text, not {longest}"
            );
        }
        record.progress.cache = Some(report);
    }

    /// Notes a sampled token.
    pub(crate) fn token(&mut self, number: JobNumber, now: Time) {
        if let Some(record) = self.records.get_mut(&number) {
            record.progress.generated_tokens += 1;
            record.progress.changed_at = now;
        }
    }

    /// Notes that a job has come to a point of its way.
    pub(crate) fn moment(&mut self, number: JobNumber, what: MomentKind, now: Time) {
        let Some(record) = self.records.get_mut(&number) else { return };
        let moments = &mut record.progress.moments;
        if moments.len() == MAX_MOMENTS {
            // Its beginning stays.
            moments.remove(MAX_MOMENTS / 2);
        }
        moments.push_back((now, what));
    }

    /// Notes whether something of a job runs, and how often it has begun to.
    pub(crate) fn runs(&mut self, number: JobNumber, runs: bool, attempts: u32, now: Time) {
        if let Some(record) = self.records.get_mut(&number) {
            let state = if runs { JobState::Running } else { JobState::Queued };
            (record.progress.state, record.progress.attempts) = (state, attempts);
            record.progress.changed_at = now;
        }
    }

    /// Notes how far a job of an earlier run is.
    pub(crate) fn restored(&mut self, number: JobNumber, generated: u64, attempts: u32) {
        let record = self.records.get_mut(&number).expect("inserted before");
        (record.progress.generated_tokens, record.progress.attempts) = (generated, attempts);
    }

    /// Notes an event and appends it to the job's log.
    pub(crate) fn event(&mut self, number: JobNumber, event: Event, now: Time) {
        self.events(number, vec![event], u64::MAX, now);
    }

    /// Notes events and appends them to the job's log, of which the first `stored` events are on disk.
    pub(crate) fn events(&mut self, number: JobNumber, events: Vec<Event>, stored: u64, now: Time) {
        // Its record may be gone already, if it is over and the disk was slow to say so.
        let Some(record) = self.records.get_mut(&number) else { return };
        if events.is_empty() {
            return;
        }
        record.progress.changed_at = now;
        let terminal = events.last().filter(|event| is_terminal(event)).cloned();
        terminal.iter().for_each(|event| record.end(event));
        record.log.append_stored(events, stored);
        if terminal.is_none() {
            return;
        }
        record.log_end();
        if record.facts.detached {
            record.log.leave_to_disk();
            self.ended_durable.push_back(number);
        } else {
            let bytes = record.log.bytes();
            self.ended.push_back((number, bytes));
            self.ended_bytes += bytes;
        }
        self.forget_old();
    }

    /// Notes how a job of an earlier run ended.
    pub(crate) fn ended_before(&mut self, number: JobNumber, terminal: &Event, at: Time) {
        let record = self.records.get_mut(&number).expect("inserted before");
        record.progress.changed_at = at;
        record.end(terminal);
        self.ended_durable.push_back(number);
    }

    /// How many ended jobs that are on disk are listed.
    pub(crate) fn keep_durable(&mut self, jobs: usize) {
        self.keep_durable = jobs;
    }

    fn forget_old(&mut self) {
        while self.ended.len() > MAX_ENDED_JOBS || self.ended_bytes > MAX_ENDED_LOG_BYTES {
            let Some((number, bytes)) = self.ended.pop_front() else { break };
            self.ended_bytes -= bytes;
            self.records.remove(&number);
        }
        while self.ended_durable.len() > self.keep_durable {
            let Some(number) = self.ended_durable.pop_front() else { return };
            self.records.remove(&number);
        }
    }

    /// All jobs, latest first.
    pub(crate) fn latest_first(&self) -> impl Iterator<Item = (JobNumber, &JobRecord)> {
        self.records.iter().rev().map(|(&number, record)| (number, record))
    }

    /// Jobs of a batch, in order of arrival.
    pub(crate) fn of_batch(
        &self,
        tenant: &str,
        batch: &BatchId,
    ) -> impl Iterator<Item = (JobNumber, &JobRecord)> {
        let of_it = move |facts: &JobFacts| facts.tenant == tenant && facts.batch.as_ref() == Some(batch);
        self.records.iter().map(|(&number, record)| (number, record)).filter(move |(_, at)| of_it(&at.facts))
    }
}

impl JobFacts {
    /// Whose it is; the common tenant's empty name is none for clients.
    pub(crate) fn tenant(&self) -> Option<Tenant> {
        Tenant::new(self.tenant.as_str()).ok()
    }

    /// The session that it is a turn of.
    pub(crate) fn session_ref(&self) -> Option<SessionRef> {
        let session = |id: &SessionId| SessionRef { tenant: self.tenant(), id: id.clone() };
        self.session.as_ref().map(session)
    }
}

impl JobRecord {
    fn end(&mut self, terminal: &Event) {
        let progress = &mut self.progress;
        match terminal {
            Event::Finished { reason, choices, usage } => {
                progress.state =
                    if *reason == FinishReason::Cancelled { JobState::Cancelled } else { JobState::Done };
                progress.generated_tokens = usage.generated_tokens;
                progress.ending = Some(Ending::Finished(*reason, choices.clone(), *usage));
            }
            Event::Failed { message } => {
                progress.state = JobState::Failed;
                progress.ending = Some(Ending::Failed(message.clone()));
            }
            Event::Queued { .. } | Event::Started { .. } | Event::Text { .. } => {
                unreachable!("a terminal event")
            }
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.progress.ending.is_some()
    }

    pub(crate) fn state(&self) -> JobState {
        self.progress.state
    }

    pub(crate) fn batch_job(&self) -> BatchJob {
        BatchJob { job: self.facts.id.clone(), label: self.facts.label.clone(), state: self.state() }
    }

    pub(crate) fn info(&self, queue_position: usize, held_bytes: u64, now: Time) -> JobInfo {
        let cached = self.progress.cache.as_ref().map(|report| token_tiers(report.cached));
        let cached = cached.or(match &self.progress.ending {
            Some(Ending::Finished(_, _, usage)) => Some(usage.cached_by_tier),
            _ => None,
        });
        let cached = cached.unwrap_or_default();
        let facts = &self.facts;
        JobInfo {
            id: facts.id.clone(),
            label: facts.label.clone(),
            model: facts.model.clone(),
            tenant: facts.tenant(),
            session: facts.session.clone(),
            state: self.progress.state,
            class: facts.class,
            held: facts.held,
            batch: facts.batch.clone(),
            detached: facts.detached,
            queue_position: queue_position as u32,
            prompt_tokens: facts.prompt_tokens,
            cached_tokens: cached.total(),
            cached_by_tier: cached,
            generated_tokens: self.progress.generated_tokens,
            bytes: TierBytes { device: held_bytes, ram: 0, ssd: 0 },
            age_ms: now.saturating_sub(facts.submitted_at).as_millis() as u64,
            idle_ms: now.saturating_sub(self.progress.changed_at).as_millis() as u64,
        }
    }

    /// What was found of its prompt; `None` before it has started.
    pub(crate) fn cache(&self) -> Option<&CacheReport> {
        self.progress.cache.as_ref()
    }

    /// All but the texts of its answers, which are in its log.
    pub(crate) fn detail(&self, info: JobInfo, now: Time) -> JobDetail {
        let (finish, usage, error) = match &self.progress.ending {
            None => (None, None, None),
            Some(Ending::Finished(reason, _, usage)) => (Some(*reason), Some(*usage), None),
            Some(Ending::Failed(message)) => (None, None, Some(message.clone())),
        };
        let end = |choice: u32| match &self.progress.ending {
            Some(Ending::Finished(_, ends, _)) => ends.get(choice as usize).cloned(),
            _ => None,
        };
        let facts = &self.facts;
        let moment = |&(at, what): &(Time, MomentKind)| {
            let at_ms = at.saturating_sub(facts.submitted_at).as_secs_f64() * 1e3;
            Moment { at_ms, what }
        };
        let left = |time: Option<Time>, counts: bool| {
            time.filter(|_| counts).map(|time| time.saturating_sub(now).as_millis() as u64)
        };
        let started =
            self.progress.moments.iter().any(|(_, what)| matches!(what, MomentKind::Started { .. }));
        JobDetail {
            info,
            params: facts.params.clone(),
            choices: (0..self.answers())
                .map(|choice| ChoiceDetail { text: String::new(), end: end(choice) })
                .collect(),
            events: self.log.len(),
            finish,
            usage,
            error,
            attempts: self.progress.attempts,
            deadline_ms: left(facts.deadline, !self.has_ended()),
            max_wait_ms: left(facts.start_by, !started && !self.has_ended()),
            key: facts.key.clone(),
            timeline: self.progress.moments.iter().map(moment).collect(),
        }
    }

    /// How many answers it has.
    fn answers(&self) -> u32 {
        match &self.progress.ending {
            Some(Ending::Finished(_, ends, _)) => ends.len() as u32,
            _ => self.facts.params.n.unwrap_or(1),
        }
    }

    fn log_end(&self) {
        let _entered = self.span.enter();
        match &self.progress.ending {
            Some(Ending::Finished(reason, _, usage)) => tracing::info!(
                ?reason,
                cached_tokens = usage.cached_tokens,
                generated_tokens = usage.generated_tokens,
                queue_ms = usage.queue_ms,
                first_token_ms = usage.first_token_ms,
                decode_ms = usage.decode_ms,
                "job ended"
            ),
            Some(Ending::Failed(message)) => tracing::warn!(message, "job failed"),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ended_jobs_are_kept_up_to_the_bound_and_live_ones_always() {
        let mut table = JobTable::default();
        let total = MAX_ENDED_JOBS as u64 + 10;
        for number in 0..total {
            table.insert(JobNumber(number), facts(number), JobLog::in_memory());
            if number > 0 {
                table.event(JobNumber(number), Event::Failed { message: "x".into() }, Duration::ZERO);
            }
        }
        assert!(table.get(JobNumber(0)).is_some(), "a live job is never forgotten");
        assert!(table.get(JobNumber(1)).is_none(), "the oldest ended job is forgotten");
        assert_eq!(table.latest_first().count(), MAX_ENDED_JOBS + 1);
    }

    #[test]
    fn a_timeline_keeps_its_beginning_and_its_end() {
        let mut table = JobTable::default();
        table.insert(JobNumber(1), facts(1), JobLog::in_memory());
        table.moment(JobNumber(1), MomentKind::Queued, Duration::ZERO);
        for second in 1..1000 {
            table.moment(JobNumber(1), MomentKind::Parked, Duration::from_secs(second));
        }
        table.moment(JobNumber(1), MomentKind::Ended, Duration::from_secs(1000));
        let moments = &table.get(JobNumber(1)).expect("live").progress.moments;
        assert_eq!(moments.len(), MAX_MOMENTS);
        assert_eq!(moments.front().map(|(_, what)| *what), Some(MomentKind::Queued));
        assert_eq!(moments.back().map(|(_, what)| *what), Some(MomentKind::Ended));
    }

    fn facts(number: u64) -> JobFacts {
        JobFacts {
            id: JobId::new(format!("j-{number}")).expect("an id"),
            label: None,
            model: "m".into(),
            tenant: String::new(),
            session: None,
            class: Class::Normal,
            held: false,
            batch: None,
            key: None,
            detached: false,
            params: GenerationParams::default(),
            params_on_disk: false,
            prompt_tokens: 1,
            submitted_at: Duration::ZERO,
            start_by: None,
            deadline: None,
            fingerprint: [0; 32],
        }
    }
}
