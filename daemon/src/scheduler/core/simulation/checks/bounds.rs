//! What waits is within every bound, and whoever is refused would have been over one.

use super::Jobs;
use crate::scheduler::core::simulation::job::Job;
use crate::scheduler::core::{Amount, CoreLimits, Refusal};

pub(in super::super) struct Bounds {
    limits: CoreLimits,
}

/// One of the bounds that a job falls under.
#[derive(Debug, Clone, Copy)]
pub(super) enum Scope {
    All,
    Class,
    Tenant,
}

const SCOPES: [Scope; 3] = [Scope::All, Scope::Class, Scope::Tenant];

impl Bounds {
    pub(in super::super) fn new(limits: CoreLimits) -> Self {
        Self { limits }
    }

    /// A job was taken; it is among the jobs.
    ///
    /// # Errors
    /// When what waits with it is over a bound.
    pub(in super::super) fn taken(&self, jobs: &Jobs, job: &Job) -> Result<(), String> {
        for scope in SCOPES {
            let (queued, limit) = (self.queued(jobs, job, scope), self.limit(job, scope));
            if !fits(queued, limit) {
                return Err(format!("{queued:?} wait, of {scope:?} at most {limit:?} may"));
            }
        }
        Ok(())
    }

    /// A job was refused because of a bound; it is not among the jobs.
    ///
    /// # Errors
    /// When it would have been within all of them, or the refusal names other numbers.
    pub(in super::super) fn refused(&self, jobs: &Jobs, job: &Job, refusal: &Refusal) -> Result<(), String> {
        let Refusal::QueueFull { queued, added, limit, .. } = refusal else {
            return Err(format!("a job that fits was told: {refusal}"));
        };
        let over = |(had, add, most): (usize, usize, usize)| {
            had + add > most && (had, add, most) == (*queued, *added, *limit)
        };
        let is_true = SCOPES.into_iter().any(|scope| {
            let (had, add) = (self.queued(jobs, job, scope), size(job));
            let most = self.limit(job, scope);
            let parts = [
                (had.jobs, add.jobs, most.jobs),
                (had.tokens, add.tokens, most.tokens),
                (had.bytes, add.bytes, most.bytes),
            ];
            parts.into_iter().any(over)
        });
        if is_true { Ok(()) } else { Err(format!("no bound is passed as it says: {refusal}")) }
    }

    /// Whether a job like this one would be taken now.
    pub(super) fn has_room(&self, jobs: &Jobs, job: &Job) -> bool {
        SCOPES.into_iter().all(|scope| {
            let (had, add) = (self.queued(jobs, job, scope), size(job));
            let sum = Amount {
                jobs: had.jobs + add.jobs,
                tokens: had.tokens + add.tokens,
                bytes: had.bytes + add.bytes,
            };
            fits(sum, self.limit(job, scope))
        })
    }

    fn limit(&self, job: &Job, scope: Scope) -> Amount {
        match scope {
            Scope::All => self.limits.queue,
            Scope::Class => self.limits.classes[job.class as usize],
            Scope::Tenant => self.limits.tenant,
        }
    }

    fn queued(&self, jobs: &Jobs, job: &Job, scope: Scope) -> Amount {
        let counts = |other: &&Job| match scope {
            Scope::All => true,
            Scope::Class => other.class == job.class,
            Scope::Tenant => other.request.tenant == job.request.tenant,
        };
        let mut sum = Amount::default();
        for other in jobs.values().filter(|other| other.is_queued()).filter(counts) {
            let size = size(other);
            sum.jobs += size.jobs;
            sum.tokens += size.tokens;
            sum.bytes += size.bytes;
        }
        sum
    }
}

fn size(job: &Job) -> Amount {
    Amount { jobs: 1, tokens: job.request.prompt.len(), bytes: job.bytes() }
}

fn fits(sum: Amount, limit: Amount) -> bool {
    sum.jobs <= limit.jobs && sum.tokens <= limit.tokens && sum.bytes <= limit.bytes
}
