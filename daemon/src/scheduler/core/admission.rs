//! Who starts: leases are asked for and answered, and batch work gives way.

use super::ending::Cut;
use super::job::{self, Job, Running, Stop};
use super::line::Next;
use super::{Action, Asking, Core, Lease, Measure, Model, NoLease, Time, token_tiers};
use crate::limits::PREFETCHED_JOBS;
use crate::scheduler::plan::{JobNumber, ModelName, SequenceId};
use zllm_wire::{Event, MomentKind};

impl Core {
    /// Asks for the leases of the next sequences that may start. One question of a model at a time keeps the order.
    pub(super) fn admit(&mut self, now: Time) {
        while let Some(next) = self.next(now) {
            if self.running.len() + self.asking().count() >= self.limits.running_jobs {
                self.make_room(next.level, None, now);
                return;
            }
            self.ask(next, now);
        }
    }

    /// Whether a job may start while its model is as it is.
    fn may_start(&self, job: &Job, now: Time) -> bool {
        let ready = |model: &Model| !model.starved && model.asking.is_none();
        // Further answers of a job that runs are a part of what runs.
        let stays = (self.paused || self.is_draining()) && !job.is_running();
        !stays && !job.is_late(now) && job.may_start_next() && self.models.get(&job.model).is_some_and(ready)
    }

    fn next(&self, now: Time) -> Option<Next> {
        // Most inputs are steps of a full device: nobody waits, or nobody could be made room for.
        let full = self.running.len() + self.asking().count() >= self.limits.running_jobs;
        if self.line.waiting().next().is_none() || (full && !self.running().any(|(_, _, at)| may_park(at))) {
            return None;
        }
        let running = self.running().map(|(_, job, running)| (job, running));
        self.line.next(&self.jobs, running, &self.limits, now, |job| self.may_start(job, now))
    }

    fn ask(&mut self, Next { job: id, level }: Next, now: Time) {
        let passed = self.line.passed_over(&self.jobs, id, &self.limits, now, |job| self.may_start(job, now));
        for passed in passed {
            self.jobs.get_mut(&passed).expect("what is in line is kept").bypassed += 1;
        }
        let job = &self.jobs[&id];
        let choice = job.next_waiting().expect("a job in line has an answer that waits");
        let sequence = SequenceId { job: id, choice };
        self.prefetch_due = true;
        let model = self.models.get_mut(&job.model).expect("it may start, so its model is there");
        model.asking = Some(Asking { sequence, level, releases: model.releases });
        self.actions.push(Action::Lease {
            sequence,
            model: job.model.clone(),
            tenant: job.tenant.clone(),
            tokens: if job.pooling.is_some() { job.shareable() } else { job.tokens_of(choice) },
            capacity_tokens: job::capacity_tokens(job.prompt.len(), job.max_tokens),
        });
        if !job.has_started() {
            self.moment(id, MomentKind::PrefixSearched);
        }
    }

    /// Has the KV of the next jobs brought nearer while they wait.
    pub(super) fn prefetch(&mut self, now: Time) {
        if !std::mem::take(&mut self.prefetch_due) {
            return;
        }
        let waits = |id: &JobNumber| {
            let job = &self.jobs[id];
            job.may_start_next()
                && job.pooling.is_none()
                && !job.has_started()
                && !self.is_asking(*id)
                && self.models.contains_key(&job.model)
        };
        let mut next: Vec<(u8, JobNumber)> = self
            .line
            .waiting()
            .filter(waits)
            .map(|id| (self.line.level(&self.jobs[&id], &self.limits, now), id))
            .collect();
        next.sort();
        for (_, id) in next.into_iter().take(PREFETCHED_JOBS) {
            let job = self.jobs.get_mut(&id).expect("what is in line is kept");
            if !std::mem::replace(&mut job.prefetched, true) {
                let (model, tenant, prompt) = (job.model.clone(), job.tenant.clone(), job.prompt.clone());
                self.actions.push(Action::Prefetch { model, tenant, prompt });
            }
        }
    }

    pub(super) fn leased(&mut self, sequence: SequenceId, result: Result<Lease, NoLease>, now: Time) {
        let id = sequence.job;
        let job = self.jobs.get_mut(&id).expect("a job that asks for a lease is kept");
        let name = job.model.clone();
        let model = self.models.get_mut(&name).expect("a model outlives its questions");
        let asking = model.asking.take().expect("a lease answers a question");
        assert_eq!(asking.sequence, sequence, "a lease answers the question that was asked");
        let is_stopping = job.stopping.is_some();
        match result {
            Ok(lease) => self.start(sequence, asking.level, lease, now),
            Err(_) if is_stopping => self.end_if_over(id, now),
            Err(NoLease::NotNow) => {
                if model.releases == asking.releases {
                    model.starved = true;
                    self.make_room(asking.level, Some(&name), now);
                }
            }
            Err(NoLease::Never(message)) => self.stop(id, Stop::Failed(message), now),
        }
    }

    fn start(&mut self, sequence: SequenceId, level: u8, lease: Lease, now: Time) {
        let SequenceId { job: id, choice } = sequence;
        let job = self.jobs.get_mut(&id).expect("a job that asks for a lease is kept");
        let report = lease.cache.clone();
        let (is_stopping, ran, had_started) = (job.stopping.is_some(), job.is_running(), job.has_started());
        if !is_stopping {
            self.line.start(job, now);
        }
        let first = job.start(choice, lease, level, now);
        if is_stopping && !had_started {
            // Counted as waiting until here; it leaves the line as one that has not started.
            self.line.stop_waiting(id, job);
        } else if job.next_waiting().is_none() {
            self.line.stop_waiting(id, job);
        }
        self.running.push(sequence);
        self.prefetch_due = true;
        if is_stopping {
            self.cut(sequence, Cut::Cancelled, now);
            self.end_if_over(id, now);
            return;
        }
        self.actions.push(Action::Measure(Measure::FromCache(report.cached)));
        self.begin(sequence, first, ran, report, now);
        let job = &self.jobs[&id];
        let stays = job.held || (self.is_draining() && job.is_durable()) || (self.paused && !ran);
        if stays {
            self.cut(sequence, Cut::Parked, now);
        }
    }

    /// Tells what follows from a start.
    fn begin(&mut self, sequence: SequenceId, first: bool, ran: bool, report: super::CacheReport, now: Time) {
        let SequenceId { job: id, choice } = sequence;
        let job = &self.jobs[&id];
        let running = job.running(choice);
        if !ran {
            self.actions.push(Action::Began { job: id });
        }
        if job.pooling.is_none() && (running.generated() > 0 || !first || job.restored) {
            let prompt = job.prompt.clone();
            let generated = running.tokens[prompt.len()..].to_vec();
            let (model, state) = (job.model.clone(), running.state());
            self.actions.push(Action::Resume { sequence, model, prompt, generated, state });
        }
        let cached = report.cached;
        if cached.ram + cached.ssd > 0 {
            self.moment(id, MomentKind::Restored { ram: cached.ram, ssd: cached.ssd });
        }
        if !first {
            if !ran {
                self.moment(id, MomentKind::Resumed);
            }
            return;
        }
        let job = &self.jobs[&id];
        let waited = now.saturating_sub(job.arrived_at);
        let event = Event::Started {
            cached_tokens: cached.total(),
            cached_by_tier: token_tiers(cached),
            prompt_tokens: job.prompt.len() as u64,
        };
        self.actions.push(Action::Cached { job: id, report });
        self.actions.push(Action::Event { job: id, event });
        self.actions.push(Action::Measure(Measure::QueueWait(waited)));
        self.moment(id, MomentKind::Started { cached_tokens: cached.total() });
    }

    /// Has one sequence give way that was admitted below `level`: of `model`, or of any. The latest has the least to lose.
    fn make_room(&mut self, level: u8, model: Option<&ModelName>, now: Time) {
        let of_it = |job: &Job| model.is_none_or(|model| job.model == *model);
        if self.running().any(|(_, job, running)| of_it(job) && running.parking) {
            return;
        }
        let gives_way =
            |job: &Job, running: &Running| of_it(job) && may_park(running) && running.level > level;
        let mut able =
            self.running().filter(|(_, job, running)| job.stopping.is_none() && gives_way(job, running));
        let Some(sequence) = able.by_ref().last().map(|(sequence, ..)| sequence) else { return };
        drop(able);
        self.park(sequence, now);
    }

    /// Parks what `which` says, now or when its step has ended.
    pub(super) fn park_where(&mut self, now: Time, which: impl Fn(JobNumber, &Job) -> bool) {
        let those: Vec<SequenceId> = self
            .running()
            .filter(|(sequence, job, _)| job.stopping.is_none() && which(sequence.job, job))
            .map(|(sequence, ..)| sequence)
            .collect();
        for sequence in those {
            self.park(sequence, now);
        }
    }

    /// The daemon stops: durable work goes on after the next start.
    pub(super) fn park_durable(&mut self, now: Time) {
        self.park_where(now, |_, job| job.is_durable());
    }

    fn park(&mut self, sequence: SequenceId, now: Time) {
        if self.in_step(sequence) {
            let job = self.jobs.get_mut(&sequence.job).expect("a job outlives its answers");
            job.running_mut(sequence.choice).parking = true;
        } else {
            self.cut(sequence, Cut::Parked, now);
        }
    }
}

/// Whether a sequence gives way to classes above it.
fn may_park(running: &Running) -> bool {
    running.level == zllm_wire::Class::Batch as u8
}
