//! What the core tells about itself: who waits and why, who runs, how full the bounds are.

use super::job::{self, Job};
use super::line::Tenant;
use super::{Amount, Core, Load, Time};
use crate::scheduler::plan::{JobNumber, ModelName};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;
use zllm_state::BLOCK_TOKENS;
use zllm_wire::Class;

/// All of it.
#[derive(Debug)]
pub(crate) struct QueueView {
    pub(crate) paused: bool,
    /// In the order in which they are expected to start.
    pub(crate) waiting: Vec<WaitingView>,
    pub(crate) running: Vec<RunningView>,
    pub(crate) classes: [ClassView; 3],
    pub(crate) tenants: Vec<TenantView>,
    pub(crate) running_limit: usize,
}

/// A job that waits.
#[derive(Debug)]
pub(crate) struct WaitingView {
    pub(crate) job: JobNumber,
    pub(crate) class: Class,
    pub(crate) level: u8,
    pub(crate) waited: Duration,
    pub(crate) max_tokens: usize,
    pub(crate) generated: usize,
    pub(crate) why: Why,
    pub(crate) starts_in: Option<Duration>,
}

/// Why a job waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Why {
    /// Others are before it.
    Turn,
    /// All places are taken.
    Places,
    /// Not enough KV blocks are free: so many are needed, so many no running sequence has.
    Memory {
        blocks: usize,
        free: usize,
    },
    /// Its KV is being read.
    Reading,
    /// Its model is not loaded.
    Model(ModelName),
    Held,
    Paused,
    /// Its record is being written.
    Storing,
    /// It gave way and waits for its place.
    Parked,
}

/// A job of which something runs.
#[derive(Debug)]
pub(crate) struct RunningView {
    pub(crate) job: JobNumber,
    pub(crate) class: Class,
    /// Prompt tokens computed and in all; `None` when all of its running answers are past it.
    pub(crate) prefill: Option<(usize, usize)>,
    pub(crate) generated: usize,
    pub(crate) max_tokens: usize,
    /// Tokens that its leases cover.
    pub(crate) ticket_tokens: usize,
    /// Blocks that they hold; answers share those of the prompt.
    pub(crate) ticket_blocks: usize,
    pub(crate) since: Duration,
}

/// What waits of a class.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClassView {
    pub(crate) queued: Amount,
    pub(crate) limit: Amount,
}

/// A tenant's part.
#[derive(Debug)]
pub(crate) struct TenantView {
    pub(crate) name: String,
    pub(crate) queued: Amount,
    pub(crate) running_jobs: usize,
    pub(crate) served_tokens: u64,
}

impl Core {
    pub(crate) fn load(&self) -> Load {
        let running: HashSet<JobNumber> = self.running.iter().map(|sequence| sequence.job).collect();
        let parked = |job: &&Job| job.has_started() && !job.is_running();
        Load {
            queued_jobs: self.line.queued().jobs,
            running_jobs: running.len(),
            parked_jobs: self.jobs.values().filter(parked).count(),
            held_jobs: self.jobs.values().filter(|job| job.held).count(),
            ticket_tokens: self.running().map(|(_, job, _)| capacity(job)).sum(),
        }
    }

    /// The jobs that wait: those that nothing but time keeps in the order in which they are expected to start, and when; then
    /// the others.
    pub(crate) fn waiting_order(&self, now: Time) -> Vec<(JobNumber, Option<Duration>)> {
        let starts = self.expected_starts(now);
        let expected: HashSet<JobNumber> = starts.iter().map(|(id, _)| *id).collect();
        let others = self.line.waiting().filter(|id| !expected.contains(id)).map(|id| (id, None));
        // Nobody knows when a pause ends.
        let start = |start: &Duration| Some(*start).filter(|_| !self.paused);
        starts.iter().map(|(id, at)| (*id, start(at))).chain(others).collect()
    }

    /// KV blocks that a job holds; its answers share those of the prompt.
    pub(crate) fn held_blocks(&self, job: JobNumber) -> usize {
        let of_it = self.running().filter(|(sequence, ..)| sequence.job == job);
        let blocks: HashSet<u32> = of_it.flat_map(|(.., at)| at.lease.blocks.iter().copied()).collect();
        blocks.len()
    }

    /// Who waits and who runs.
    pub(crate) fn view(&self, now: Time) -> QueueView {
        let free: HashMap<&ModelName, usize> =
            self.models.keys().map(|name| (name, self.free_blocks(name))).collect();
        let waiting = self.waiting_order(now).into_iter().map(|(id, starts_in)| {
            let job = &self.jobs[&id];
            WaitingView {
                job: id,
                class: job.class,
                level: self.line.level(job, &self.limits, now),
                waited: now.saturating_sub(job.waiting_since),
                max_tokens: job.max_tokens,
                generated: job.generated(),
                why: self.why(id, job, &free),
                starts_in,
            }
        });
        let class = |class: Class| ClassView {
            queued: self.line.class(class),
            limit: self.limits.classes[class as usize],
        };
        QueueView {
            paused: self.paused || self.is_draining(),
            waiting: waiting.collect(),
            running: self.running_views(now),
            classes: [Class::Interactive, Class::Normal, Class::Batch].map(class),
            tenants: self.tenant_views(),
            running_limit: self.limits.running_jobs,
        }
    }

    /// Blocks of a model that no running sequence has.
    pub(super) fn free_blocks(&self, model: &ModelName) -> usize {
        let of_it = self.running().filter(|(_, job, _)| job.model == *model);
        let used: HashSet<u32> = of_it.flat_map(|(.., at)| at.lease.blocks.iter().copied()).collect();
        self.models[model].total_blocks as usize - used.len()
    }

    /// Whether nothing but time, or a pause of all, keeps a waiting job from its start.
    pub(super) fn waits_for_time_alone(&self, job: &Job) -> bool {
        !job.held && job.stored && self.models.contains_key(&job.model)
    }

    fn why(&self, id: JobNumber, job: &Job, free: &HashMap<&ModelName, usize>) -> Why {
        if !job.stored || job.held {
            return if job.held { Why::Held } else { Why::Storing };
        }
        let Some(model) = self.models.get(&job.model) else { return Why::Model(job.model.clone()) };
        let needed = capacity(job).div_ceil(BLOCK_TOKENS);
        match () {
            () if self.is_asking(id) => Why::Reading,
            () if self.paused => Why::Paused,
            () if model.starved => Why::Memory { blocks: needed, free: free[&job.model] },
            () if job.has_started() => Why::Parked,
            () if self.running.len() >= self.limits.running_jobs => Why::Places,
            () => Why::Turn,
        }
    }

    fn running_views(&self, now: Time) -> Vec<RunningView> {
        let mut views: BTreeMap<JobNumber, RunningView> = BTreeMap::new();
        for (sequence, job, running) in self.running() {
            let view = views.entry(sequence.job).or_insert_with(|| RunningView {
                job: sequence.job,
                class: job.class,
                prefill: None,
                generated: job.generated(),
                max_tokens: job.max_tokens * job.choices.len(),
                ticket_tokens: 0,
                ticket_blocks: self.held_blocks(sequence.job),
                since: now.saturating_sub(running.started_at),
            });
            view.ticket_tokens += capacity(job);
            if running.pending() > 1 {
                view.prefill = Some((running.computed, running.tokens.len()));
            }
        }
        views.into_values().collect()
    }

    fn tenant_views(&self) -> Vec<TenantView> {
        let mut running: BTreeMap<&str, HashSet<JobNumber>> = BTreeMap::new();
        for (sequence, job, _) in self.running() {
            running.entry(&job.tenant).or_default().insert(sequence.job);
        }
        let view = |(name, tenant): (&str, &Tenant)| TenantView {
            name: name.to_owned(),
            queued: tenant.queued,
            running_jobs: running.get(name).map_or(0, HashSet::len),
            served_tokens: tenant.tokens,
        };
        let mut views: Vec<TenantView> = self.line.tenants().map(view).collect();
        views.sort_by(|one, other| one.name.cmp(&other.name));
        views
    }
}

fn capacity(job: &Job) -> usize {
    job::capacity_tokens(job.prompt.len(), job.max_tokens)
}
