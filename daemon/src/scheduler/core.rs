//! The scheduler's decisions, without a clock, an actor or a device: `step(input, now) -> actions`.
//!
//! Invariants (`Core::check` verifies them, the simulation calls it after every input):
//!
//! * A job has one sequence for each of its answers. The first computes the prompt; the others start when it has, and find
//!   the prompt's full blocks in the KV cache. The job is over when all of them are.
//! * Who starts next is `line.rs`'s to say. A sequence that must wait for KV memory of its model, or for a lease that is
//!   read from disk, holds back later ones of that model, never those of another.
//! * Admission takes KV blocks for a sequence's whole length, so one that runs never waits for memory. The lease is given
//!   back on every path. Where the places or the memory are taken by what was admitted as batch work, that gives way to
//!   classes above it: its lease goes back, and it goes on later from the token where it was.
//! * A step has a decode row for every running sequence of its model that is past its prompt, and prompt tokens as far as
//!   the others' pace allows. A device computes one step at a time.
//! * Each job gets exactly one terminal event, and no event after it.
//! * What waits is bounded in jobs, prompt tokens and bytes, in all, of each class and of each tenant; what is over a bound
//!   is refused at once, with the time at which there is expected to be room.
//! * A durable job starts when its record is on disk, and outlives its clients and the process.

mod admission;
mod arrival;
mod ending;
mod estimate;
mod interface;
mod job;
mod line;
mod pace;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod view;
mod work;

pub(crate) use interface::{
    Action, Amount, CacheOutcome, CacheReport, ConnectionId, CoreLimits, Generated, Input, Lease, Load,
    Measure, NewJob, NoLease, Progress, Refusal, RestoredChoice, RestoredJob, Time, token_tiers,
};
pub(crate) use view::{ClassView, QueueView, RunningView, WaitingView, Why};

use super::plan::{JobNumber, ModelName, SequenceId, StepPlan};
use arrival::Foretold;
use estimate::Rates;
use job::{Job, Running, Stop};
use line::Line;
use pace::Pace;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};

#[derive(Debug)]
struct Model {
    total_blocks: u32,
    devices: Vec<u16>,
    /// Its first waiting job did not fit; nothing was released since, and no time has passed.
    starved: bool,
    /// Leases given back so far: tells a refusal that a release has overtaken from one that still holds.
    releases: u64,
    /// The sequence whose lease was asked for and not answered, the level that it has, and the releases at that time.
    asking: Option<Asking>,
    pace: Pace,
}

#[derive(Debug, Clone, Copy)]
struct Asking {
    sequence: SequenceId,
    level: u8,
    releases: u64,
}

/// The scheduler's state.
#[derive(Debug)]
pub(crate) struct Core {
    limits: CoreLimits,
    models: BTreeMap<ModelName, Model>,
    jobs: HashMap<JobNumber, Job>,
    line: Line,
    /// Admitted sequences in order of admission.
    running: Vec<SequenceId>,
    /// The steps that devices compute now, at most one of a device.
    in_flight: Vec<StepPlan>,
    /// The model of the last step; the next step goes to the next model that has work.
    last_model: Option<ModelName>,
    /// Nothing that waits starts.
    paused: bool,
    drain_deadline: Option<Time>,
    rates: Rates,
    foretold: RefCell<Option<Foretold>>,
    /// A job came or started since the next ones were brought nearer.
    prefetch_due: bool,
    actions: Vec<Action>,
}

impl Core {
    pub(crate) fn new(limits: CoreLimits) -> Self {
        assert!(limits.running_jobs > 0 && limits.prefill_chunk_tokens > 0 && limits.queue.jobs > 0);
        Self {
            limits,
            models: BTreeMap::new(),
            jobs: HashMap::new(),
            line: Line::default(),
            running: Vec::new(),
            in_flight: Vec::new(),
            last_model: None,
            paused: false,
            drain_deadline: None,
            rates: Rates::default(),
            foretold: RefCell::default(),
            prefetch_due: false,
            actions: Vec::new(),
        }
    }

    /// Takes one input in and returns what is to be done, in order.
    #[cfg_attr(not(test), must_use)]
    pub(crate) fn step(&mut self, input: Input, now: Time) -> Vec<Action> {
        match input {
            Input::ModelUp { model, total_blocks, devices } => {
                let (starved, releases, asking, pace) = (false, 0, None, Pace::default());
                self.models.insert(model, Model { total_blocks, devices, starved, releases, asking, pace });
                self.prefetch_due = true;
            }
            Input::ModelDown { model } => {
                assert!(!self.works_on(&model), "a model is unloaded when nothing of it runs");
                self.models.remove(&model);
            }
            Input::Submit(job) => self.submit(job, now),
            Input::Restore(job) => self.restore(job, now),
            Input::Stored(job) => self.stored(job),
            Input::Unstored(job) => self.unstored(job),
            Input::Cancel(jobs) => jobs.into_iter().for_each(|job| self.stop(job, Stop::Cancelled, now)),
            Input::Fail { job, message } => self.stop(job, Stop::Failed(message), now),
            Input::OwnerGone(owner) => self.cancel_where(now, |job| job.owner == Some(owner)),
            Input::Hold { job, held } => self.hold(job, held, now),
            Input::SetClass { job, class } => self.set_class(job, class),
            Input::Pause(paused) => self.paused = paused,
            Input::Leased { sequence, result } => self.leased(sequence, result, now),
            Input::StepDone { model, outcome, took } => self.step_done(&model, outcome, took, now),
            Input::Drain { deadline } => {
                self.drain_deadline = Some(deadline);
                self.park_durable(now);
            }
            Input::Tick => {
                // The KV store may have needed memory for a while for reads and writes of its own.
                self.models.values_mut().for_each(|model| model.starved = false);
                self.expire(now);
            }
        }
        if self.drain_deadline.is_some_and(|deadline| now >= deadline) {
            self.cancel_where(now, |job| !job.is_durable());
        }
        self.admit(now);
        self.prefetch(now);
        self.plan(now);
        std::mem::take(&mut self.actions)
    }

    /// Whether nothing is left that a stopping daemon waits for: what is durable waits on disk.
    pub(crate) fn is_idle(&self) -> bool {
        let asks = self.asking().next().is_some();
        self.jobs.values().all(Job::is_durable)
            && self.running.is_empty()
            && self.in_flight.is_empty()
            && !asks
    }

    /// Whether nothing that waits starts because a client said so.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether the daemon is stopping.
    pub(crate) fn is_draining(&self) -> bool {
        self.drain_deadline.is_some()
    }

    pub(crate) fn has_jobs(&self, model: &ModelName) -> bool {
        self.jobs.values().any(|job| job.model == *model)
    }

    /// Models of jobs that have not ended, whether or not they are loaded.
    pub(crate) fn wanted_models(&self) -> HashSet<ModelName> {
        self.jobs.values().map(|job| job.model.clone()).collect()
    }

    fn works_on(&self, model: &ModelName) -> bool {
        let of_it = |sequence: &SequenceId| self.jobs[&sequence.job].model == *model;
        self.running.iter().any(of_it) || self.asking().any(|sequence| of_it(&sequence))
    }

    /// The sequences whose leases were asked for and not answered, one of a model at most.
    fn asking(&self) -> impl Iterator<Item = SequenceId> {
        self.models.values().filter_map(|model| model.asking.map(|asking| asking.sequence))
    }

    fn is_asking(&self, id: JobNumber) -> bool {
        self.asking().any(|sequence| sequence.job == id)
    }

    fn in_step(&self, sequence: SequenceId) -> bool {
        self.in_flight.iter().any(|plan| plan.rows.iter().any(|row| row.sequence == sequence))
    }

    /// What runs, in order of admission.
    fn running(&self) -> impl Iterator<Item = (SequenceId, &Job, &Running)> {
        self.running.iter().map(|&sequence| {
            let job = &self.jobs[&sequence.job];
            (sequence, job, job.running(sequence.choice))
        })
    }
}

impl Core {
    /// Verifies the bookkeeping; the simulation calls it after every input.
    ///
    /// # Panics
    /// At the first broken invariant.
    #[cfg(test)]
    fn check(&self) {
        use job::Choice;
        assert!(self.running.len() + self.asking().count() <= self.limits.running_jobs);
        for (name, model) in &self.models {
            let asks = |asking: &Asking| {
                let job = &self.jobs[&asking.sequence.job];
                // An earlier answer may have been parked since it was asked.
                let place = &job.choices[asking.sequence.choice as usize];
                job.model == *name && matches!(place, Choice::Waiting(_))
            };
            assert!(model.asking.as_ref().is_none_or(asks), "a model asks for a waiting answer of its own");
        }
        let (mut running, mut queued) = (0, Amount::default());
        for (id, job) in &self.jobs {
            let waits = job.next_waiting().is_some();
            assert_eq!(self.line.contains(*id), waits, "{id:?} is in line exactly while an answer waits");
            assert!(waits || job.is_running(), "{id:?} waits or runs");
            running += job.choices.iter().filter(|choice| matches!(choice, Choice::Running(_))).count();
            if waits && !job.has_started() {
                queued.jobs += 1;
                queued.tokens += job.prompt.len();
                queued.bytes += job.bytes;
            }
        }
        assert_eq!(self.line.queued(), queued, "what waits is counted");
        let by_tenant: usize = self.line.tenants().map(|(_, tenant)| tenant.queued.jobs).sum();
        assert_eq!(by_tenant, queued.jobs, "and counted for its tenant");
        assert_eq!(running, self.running.len(), "what runs is listed once");
        let runs =
            |at: &SequenceId| matches!(self.jobs[&at.job].choices[at.choice as usize], Choice::Running(_));
        assert!(self.running.iter().all(runs));
        assert!(!self.in_flight.is_empty() || self.running.is_empty(), "the devices idle while jobs run");
        let mut devices = HashSet::new();
        let used = self.in_flight.iter().flat_map(|plan| &self.models[&plan.model].devices);
        assert!(
            used.into_iter().all(|device| devices.insert(*device)),
            "a device computes one step at a time"
        );
    }
}
