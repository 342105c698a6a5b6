//! The line of jobs that wait: what of whom waits, and who is next.
//!
//! The order, which [`Line::next`] keeps:
//!
//! 1. by level: a job's class, or one above for each `aging` that its class has waited without a start of its model. So a
//!    class that others keep from starting gets a start now and then, however many jobs it has;
//!    Who has risen goes before those whose class that is: it has waited for long enough;
//! 2. jobs that have started before jobs that have not: they hold KV, and those that were parked give it back soonest;
//! 3. by tenant: whoever was served least, in tokens computed, with what its running sequences may still come to. A tenant
//!    that comes back has no claim on what it did not use;
//! 4. in the order of arrival, but of the next few jobs of that tenant, level and model one goes first that needs less than
//!    half of the work, because it is short or shares its beginning with the job before it. A job is passed over a few
//!    times at most.

use super::interface::{Amount, CoreLimits, Time};
use super::job::{Job, Running};
use crate::scheduler::plan::{JobNumber, ModelName};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use zllm_wire::Class;

/// Jobs of a tenant among which one that needs less work may go first.
const LOOKAHEAD: usize = 16;
/// How often a job is passed over at most.
pub(super) const MAX_BYPASSES: u32 = 8;
/// Idle tenants that are remembered for what they were served.
const MAX_TENANTS: usize = 1024;

/// The jobs of which something waits.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// By number, which is the order of arrival.
    waiting: BTreeSet<JobNumber>,
    /// What has not started, by class; the bounds are on this.
    classes: [Amount; 3],
    tenants: HashMap<String, Tenant>,
    /// The most that the least served tenant with jobs was served so far. Who comes begins there at least, so what an
    /// idle machine gave to one tenant is neither a debt of it nor a claim of the others.
    floor: u64,
    /// What started last, by model.
    latest: HashMap<ModelName, Latest>,
}

/// What started last of a model.
#[derive(Debug, Default)]
struct Latest {
    /// When, by class.
    at: [Time; 3],
    /// The prompt of the last one that left its KV in the cache.
    prompt: Arc<[u32]>,
}

/// One tenant's account.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Tenant {
    pub(super) queued: Amount,
    /// Jobs that have not ended.
    pub(super) jobs: usize,
    /// Tokens computed for it, and those that it had no claim on.
    pub(super) served: u64,
    /// Tokens computed for it.
    pub(super) tokens: u64,
}

/// Who is next, and as what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) job: JobNumber,
    pub(super) level: u8,
}

impl Line {
    /// A job arrives, or comes back after a restart.
    pub(super) fn join(&mut self, id: JobNumber, job: &Job) {
        self.raise_floor();
        if self.tenants.len() >= MAX_TENANTS {
            self.tenants.retain(|_, tenant| tenant.jobs > 0);
        }
        let tenant = self.tenants.entry(job.tenant.clone()).or_default();
        if tenant.jobs == 0 {
            tenant.served = tenant.served.max(self.floor);
        }
        tenant.jobs += 1;
        self.wait(id, job);
    }

    /// A job has ended.
    pub(super) fn leave(&mut self, id: JobNumber, job: &Job) {
        self.stop_waiting(id, job);
        self.raise_floor();
        self.tenant_mut(job).jobs -= 1;
    }

    fn raise_floor(&mut self) {
        let least = self.tenants.values().filter(|tenant| tenant.jobs > 0).map(|tenant| tenant.served).min();
        self.floor = self.floor.max(least.unwrap_or(0));
    }

    /// An answer of the job waits, if none did.
    pub(super) fn wait(&mut self, id: JobNumber, job: &Job) {
        if self.waiting.insert(id) && !job.has_started() {
            self.count(job, |sum, part| sum + part);
        }
    }

    /// The job starts now; it must wait.
    pub(super) fn start(&mut self, job: &Job, now: Time) {
        let latest = self.latest.entry(job.model.clone()).or_default();
        latest.at[job.class as usize] = now;
        if job.pooling.is_none() {
            latest.prompt = job.prompt.clone();
        }
        if !job.has_started() {
            self.count(job, |sum, part| sum - part);
        }
    }

    /// No answer of the job waits any more.
    pub(super) fn stop_waiting(&mut self, id: JobNumber, job: &Job) {
        if self.waiting.remove(&id) && !job.has_started() {
            self.count(job, |sum, part| sum - part);
        }
    }

    /// The job's class is another from now on.
    pub(super) fn set_class(&mut self, id: JobNumber, job: &mut Job, class: Class) {
        let counted = self.waiting.contains(&id) && !job.has_started();
        if counted {
            self.count(job, |sum, part| sum - part);
        }
        job.class = class;
        if counted {
            self.count(job, |sum, part| sum + part);
        }
    }

    fn count(&mut self, job: &Job, change: impl Fn(usize, usize) -> usize) {
        let class = job.class as usize;
        let tenant = self.tenants.get_mut(&job.tenant).expect("a job's tenant has an account");
        for amount in [&mut self.classes[class], &mut tenant.queued] {
            amount.jobs = change(amount.jobs, 1);
            amount.tokens = change(amount.tokens, job.prompt.len());
            amount.bytes = change(amount.bytes, job.bytes);
        }
    }

    fn tenant_mut(&mut self, job: &Job) -> &mut Tenant {
        self.tenants.get_mut(&job.tenant).expect("a job's tenant has an account")
    }

    /// So many tokens were computed for the job.
    pub(super) fn served(&mut self, job: &Job, tokens: usize) {
        let tenant = self.tenant_mut(job);
        tenant.served += tokens as u64;
        tenant.tokens += tokens as u64;
    }

    pub(super) fn waiting(&self) -> impl Iterator<Item = JobNumber> {
        self.waiting.iter().copied()
    }

    #[cfg(test)]
    pub(super) fn contains(&self, id: JobNumber) -> bool {
        self.waiting.contains(&id)
    }

    pub(super) fn class(&self, class: Class) -> Amount {
        self.classes[class as usize]
    }

    /// What has not started, in all.
    pub(super) fn queued(&self) -> Amount {
        let sum = |of: fn(&Amount) -> usize| self.classes.iter().map(of).sum();
        Amount { jobs: sum(|at| at.jobs), tokens: sum(|at| at.tokens), bytes: sum(|at| at.bytes) }
    }

    pub(super) fn tenant(&self, name: &str) -> Tenant {
        self.tenants.get(name).copied().unwrap_or_default()
    }

    pub(super) fn tenants(&self) -> impl Iterator<Item = (&str, &Tenant)> {
        self.tenants.iter().map(|(name, tenant)| (name.as_str(), tenant))
    }

    /// A job's class, or one above after a long wait.
    pub(super) fn level(&self, job: &Job, limits: &CoreLimits, now: Time) -> u8 {
        let class = job.class as u8;
        let Some(aging) = limits.aging else { return class };
        let last = self.latest.get(&job.model).map_or(Time::ZERO, |latest| latest.at[job.class as usize]);
        let since = job.waiting_since.max(last);
        let steps = now.saturating_sub(since).as_millis() / aging.as_millis().max(1);
        class.saturating_sub(steps.min(2) as u8)
    }

    /// What each tenant with jobs was served, with what its running sequences may still come to.
    pub(super) fn served_with<'a>(
        &'a self,
        running: impl Iterator<Item = (&'a Job, &'a Running)>,
    ) -> HashMap<&'a str, u64> {
        let active = self.tenants.iter().filter(|(_, tenant)| tenant.jobs > 0);
        let mut served: HashMap<&str, u64> =
            active.map(|(name, tenant)| (name.as_str(), tenant.served)).collect();
        for (job, running) in running {
            let most = super::job::capacity_tokens(job.prompt.len(), job.max_tokens);
            let owed = most.saturating_sub(running.computed) as u64;
            *served.get_mut(job.tenant.as_str()).expect("what runs has not ended") += owed;
        }
        served
    }

    /// The next job among those that `may` start; `running` is what runs now.
    pub(super) fn next<'a>(
        &'a self,
        jobs: &HashMap<JobNumber, Job>,
        running: impl Iterator<Item = (&'a Job, &'a Running)>,
        limits: &CoreLimits,
        now: Time,
        may: impl Fn(&Job) -> bool,
    ) -> Option<Next> {
        let served = self.served_with(running);
        let rank = |id: &JobNumber| {
            let job = &jobs[id];
            let served = served.get(job.tenant.as_str()).copied().unwrap_or_default();
            let level = self.level(job, limits, now);
            (level, level == job.class as u8, !job.has_started(), served, *id)
        };
        let able = || self.waiting.iter().copied().filter(|id| may(&jobs[id]));
        let (level, _, fresh, _, first) = able().map(|id| rank(&id)).min()?;
        let next = if fresh { self.least_work(jobs, limits, now, first, level, able()) } else { first };
        Some(Next { job: next, level })
    }

    /// Of the next few jobs like `first`, the one to start before it, or `first` itself.
    fn least_work(
        &self,
        jobs: &HashMap<JobNumber, Job>,
        limits: &CoreLimits,
        now: Time,
        first: JobNumber,
        level: u8,
        able: impl Iterator<Item = JobNumber>,
    ) -> JobNumber {
        let head = &jobs[&first];
        let latest = self.latest.get(&head.model).map_or(&[][..], |latest| &latest.prompt);
        let work = |job: &Job| {
            let shared = job.shareable().iter().zip(latest).take_while(|(one, other)| one == other).count();
            job.prompt.len() - shared
        };
        let alike = |job: &Job| {
            job.tenant == head.tenant
                && job.model == head.model
                && !job.has_started()
                && self.level(job, limits, now) == level
        };
        let mut best = (work(head), first);
        let worth = work(head) / 2;
        let mut stop = head.bypassed >= MAX_BYPASSES;
        for id in able.filter(|id| *id > first && alike(&jobs[id])).take(LOOKAHEAD) {
            if stop {
                break;
            }
            let work = work(&jobs[&id]);
            if work < worth && work < best.0 {
                best = (work, id);
            }
            stop = jobs[&id].bypassed >= MAX_BYPASSES;
        }
        best.1
    }

    /// The jobs that `chosen` goes before although they came earlier.
    pub(super) fn passed_over(
        &self,
        jobs: &HashMap<JobNumber, Job>,
        chosen: JobNumber,
        limits: &CoreLimits,
        now: Time,
        may: impl Fn(&Job) -> bool,
    ) -> Vec<JobNumber> {
        let job = &jobs[&chosen];
        let level = self.level(job, limits, now);
        let alike = |other: &Job| {
            may(other)
                && other.tenant == job.tenant
                && other.model == job.model
                && !other.has_started()
                && self.level(other, limits, now) == level
        };
        self.waiting.range(..chosen).copied().filter(|id| alike(&jobs[id])).collect()
    }
}

#[cfg(test)]
mod tests;
