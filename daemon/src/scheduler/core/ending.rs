//! Sequences and jobs end, or are parked: leases go back on every path, and each job ends once.

use super::job::{CANCELLED, Job, Stop};
use super::{Action, Core, Measure, Time};
use crate::scheduler::plan::{JobNumber, SequenceId};
use zllm_wire::{ChoiceEnd, MomentKind};

/// How a sequence stops running.
#[derive(Debug)]
pub(super) enum Cut {
    Ended(ChoiceEnd),
    Cancelled,
    /// It goes on later.
    Parked,
}

impl Core {
    pub(super) fn cancel_where(&mut self, now: Time, which: impl Fn(&Job) -> bool) {
        let mut ids: Vec<_> = self.jobs.iter().filter(|(_, job)| which(job)).map(|(&id, _)| id).collect();
        ids.sort();
        for id in ids {
            self.stop(id, Stop::Cancelled, now);
        }
    }

    /// Ends a job now, or as soon as whoever works on it has answered. An unknown job has ended before, and the first reason
    /// counts.
    pub(super) fn stop(&mut self, id: JobNumber, why: Stop, now: Time) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.stopping.get_or_insert(why);
            self.end_idle(id, now);
        }
    }

    /// Ends those answers of a stopping job that are not in a step.
    pub(super) fn end_idle(&mut self, id: JobNumber, now: Time) {
        let idle: Vec<SequenceId> =
            self.running.iter().copied().filter(|other| other.job == id && !self.in_step(*other)).collect();
        for sequence in idle {
            self.cut(sequence, Cut::Cancelled, now);
        }
        if self.jobs.contains_key(&id) {
            self.end_if_over(id, now);
        }
    }

    /// Takes a sequence off the device. Its lease goes back; what it computed stays in the KV cache.
    pub(super) fn cut(&mut self, sequence: SequenceId, how: Cut, now: Time) {
        let SequenceId { job: id, choice } = sequence;
        let job = self.jobs.get_mut(&id).expect("a job outlives its answers");
        let name = job.model.clone();
        let is_parked = matches!(how, Cut::Parked);
        let mut running = match how {
            Cut::Ended(end) => job.end_choice(choice, end),
            Cut::Cancelled => job.end_choice(choice, CANCELLED),
            Cut::Parked => job.park_choice(choice, now),
        };
        let sampled = running.tokens.len() - job.prompt.len();
        if running.device_knows {
            self.actions.push(Action::Forget { sequence, model: name.clone() });
        }
        // A generation that ends by itself has let go of all text; one that is cut short has not.
        if let Some(event) = running.last_event() {
            self.actions.push(Action::Event { job: id, event });
        }
        self.running.retain(|&other| other != sequence);
        if !is_parked {
            self.learn_run(id, &running, now);
        }
        let mut tokens = running.tokens;
        tokens.truncate(if running.pool.is_some() { 0 } else { running.computed });
        let (lease, cached_tokens) = (running.lease.id, running.lease.cached_tokens());
        let model = self.models.get_mut(&name).expect("a model outlives what runs");
        model.starved = false;
        model.releases += 1;
        let parked = is_parked;
        self.actions.push(Action::Release { sequence, lease, tokens, cached_tokens, sampled, parked });
        let job = &self.jobs[&id];
        if is_parked {
            self.line.wait(id, job);
            self.actions.push(Action::Measure(Measure::Parked));
            if !job.is_running() {
                self.actions.push(Action::Parked { job: id });
                self.moment(id, MomentKind::Parked);
            }
        }
    }

    /// Ends a job of which nothing runs, and nothing waits that is to start.
    pub(super) fn end_if_over(&mut self, id: JobNumber, now: Time) {
        let job = &self.jobs[&id];
        let waits = job.next_waiting().is_some();
        if job.is_running() || self.is_asking(id) || (waits && job.stopping.is_none()) {
            return;
        }
        let mut job = self.jobs.remove(&id).expect("a job ends once");
        self.line.leave(id, &job);
        for event in job.end_waiting() {
            self.actions.push(Action::Event { job: id, event });
        }
        self.moment(id, MomentKind::Ended);
        self.actions.push(Action::Event { job: id, event: job.terminal_event(now) });
    }
}
