//! No model idles while something of it could start.

use super::Jobs;
use crate::scheduler::core::Time;
use std::time::Duration;

/// Leases are refused now and then without a reason, and asked for again at the next tick.
const PATIENCE: Duration = Duration::from_secs(5);

pub(in super::super) struct Idle {
    /// By model.
    since: Vec<Option<Time>>,
}

impl Idle {
    pub(in super::super) fn new(models: usize) -> Self {
        Self { since: vec![None; models] }
    }

    /// `works` says of each model whether anything of it runs or is asked for.
    ///
    /// # Errors
    /// When a model has idled for too long.
    pub(in super::super) fn check(
        &mut self,
        jobs: &Jobs,
        works: &[bool],
        has_places: bool,
        now: Time,
    ) -> Result<(), String> {
        for (model, since) in self.since.iter_mut().enumerate() {
            let mut able = jobs.iter().filter(|(_, job)| job.request.model == model && job.may_start());
            let idles = !works[model] && has_places;
            *since = match able.next() {
                Some((id, _)) if idles => {
                    let since = since.unwrap_or(now);
                    if now - since > PATIENCE {
                        return Err(format!("model {model} idles while {id:?} waits, since {since:?}"));
                    }
                    Some(since)
                }
                _ => None,
            };
        }
        Ok(())
    }
}
