//! A store that is a map in memory: what the real one must answer.

use std::collections::BTreeMap;

use zllm_state::{DatabaseError, JobChange, JobRecord, JobState, JobStore, Retention, Submitted};

/// All that is kept, and how long.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Twin {
    pub(crate) jobs: BTreeMap<u64, (JobRecord, Option<Vec<u8>>)>,
    pub(crate) retention: Retention,
    pub(crate) last_number: u64,
}

impl Twin {
    pub(crate) fn new(retention: Retention) -> Self {
        Self { jobs: BTreeMap::new(), retention, last_number: 0 }
    }

    pub(crate) fn submit(&mut self, jobs: &[JobRecord]) -> Vec<Submitted> {
        let mut outcomes = Vec::new();
        for job in jobs {
            let has_key = |other: &&JobRecord| {
                job.key.is_some() && (&other.tenant, &other.key) == (&job.tenant, &job.key)
            };
            if let Some(first) = self.jobs.values().map(|(job, _)| job).find(has_key) {
                outcomes.push(Submitted::Known(first.number));
                continue;
            }
            assert!(self.jobs.insert(job.number, (job.clone(), None)).is_none());
            self.last_number = self.last_number.max(job.number);
            outcomes.push(Submitted::New);
        }
        outcomes
    }

    pub(crate) fn change(&mut self, changes: &[JobChange]) -> Vec<u64> {
        let before = self.ended();
        for change in changes {
            let (job, result) = self.jobs.get_mut(&change.number).unwrap();
            if let Some(state) = change.state {
                job.state = state;
                match state {
                    JobState::Queued => {}
                    JobState::Running => job.started_ms = job.started_ms.or(Some(change.at_ms)),
                    JobState::Done | JobState::Failed | JobState::Cancelled => {
                        job.ended_ms = Some(change.at_ms);
                    }
                }
            }
            job.class = change.class.unwrap_or(job.class);
            job.held = change.held.unwrap_or(job.held);
            job.attempts = change.attempts.unwrap_or(job.attempts);
            job.summary = change.summary.clone().unwrap_or(std::mem::take(&mut job.summary));
            *result = change.result.clone();
        }
        let now_ms = changes.iter().map(|change| change.at_ms).max().unwrap();
        self.expire_of(before, now_ms)
    }

    pub(crate) fn expire(&mut self, now_ms: u64) -> Vec<u64> {
        self.expire_of(self.ended(), now_ms)
    }

    /// When each job ended that has, and its number.
    fn ended(&self) -> Vec<(u64, u64)> {
        let mut ended: Vec<_> = self
            .jobs
            .values()
            .filter_map(|(job, _)| job.ended_ms.map(|ended_ms| (ended_ms, job.number)))
            .collect();
        ended.sort();
        ended
    }

    /// Deletes the first of these as long as a bound is passed.
    fn expire_of(&mut self, candidates: Vec<(u64, u64)>, now_ms: u64) -> Vec<u64> {
        let mut expired = Vec::new();
        for (ended_ms, number) in candidates {
            let kept = self.ended();
            let bytes: usize = kept
                .iter()
                .map(|(_, number)| &self.jobs[number])
                .map(|(job, result)| {
                    job.prompt.len() * 4 + job.request.len() + result.as_ref().map_or(0, Vec::len)
                })
                .sum();
            let is_old = now_ms > ended_ms && now_ms - ended_ms > self.retention.max_age_ms;
            if is_old
                || kept.len() as u64 > self.retention.max_jobs
                || bytes as u64 > self.retention.max_bytes
            {
                self.jobs.remove(&number);
                expired.push(number);
            }
        }
        expired
    }

    pub(crate) fn unfinished(&self) -> Vec<JobRecord> {
        let jobs = self.jobs.values().map(|(job, _)| job);
        jobs.filter(|job| !job.state.is_terminal()).cloned().collect()
    }

    /// What differs between this and the real store. A key that is known must be so there as well, so this asks the store
    /// for it, with a job that it must not take.
    pub(crate) fn compare(&self, store: &mut JobStore) -> Result<(), String> {
        let say = |error: DatabaseError| error.to_string();
        let head = |job: &JobRecord| JobRecord { prompt: Vec::new(), request: Vec::new(), ..job.clone() };
        let heads: Vec<_> = self.jobs.values().rev().map(|(job, _)| head(job)).collect();
        if store.latest(None, usize::MAX).map_err(say)? != heads {
            return Err("other jobs are listed".to_owned());
        }
        let middle = self.last_number / 2;
        let later = heads.iter().filter(|job| job.number < middle).take(3).cloned().collect::<Vec<_>>();
        if store.latest(Some(middle), 3).map_err(say)? != later {
            return Err(format!("other jobs are listed below {middle}"));
        }
        for (number, (job, result)) in &self.jobs {
            if store.record(*number).map_err(say)?.as_ref() != Some(job) {
                return Err(format!("job {number} is another"));
            }
            if store.result(*number).map_err(say)? != *result {
                return Err(format!("job {number} has another result"));
            }
            if job.key.is_some() {
                let probe = JobRecord { number: u64::MAX, ..fresh(job) };
                let outcome = store.submit(&[probe]).map_err(say)?;
                if outcome != [Submitted::Known(*number)] {
                    return Err(format!("the key of job {number} is not known: {outcome:?}"));
                }
            }
            if let Some(batch) = &job.batch {
                let of_batch =
                    |other: &&JobRecord| (&other.tenant, &other.batch) == (&job.tenant, &job.batch);
                let jobs: Vec<_> = heads.iter().rev().filter(of_batch).cloned().collect();
                if store.of_batch(&job.tenant, batch).map_err(say)? != jobs {
                    return Err(format!("batch {batch} has other jobs"));
                }
            }
        }
        Ok(())
    }
}

/// The job as it was submitted.
pub(crate) fn fresh(job: &JobRecord) -> JobRecord {
    JobRecord { state: JobState::Queued, attempts: 0, started_ms: None, ended_ms: None, ..job.clone() }
}
