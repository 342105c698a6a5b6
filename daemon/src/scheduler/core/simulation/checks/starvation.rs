//! A class of which something could start gets a start within a bound: the time after which it has risen to the top, and as
//! long as what runs then may take to make room.

use super::Jobs;
use crate::scheduler::core::Time;
use std::time::Duration;
use zllm_wire::Class;

pub(in super::super) struct Starvation {
    aging: Duration,
    room: Duration,
    /// Since when each class of each model waits without a start.
    since: Vec<[Time; 3]>,
}

const CLASSES: [Class; 3] = [Class::Interactive, Class::Normal, Class::Batch];

impl Starvation {
    pub(in super::super) fn new(models: usize, aging: Duration, room: Duration) -> Self {
        Self { aging, room, since: vec![[Time::ZERO; 3]; models] }
    }

    pub(in super::super) fn started(&mut self, model: usize, class: Class, now: Time) {
        self.since[model][class as usize] = now;
    }

    /// # Errors
    /// When a class has waited for too long.
    pub(in super::super) fn check(&mut self, jobs: &Jobs, paused: bool, now: Time) -> Result<(), String> {
        let mut waits = vec![[0; 3]; self.since.len()];
        for job in jobs.values().filter(|job| job.may_start()) {
            waits[job.request.model][job.class as usize] += 1;
        }
        for (model, since) in self.since.iter_mut().enumerate() {
            for class in CLASSES {
                let (at, count) = (&mut since[class as usize], waits[model][class as usize]);
                if count == 0 || paused {
                    *at = now;
                }
                let bound = self.aging * class as u32 + self.room;
                if now - *at > bound {
                    let waited = now - *at;
                    return Err(format!(
                        "{count} jobs of class {class:?} of model {model} wait, none has started for {waited:?}; \
                         the bound is {bound:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}
