//! Jobs arrive: bounds, refusals, what comes back after a restart, and what is said of a job later.

use super::job::{self, Job, Stop};
use super::{Action, Amount, Core, NewJob, Refusal, RestoredJob, Time};
use crate::scheduler::plan::JobNumber;
use zllm_state::BLOCK_TOKENS;
use zllm_wire::{Class, Event, MomentKind};

type Part = fn(&Amount) -> usize;

/// What is counted of the jobs that wait.
const KINDS: [(&str, Part); 3] = [
    ("jobs", |amount| amount.jobs),
    ("prompt tokens", |amount| amount.tokens),
    ("request bytes", |amount| amount.bytes),
];

fn size_of_job(prompt: &[u32], bytes: usize) -> Amount {
    Amount { jobs: 1, tokens: prompt.len(), bytes }
}

impl Core {
    pub(super) fn submit(&mut self, new: NewJob, now: Time) {
        assert!(
            !new.prompt.is_empty() && new.max_tokens > 0 && new.choices > 0,
            "the caller refuses empty prompts, empty answers and none"
        );
        let id = new.id;
        if let Err(refusal) = self.judge(&new, now) {
            self.actions.push(Action::Refused { job: id, refusal });
            return;
        }
        let position = self.line.queued().jobs as u32;
        self.take(id, Job::new(new));
        self.moment(id, MomentKind::Queued);
        self.actions.push(Action::Event { job: id, event: Event::Queued { position } });
    }

    fn take(&mut self, id: JobNumber, job: Job) {
        self.line.join(id, &job);
        let previous = self.jobs.insert(id, job);
        assert!(previous.is_none(), "job numbers are used once");
        self.prefetch_due = true;
    }

    /// A job of an earlier run. One whose answers have all ended was about to be told of as ended.
    pub(super) fn restore(&mut self, restored: RestoredJob, now: Time) {
        let id = restored.job.id;
        self.take(id, Job::restored(restored));
        self.moment(id, MomentKind::Restarted);
        let job = &self.jobs[&id];
        if job.next_waiting().is_none() {
            self.line.stop_waiting(id, job);
            self.end_if_over(id, now);
        }
    }

    fn judge(&self, new: &NewJob, now: Time) -> Result<(), Refusal> {
        if self.is_draining() {
            return Err(Refusal::Stopping);
        }
        if self.paused && new.owner.is_some() {
            return Err(Refusal::Paused);
        }
        let Some(model) = self.models.get(&new.model) else {
            return Err(Refusal::NoModel { model: new.model.clone() });
        };
        let needed = job::capacity_tokens(new.prompt.len(), new.max_tokens).div_ceil(BLOCK_TOKENS);
        if needed > model.total_blocks as usize {
            return Err(Refusal::NeverFits {
                model: new.model.clone(),
                prompt_tokens: new.prompt.len(),
                max_tokens: new.max_tokens,
                needed,
                total: model.total_blocks,
            });
        }
        let class = new.class;
        self.judge_room(new, self.line.queued(), self.limits.queue, "all", now, |_| true)?;
        let whose = || format!("class {}", class_name(class));
        let limit = self.limits.classes[class as usize];
        self.judge_room(new, self.line.class(class), limit, whose(), now, |job| job.class == class)?;
        let whose =
            if new.tenant.is_empty() { "one tenant".to_owned() } else { format!("tenant {}", new.tenant) };
        let queued = self.line.tenant(&new.tenant).queued;
        self.judge_room(new, queued, self.limits.tenant, whose, now, |job| job.tenant == new.tenant)
    }

    /// Whether `new` may wait beside what of some jobs waits, those that it shares the bound with.
    fn judge_room(
        &self,
        new: &NewJob,
        queued: Amount,
        limit: Amount,
        whose: impl Into<String>,
        now: Time,
        shares: impl Fn(&Job) -> bool,
    ) -> Result<(), Refusal> {
        for (what, of, added) in KINDS.map(|(what, of)| (what, of, of(&size_of_job(&new.prompt, new.bytes))))
        {
            let (queued, limit) = (of(&queued), of(&limit));
            if added > limit {
                return Err(Refusal::TooLarge { what, whose: whose.into(), added, limit });
            }
            if queued + added > limit {
                let size = |job: &Job| of(&size_of_job(&job.prompt, job.bytes));
                let retry_after = self.time_to_free(queued + added - limit, size, shares, now);
                let whose = whose.into();
                return Err(Refusal::QueueFull { what, whose, queued, added, limit, retry_after });
            }
        }
        Ok(())
    }

    pub(super) fn stored(&mut self, id: JobNumber) {
        // One that was cancelled meanwhile has ended.
        if let Some(job) = self.jobs.get_mut(&id) {
            job.stored = true;
            self.moment(id, MomentKind::Stored);
        }
    }

    pub(super) fn unstored(&mut self, id: JobNumber) {
        if let Some(job) = self.jobs.remove(&id) {
            assert!(!job.stored && !job.has_started(), "what is not on disk does not run");
            self.line.leave(id, &job);
        }
    }

    pub(super) fn hold(&mut self, id: JobNumber, held: bool, now: Time) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if std::mem::replace(&mut job.held, held) == held {
            return;
        }
        self.moment(id, if held { MomentKind::Held } else { MomentKind::Released });
        if held {
            self.park_where(now, |of, _| of == id);
        } else if let Some(job) = self.jobs.get_mut(&id) {
            // It would run already if it had not been held; it has no claim on that time.
            job.waiting_since = job.waiting_since.max(now);
            self.prefetch_due = true;
        }
    }

    pub(super) fn set_class(&mut self, id: JobNumber, class: Class) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        self.line.set_class(id, job, class);
        for choice in &mut job.choices {
            if let job::Choice::Running(running) = choice {
                running.level = class as u8;
            }
        }
    }

    /// Ends jobs whose time is over.
    pub(super) fn expire(&mut self, now: Time) {
        let mut over: Vec<(JobNumber, &str)> = Vec::new();
        for (id, job) in &self.jobs {
            let passed = |time: Option<Time>| time.is_some_and(|time| now >= time);
            if passed(job.deadline) {
                over.push((*id, "its deadline passed before it had ended"));
            } else if passed(job.start_by) && !job.has_started() {
                over.push((*id, "it waited for its start longer than it was allowed to"));
            }
        }
        over.sort();
        for (id, why) in over {
            self.stop(id, Stop::Failed(why.to_owned()), now);
        }
    }

    pub(super) fn moment(&mut self, job: JobNumber, what: MomentKind) {
        self.actions.push(Action::Moment { job, what });
    }
}

fn class_name(class: Class) -> &'static str {
    match class {
        Class::Interactive => "interactive",
        Class::Normal => "normal",
        Class::Batch => "batch",
    }
}
