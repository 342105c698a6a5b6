//! What is known of each job for `list`, `show` and `attach`: who asked, where it is, its log. Kept for a while after
//! it has ended.

use super::core::{CacheOutcome, CacheReport, Uptime, token_tiers};
use super::log::{JobLog, is_terminal};
use super::plan::JobNumber;
use crate::limits::{MAX_ENDED_JOBS, MAX_ENDED_LOG_BYTES, STORY_TOKENS};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use zllm_wire::{
    ChoiceDetail, ChoiceEnd, Class, Event, FinishReason, GenerationParams, JobDetail, JobId, JobInfo,
    JobState, Moment, MomentKind, SessionId, SessionRef, Tenant, TierBytes, Usage,
};

/// One job.
#[derive(Debug)]
pub(crate) struct JobRecord {
    pub(crate) id: JobId,
    pub(crate) label: Option<String>,
    pub(crate) class: Class,
    pub(crate) model: String,
    pub(crate) tenant: String,
    pub(crate) session: Option<SessionId>,
    pub(crate) detached: bool,
    pub(crate) params: GenerationParams,
    pub(crate) prompt_tokens: u64,
    pub(crate) submitted_at: Uptime,
    pub(crate) log: Arc<JobLog>,
    /// Lives as long as the job works: all that is logged about it carries its fields.
    pub(crate) span: tracing::Span,
    progress: Progress,
}

#[derive(Debug)]
struct Progress {
    state: JobState,
    cache: Option<CacheReport>,
    generated_tokens: u64,
    changed_at: Uptime,
    ending: Option<Ending>,
    /// When it started, had its first token, and ended.
    moments: Vec<(Uptime, MomentKind)>,
}

#[derive(Debug)]
enum Ending {
    Finished(FinishReason, Vec<ChoiceEnd>, Usage),
    Failed(String),
}

/// What a record starts from.
#[derive(Debug)]
pub(crate) struct NewRecord {
    pub(crate) id: JobId,
    pub(crate) label: Option<String>,
    pub(crate) class: Class,
    pub(crate) model: String,
    pub(crate) tenant: String,
    pub(crate) session: Option<SessionId>,
    pub(crate) detached: bool,
    pub(crate) params: GenerationParams,
    pub(crate) prompt_tokens: u64,
}

/// All records, by number.
#[derive(Debug, Default)]
pub(crate) struct JobTable {
    records: BTreeMap<JobNumber, JobRecord>,
    /// Ended jobs, the first that ended first, with the size of their logs.
    ended: VecDeque<(JobNumber, usize)>,
    ended_bytes: usize,
}

impl JobTable {
    pub(crate) fn insert(&mut self, number: JobNumber, new: NewRecord, now: Uptime) {
        let NewRecord { id, label, class, model, tenant, session, detached, params, prompt_tokens } = new;
        let span = tracing::info_span!("job", job = %id, model = %model, prompt_tokens);
        let progress = Progress {
            state: JobState::Queued,
            cache: None,
            generated_tokens: 0,
            changed_at: now,
            ending: None,
            moments: vec![(now, MomentKind::Queued)],
        };
        let log = JobLog::in_memory();
        let record = JobRecord {
            id,
            label,
            class,
            model,
            tenant,
            session,
            detached,
            params,
            prompt_tokens,
            submitted_at: now,
            log,
            span,
            progress,
        };
        self.records.insert(number, record);
    }

    /// Takes back a job that was refused.
    pub(crate) fn remove(&mut self, number: JobNumber) {
        self.records.remove(&number);
    }

    pub(crate) fn get(&self, number: JobNumber) -> Option<&JobRecord> {
        self.records.get(&number)
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
    pub(crate) fn token(&mut self, number: JobNumber, now: Uptime) {
        if let Some(record) = self.records.get_mut(&number) {
            let progress = &mut record.progress;
            progress.generated_tokens += 1;
            progress.changed_at = now;
            if progress.generated_tokens == 1 {
                progress.moments.push((now, MomentKind::FirstToken));
            }
        }
    }

    /// Notes an event and appends it to the job's log.
    pub(crate) fn event(&mut self, number: JobNumber, event: Event, now: Uptime) {
        let record = self.records.get_mut(&number).expect("an event belongs to a known job");
        let progress = &mut record.progress;
        progress.changed_at = now;
        match &event {
            Event::Queued { .. } | Event::Text { .. } => {}
            Event::Started { cached_tokens, .. } => {
                progress.state = JobState::Running;
                progress.moments.push((now, MomentKind::Started { cached_tokens: *cached_tokens }));
            }
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
        }
        let terminal = is_terminal(&event);
        if terminal {
            progress.moments.push((now, MomentKind::Ended));
        }
        record.log.append(event);
        if terminal {
            record.log_end();
            let bytes = record.log.bytes();
            self.ended.push_back((number, bytes));
            self.ended_bytes += bytes;
            self.forget_old();
        }
    }

    fn forget_old(&mut self) {
        while self.ended.len() > MAX_ENDED_JOBS || self.ended_bytes > MAX_ENDED_LOG_BYTES {
            let Some((number, bytes)) = self.ended.pop_front() else { return };
            self.ended_bytes -= bytes;
            self.records.remove(&number);
        }
    }

    /// All jobs, latest first.
    pub(crate) fn latest_first(&self) -> impl Iterator<Item = (JobNumber, &JobRecord)> {
        self.records.iter().rev().map(|(&number, record)| (number, record))
    }
}

impl JobRecord {
    /// Whose it is; the common tenant's empty name is none for clients.
    fn tenant(&self) -> Option<Tenant> {
        Tenant::new(self.tenant.as_str()).ok()
    }

    /// The session that it is a turn of.
    pub(crate) fn session_ref(&self) -> Option<SessionRef> {
        let session = |id: &SessionId| SessionRef { tenant: self.tenant(), id: id.clone() };
        self.session.as_ref().map(session)
    }

    pub(crate) fn info(&self, queue_position: usize, held_bytes: u64, now: Uptime) -> JobInfo {
        let cached = self.progress.cache.as_ref().map(|report| report.cached).unwrap_or_default();
        JobInfo {
            id: self.id.clone(),
            label: self.label.clone(),
            model: self.model.clone(),
            tenant: self.tenant(),
            session: self.session.clone(),
            state: self.progress.state,
            class: self.class,
            held: false,
            batch: None,
            detached: self.detached,
            queue_position: queue_position as u32,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: cached.total(),
            cached_by_tier: token_tiers(cached),
            generated_tokens: self.progress.generated_tokens,
            bytes: TierBytes { device: held_bytes, ram: 0, ssd: 0 },
            age_ms: now.saturating_sub(self.submitted_at).as_millis() as u64,
            idle_ms: now.saturating_sub(self.progress.changed_at).as_millis() as u64,
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.progress.ending.is_some()
    }

    /// What was found of its prompt; `None` before it has started.
    pub(crate) fn cache(&self) -> Option<&CacheReport> {
        self.progress.cache.as_ref()
    }

    pub(crate) fn detail(&self, info: JobInfo) -> JobDetail {
        let (finish, usage, error) = match &self.progress.ending {
            None => (None, None, None),
            Some(Ending::Finished(reason, _, usage)) => (Some(*reason), Some(*usage), None),
            Some(Ending::Failed(message)) => (None, None, Some(message.clone())),
        };
        let end = |choice: u32| match &self.progress.ending {
            Some(Ending::Finished(_, ends, _)) => ends.get(choice as usize).cloned(),
            _ => None,
        };
        let moment = |&(at, what): &(Uptime, MomentKind)| {
            let at_ms = at.saturating_sub(self.submitted_at).as_secs_f64() * 1000.0;
            Moment { at_ms, what }
        };
        let choice = |choice| ChoiceDetail { text: self.log.text(choice), end: end(choice) };
        JobDetail {
            info,
            params: self.params.clone(),
            choices: (0..self.params.n.unwrap_or(1)).map(choice).collect(),
            events: self.log.len(),
            finish,
            usage,
            error,
            attempts: u32::from(self.progress.cache.is_some()),
            deadline_ms: None,
            max_wait_ms: None,
            key: None,
            timeline: self.progress.moments.iter().map(moment).collect(),
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
            let new = NewRecord {
                id: JobId::new(format!("j-{number}")).expect("an id"),
                label: None,
                class: Class::default(),
                model: "m".into(),
                tenant: String::new(),
                session: None,
                detached: false,
                params: GenerationParams::default(),
                prompt_tokens: 1,
            };
            table.insert(JobNumber(number), new, Duration::ZERO);
            if number > 0 {
                table.event(JobNumber(number), Event::Failed { message: "x".into() }, Duration::ZERO);
            }
        }
        assert!(table.get(JobNumber(0)).is_some(), "a live job is never forgotten");
        assert!(table.get(JobNumber(1)).is_none(), "the oldest ended job is forgotten");
        assert_eq!(table.latest_first().count(), MAX_ENDED_JOBS + 1);
    }
}
