//! What clients and the operator do to the daemon, and how it comes back.

use super::super::{Core, Input, RestoredChoice, RestoredJob};
use super::checks::Fault;
use super::device::Device;
use super::disk::{Disk, Record};
use super::happening::{Fate, Happening};
use super::job::Job;
use super::mutants::Sabotage;
use super::scenario::hours;
use super::store::Store;
use super::world::World;
use crate::scheduler::plan::JobNumber;
use std::time::Duration;
use zllm_state::ByTier;
use zllm_wire::Event;

/// How long a client waits before it tries again that has lost its daemon.
const RECONNECT: Duration = Duration::from_secs(2);
/// How long a model loads, on average.
const LOADING: Duration = Duration::from_secs(3);
/// How long what runs may go on when the daemon stops.
const DRAIN: Duration = Duration::from_secs(10);

impl World {
    // ---- clients ----

    pub(super) fn wake(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let is_over = self.now >= client.plan.until || self.closing;
        if is_over {
            return;
        }
        let (count, again) = client.submits();
        let minds = client.minds_refusals();
        for _ in 0..count {
            let request = self.clients[index].request();
            let submitted = self.submit(request);
            if self.fault.is_some() {
                return;
            }
            match submitted {
                Ok(id) => {
                    self.clients[index].taken(id);
                    self.decide_fate(id);
                }
                Err(retry_after) if minds => {
                    self.at(retry_after, Happening::Wake(index));
                    return;
                }
                Err(_) => {}
            }
        }
        if self.clients[index].waits_for.is_none() {
            self.at(again, Happening::Wake(index));
        }
    }

    /// A job has ended, in some way; with its first answer if it has one.
    pub(super) fn client_hears(&mut self, id: JobNumber, job: &Job, answer: &[u32]) {
        let index = job.request.client;
        let client = &mut self.clients[index];
        if client.ended(id, &job.request.prompt, answer) {
            let pause = client.think();
            self.at(pause, Happening::Wake(index));
        }
    }

    fn decide_fate(&mut self, id: JobNumber) {
        if !self.rng.chance(self.scenario.trouble.fates) {
            return;
        }
        // From the moment at which its lease is asked for to when it has run for long.
        let means = [Duration::from_millis(50), Duration::from_secs(1), Duration::from_secs(15)];
        let mean = means[self.rng.below(means.len())];
        let after = self.rng.pause(mean);
        let fate = match self.rng.below(8) {
            0..=2 => Fate::Cancel,
            3 | 4 => Fate::Leave,
            5 | 6 => {
                let released = after + self.rng.pause(Duration::from_secs(20));
                self.at(released, Happening::Fate(id, Fate::Hold(false)));
                Fate::Hold(true)
            }
            _ => Fate::SetClass(self.rng.below(3) as u8),
        };
        self.at(after, Happening::Fate(id, fate));
    }

    pub(super) fn fate(&mut self, id: JobNumber, fate: Fate) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.over) else { return };
        match fate {
            Fate::Cancel => {
                job.cancelled = true;
                self.input(Input::Cancel(vec![id]));
            }
            Fate::Leave => {
                let Some(owner) = job.request.owner else { return };
                let client = job.request.client;
                let of_it = |job: &&mut Job| job.request.owner == Some(owner);
                self.jobs.values_mut().filter(of_it).for_each(|job| job.cancelled = true);
                self.clients[client].connection.0 = self.next_connection();
                self.input(Input::OwnerGone(owner));
            }
            Fate::Hold(held) => {
                job.held = held && !self.closing;
                if !job.held {
                    job.waiting_since = job.waiting_since.max(self.now);
                }
                let held = job.held;
                if self.disk.contains(id) {
                    self.disk.hold(id, held);
                }
                self.input(Input::Hold { job: id, held });
            }
            Fate::SetClass(class) => {
                let class = Fate::class(class);
                job.class = class;
                if self.disk.contains(id) {
                    self.disk.set_class(id, class);
                }
                self.input(Input::SetClass { job: id, class });
            }
        }
    }

    // ---- the operator ----

    pub(super) fn plan_trouble(&mut self) {
        let trouble = self.scenario.trouble.clone();
        let kinds = [
            (trouble.drains, Happening::Pause(true)),
            (trouble.restarts, Happening::Restart),
            (trouble.kills, Happening::Kill),
        ];
        for (mean, happening) in kinds {
            self.plan_next(mean, happening);
        }
    }

    fn plan_next(&mut self, mean: Option<Duration>, happening: Happening) {
        if let Some(mean) = mean
            && !self.closing
        {
            let after = self.rng.pause(mean);
            self.at(after, happening);
        }
    }

    pub(super) fn pause(&mut self, paused: bool) {
        if paused {
            let length = self.rng.pause(Duration::from_secs(40));
            self.at(length, Happening::Pause(false));
            self.plan_next(self.scenario.trouble.drains, Happening::Pause(true));
        }
        self.paused = paused && !self.closing;
        self.input(Input::Pause(self.paused));
    }

    pub(super) fn drain(&mut self) {
        self.plan_next(self.scenario.trouble.restarts, Happening::Restart);
        if !self.closing && !self.draining {
            self.draining = true;
            self.input(Input::Drain { deadline: self.now + DRAIN });
        }
    }

    pub(super) fn kill(&mut self) {
        self.plan_next(self.scenario.trouble.kills, Happening::Kill);
        if !self.closing {
            self.start_again(true);
        }
    }

    /// The daemon ends and is there again. What it had in memory is gone: jobs of connections, the KV, samplers.
    pub(super) fn start_again(&mut self, killed: bool) {
        self.run += 1;
        self.totals.starts += 1;
        let records = std::mem::take(&mut self.disk).crash(&mut self.rng);
        self.count_store();
        self.core = Core::new(Sabotage::limits(self.scenario.mutant, &self.scenario.limits));
        self.store = Store::new(self.scenario.models.iter().map(|model| model.blocks));
        self.device = Device::new(self.scenario.costs, self.scenario.models.len());
        self.disk = Disk::default();
        (self.paused, self.draining) = (false, false);
        self.forget_checks();
        self.loaded.fill(false);
        let lost: Vec<JobNumber> =
            self.jobs.keys().filter(|id| !records.contains_key(*id)).copied().collect();
        for id in lost {
            let job = self.jobs.remove(&id).expect("listed");
            if !killed {
                self.found::<()>("endings", Err(format!("{id:?} was neither ended nor kept by a stop")));
            }
            self.totals.lost += 1;
            if self.clients[job.request.client].ended(id, &job.request.prompt, &[]) {
                self.at(RECONNECT, Happening::Wake(job.request.client));
            }
        }
        for model in 0..self.scenario.models.len() {
            let takes = self.rng.pause(LOADING);
            self.at(takes, Happening::Loaded(model));
        }
        // The core does not know of those that are still to come.
        self.jobs.values_mut().for_each(|job| job.stored = false);
        for (id, record) in records {
            self.restore(id, record, killed);
        }
    }

    /// A model can be used.
    pub(super) fn loaded(&mut self, at: usize) {
        self.loaded[at] = true;
        for job in self.jobs.values_mut().filter(|job| job.request.model == at) {
            job.waits_for_model = false;
        }
        let model = &self.scenario.models[at];
        let (total_blocks, devices) = (model.blocks.device, model.devices.clone());
        self.input(Input::ModelUp { model: Self::name(at), total_blocks, devices });
    }

    fn restore(&mut self, id: JobNumber, record: Record, killed: bool) {
        let Some(job) = self.jobs.get_mut(&id) else {
            self.found::<()>("endings", Err(format!("{id:?} is back after its end was told")));
            return;
        };
        let choices = record.progress();
        let drawn = |job: &Job| job.answers.iter().map(|answer| answer.tokens.len()).collect::<Vec<_>>();
        let before = drawn(job);
        let started = record.events.iter().find_map(|event| match event {
            Event::Started { cached_by_tier: at, .. } => {
                Some((job.arrived_at, ByTier { device: at.device, ram: at.ram, ssd: at.ssd }))
            }
            _ => None,
        });
        job.restore(&choices, started.is_some());
        job.waits_for_model = true;
        let kept = drawn(job);
        (job.class, job.held) = (record.class, record.held);
        let log = job.take_up(&record.events).map_err(|why| format!("{id:?}: {why}"));
        self.found("log", log);
        if !killed && before != kept {
            let lost = format!("{id:?} had drawn {before:?} tokens before a stop, {kept:?} are left");
            self.found::<()>("text", Err(lost));
        }
        if record.has_ended() {
            return self.ended(id);
        }
        self.totals.restored += 1;
        self.go_on(id, record, started, choices);
    }

    fn go_on(
        &mut self,
        id: JobNumber,
        record: Record,
        started: Option<(Duration, ByTier)>,
        choices: Vec<RestoredChoice>,
    ) {
        let job = &self.jobs[&id];
        let submission = job.submission(id, Self::name(job.request.model));
        let (held, is_new) = (record.held, record.events.is_empty());
        self.disk.restore(id, record);
        if is_new {
            self.disk.event(id, Event::Queued { position: 0 }, self.now);
        }
        self.input(Input::Restore(RestoredJob { job: submission, stored: true, held, started, choices }));
        if held {
            self.at(Duration::from_secs(30), Happening::Fate(id, Fate::Hold(false)));
        }
    }

    fn count_store(&mut self) {
        self.totals.found += std::mem::take(&mut self.store.found);
        self.totals.asked_for += std::mem::take(&mut self.store.asked_for);
        self.totals.partial_leases += std::mem::take(&mut self.store.partial);
    }

    // ---- the end ----

    /// Clients submit nothing more and let go of what they hold; what is there comes to its end.
    ///
    /// # Errors
    /// The first fault: work that remains, too.
    pub(super) fn finish(&mut self) -> Result<(), Fault> {
        self.closing = true;
        self.pause(false);
        let held: Vec<JobNumber> = self.jobs.iter().filter(|(_, job)| job.held).map(|(id, _)| *id).collect();
        for id in held {
            self.fate(id, Fate::Hold(false));
        }
        let end = self.now + hours(12.0);
        while !self.jobs.is_empty() && self.now < end {
            self.run_until(self.now + Duration::from_secs(5))?;
        }
        self.run_until(self.now + Duration::from_secs(5))?;
        self.count_store();
        let remaining = self.jobs.iter().next().map(|(id, job)| format!("{id:?} has not ended: {job:?}"));
        self.found("endings", remaining.map_or(Ok(()), Err));
        let unused = self.store.check_unused();
        self.found("leases", unused);
        let kept = self.device.keeps();
        let forgotten = if kept == 0 { Ok(()) } else { Err(format!("the device keeps {kept} samplers")) };
        self.found("device", forgotten);
        let is_idle = self.core.is_idle() && self.disk.is_quiet();
        let idle =
            if is_idle { Ok(()) } else { Err("the core is busy when everything has ended".to_owned()) };
        self.found("endings", idle);
        let pace = self.pace.check();
        self.found("pace", pace);
        self.fault.clone().map_or(Ok(()), Err)
    }
}
