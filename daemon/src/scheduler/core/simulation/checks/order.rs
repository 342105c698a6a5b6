//! Nobody starts before somebody of a higher level who could start instead, and nobody is passed over for ever.

use super::{Job, Jobs};
use crate::scheduler::core::Time;
use crate::scheduler::core::line::MAX_BYPASSES;
use crate::scheduler::plan::JobNumber;
use std::time::Duration;
use zllm_wire::Class;

pub(in super::super) struct Order {
    aging: Option<Duration>,
    /// By model and class.
    last_start: Vec<[Time; 3]>,
}

impl Order {
    pub(in super::super) fn new(models: usize, aging: Option<Duration>) -> Self {
        Self { aging, last_start: vec![[Time::ZERO; 3]; models] }
    }

    /// Something of a class starts, or goes on.
    pub(in super::super) fn started(&mut self, model: usize, class: Class, now: Time) {
        self.last_start[model][class as usize] = now;
    }

    /// The highest level that a long wait may have brought a job.
    fn level(&self, job: &Job, now: Time) -> u8 {
        let class = job.class;
        let Some(aging) = self.aging else { return class as u8 };
        let since = job.waiting_since.max(self.last_start[job.request.model][class as usize]);
        let steps = (now - since).as_millis() / aging.as_millis();
        (class as u8).saturating_sub(steps.min(2) as u8)
    }

    /// A lease is asked for; when `stopped`, only what is a part of what runs may start.
    ///
    /// # Errors
    /// When another job had to go first.
    pub(in super::super) fn asked(
        &self,
        jobs: &mut Jobs,
        id: JobNumber,
        stopped: bool,
        now: Time,
    ) -> Result<(), String> {
        let job = &jobs[&id];
        if stopped && !job.is_running() {
            return Err(format!("{id:?} starts although nothing may"));
        }
        let level = self.level(job, now);
        let (model, class, is_fresh) = (job.request.model, job.class, !job.started);
        let (tenant, since) = (job.request.tenant.clone(), job.waiting_since);
        for (other_id, other) in jobs.iter_mut() {
            let stays = stopped && !other.is_running();
            let able = other.may_start() && !other.is_late(now);
            if *other_id == id || other.request.model != model || stays || !able {
                continue;
            }
            if (other.class as u8) < level {
                let (of, waits) = (other.class, now - other.waiting_since);
                return Err(format!(
                    "{id:?} of class {class:?} starts at level {level} after {:?} while {other_id:?} of class {of:?} \
                     waits since {waits:?}",
                    now - since
                ));
            }
            let is_earlier = *other_id < id && other.waiting_since <= since;
            let is_alike = other.class == class && other.request.tenant == tenant && !other.started;
            if is_fresh && is_earlier && is_alike {
                other.passed_over += 1;
                if other.passed_over > MAX_BYPASSES {
                    return Err(format!("{other_id:?} was passed over {} times", other.passed_over));
                }
            }
        }
        Ok(())
    }
}
