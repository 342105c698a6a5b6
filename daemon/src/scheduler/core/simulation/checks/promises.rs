//! Whoever is refused is told when to come back; how far that is from when there was room.

use super::bounds::Bounds;
use super::{Job, Jobs};
use crate::limits::RETRY_AFTER;
use crate::scheduler::core::Time;
use std::time::Duration;

/// Refusals that are followed at one time: looking for room is slow work.
const FOLLOWED: usize = 8;

#[derive(Default)]
pub(in super::super) struct Promises {
    open: Vec<(Time, Duration, Job)>,
    /// Logarithm to base 2 of what it took over what was promised.
    ratios: Vec<f64>,
}

impl Promises {
    pub(in super::super) fn refused(&mut self, job: Job, retry_after: Duration, now: Time) {
        if self.open.len() < FOLLOWED {
            self.open.push((now, retry_after, job));
        }
    }

    /// Less waits than before.
    pub(in super::super) fn shrunk(&mut self, bounds: &Bounds, jobs: &Jobs, now: Time) {
        self.open.retain(|(refused_at, promised, job)| {
            if !bounds.has_room(jobs, job) {
                return true;
            }
            let took = (now - *refused_at).clamp(*RETRY_AFTER.start(), *RETRY_AFTER.end());
            self.ratios.push((took.as_secs_f64() / promised.as_secs_f64()).log2());
            false
        });
    }

    /// The daemon was started again: what was promised before is void.
    pub(in super::super) fn forget(&mut self) {
        self.open.clear();
    }

    pub(in super::super) fn count(&self) -> usize {
        self.ratios.len()
    }

    /// The median of how far promises are off, in powers of two, either way.
    pub(in super::super) fn median_error(&self) -> f64 {
        let mut errors: Vec<f64> = self.ratios.iter().map(|ratio| ratio.abs()).collect();
        errors.sort_by(f64::total_cmp);
        errors.get(errors.len() / 2).copied().unwrap_or(0.0)
    }
}
