//! Jobs arrive: bounds, refusals, what comes back after a restart, and what is said of a job later.

use super::job::{self, Job, Stop};
use super::{Action, Amount, Core, NewJob, Refusal, RestoredJob, Time};
use crate::limits::FORETELL_INTERVAL;
use crate::scheduler::plan::JobNumber;
use std::time::Duration;
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

/// Whose jobs share a bound.
#[derive(Debug, Clone, Copy)]
enum Whose<'a> {
    All,
    Class(Class),
    Tenant(&'a str),
}

/// What the last refused client was told, and when.
#[derive(Debug)]
pub(super) struct Foretold {
    at: Time,
    what: &'static str,
    whose: String,
    needed: usize,
    time: Duration,
}

impl Whose<'_> {
    fn name(self) -> String {
        match self {
            Self::All => "all".to_owned(),
            Self::Class(class) => format!("class {}", class_name(class)),
            Self::Tenant("") => "one tenant".to_owned(),
            Self::Tenant(name) => format!("tenant {name}"),
        }
    }

    fn has(self, job: &Job) -> bool {
        match self {
            Self::All => true,
            Self::Class(class) => job.class == class,
            Self::Tenant(tenant) => job.tenant == tenant,
        }
    }
}

impl Core {
    pub(super) fn submit(&mut self, new: NewJob, now: Time) {
        assert!(
            !new.prompt.is_empty() && new.choices > 0 && (new.max_tokens > 0) != new.pooling.is_some(),
            "the caller refuses empty prompts, empty answers and none; an embedding is no answer"
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
        self.judge_room(new.class, &new.tenant, size_of_job(&new.prompt, new.bytes), now)
    }

    /// Whether a request that is about to be tokenized would be refused all the same, with what is known of it.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) fn has_room(
        &self,
        class: Class,
        tenant: &str,
        bytes: usize,
        now: Time,
    ) -> Result<(), Refusal> {
        self.judge_room(class, tenant, Amount { jobs: 1, tokens: 1, bytes }, now)
    }

    /// Whether so much more may wait of this class and tenant.
    fn judge_room(&self, class: Class, tenant: &str, added: Amount, now: Time) -> Result<(), Refusal> {
        let bounds = [
            (Whose::All, self.line.queued(), self.limits.queue),
            (Whose::Class(class), self.line.class(class), self.limits.classes[class as usize]),
            (Whose::Tenant(tenant), self.line.tenant(tenant).queued, self.limits.tenant),
        ];
        for (whose, queued, limit) in bounds {
            for (what, of) in KINDS {
                let (queued, added, limit) = (of(&queued), of(&added), of(&limit));
                if added > limit {
                    return Err(Refusal::TooLarge { what, whose: whose.name(), added, limit });
                }
                if queued + added > limit {
                    let needed = queued + added - limit;
                    let retry_after = self.time_of_room(whose, (what, of), needed, now);
                    let whose = whose.name();
                    return Err(Refusal::QueueFull { what, whose, queued, added, limit, retry_after });
                }
            }
        }
        Ok(())
    }

    /// When there will be room under a bound. A burst of refusals is told what the first of them was told a moment ago.
    fn time_of_room(
        &self,
        whose: Whose<'_>,
        (what, of): (&'static str, Part),
        needed: usize,
        now: Time,
    ) -> Duration {
        let mut foretold = self.foretold.borrow_mut();
        let name = whose.name();
        if let Some(known) = &*foretold
            && (known.what, &known.whose, known.needed) == (what, &name, needed)
            && now.saturating_sub(known.at) < FORETELL_INTERVAL
        {
            return known.time;
        }
        let size = |job: &Job| of(&size_of_job(&job.prompt, job.bytes));
        let time = self.time_to_free(needed, size, |job| whose.has(job), now);
        *foretold = Some(Foretold { at: now, what, whose: name, needed, time });
        time
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
        for asking in self.models.values_mut().filter_map(|model| model.asking.as_mut()) {
            if asking.sequence.job == id {
                asking.level = class as u8;
            }
        }
        for choice in &mut job.choices {
            if let job::Choice::Running(running) = choice {
                running.level = class as u8;
            }
        }
    }

    /// Ends jobs whose time is over.
    pub(super) fn expire(&mut self, now: Time) {
        let mut over: Vec<(JobNumber, &str)> = Vec::new();
        for (id, job) in self.jobs.iter().filter(|(_, job)| job.is_late(now)) {
            let ends = job.deadline.is_some_and(|deadline| now >= deadline);
            let waited = "it waited for its start longer than it was allowed to";
            over.push((*id, if ends { "its deadline passed before it had ended" } else { waited }));
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
