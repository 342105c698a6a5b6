//! The disk of durable jobs behind the daemon's own journal: writes end late, fail now and then, and a kill leaves of those
//! under way what it likes.

use super::super::{Generated, RestoredChoice, Time};
use super::rng::Rng;
use crate::job_disk::TokenEntry;
use crate::scheduler::durable::{restored_choices, stored_class, wire_class};
use crate::scheduler::journal::{Journal, Write};
use crate::scheduler::log::is_terminal;
use crate::scheduler::plan::JobNumber;
use std::collections::BTreeMap;
use zllm_state::{JobChange, JobState};
use zllm_wire::{Class, Event, FinishReason};

/// What is on disk of a job.
#[derive(Debug)]
pub(super) struct Record {
    state: JobState,
    attempts: u32,
    pub(super) class: Class,
    pub(super) held: bool,
    choices: u32,
    tokens: Vec<TokenEntry>,
    pub(super) events: Vec<Event>,
}

impl Record {
    /// Where each answer was.
    pub(super) fn progress(&self) -> Vec<RestoredChoice> {
        restored_choices(&self.tokens, self.choices)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.is_terminal()
    }

    fn apply(&mut self, write: &Write) {
        match write {
            Write::Append { tokens, events } => {
                self.tokens.extend(tokens.iter().cloned());
                self.append(events);
            }
            Write::Change(change) => self.change(change),
            Write::Finish { change, events } => {
                self.append(events);
                self.change(change);
            }
        }
    }

    fn append(&mut self, events: &[(u64, Event)]) {
        for (offset, event) in events {
            assert_eq!(*offset, self.events.len() as u64, "events are stored in their order");
            self.events.push(event.clone());
        }
    }

    fn change(&mut self, change: &JobChange) {
        if let Some(next) = change.state {
            assert!(self.state.may_become(next), "{:?} may not become {next:?}", self.state);
            self.state = next;
        }
        self.class = change.class.map_or(self.class, wire_class);
        self.held = change.held.unwrap_or(self.held);
        self.attempts = change.attempts.unwrap_or(self.attempts);
    }
}

#[derive(Default)]
pub(super) struct Disk {
    journal: Journal,
    /// Of jobs that are on disk, and whose end was not told.
    records: BTreeMap<JobNumber, Record>,
    /// New jobs on their way.
    arriving: BTreeMap<JobNumber, Record>,
    under_way: BTreeMap<u64, (JobNumber, Write)>,
    writes: u64,
}

impl Disk {
    pub(super) fn submit(&mut self, job: JobNumber, class: Class, choices: u32) {
        self.journal.begin(job, JobState::Queued, 0, 0);
        self.journal.record(job);
        let (state, attempts, held) = (JobState::Queued, 0, false);
        let (tokens, events) = (Vec::new(), Vec::new());
        self.arriving.insert(job, Record { state, attempts, class, held, choices, tokens, events });
    }

    /// The job was refused.
    pub(super) fn forget(&mut self, job: JobNumber) {
        self.journal.forget(job);
        self.arriving.remove(&job);
    }

    /// The record of a new job is on disk.
    pub(super) fn stored(&mut self, job: JobNumber) {
        let record = self.arriving.remove(&job).expect("it was on its way");
        self.records.insert(job, record);
        self.journal.recorded(job);
    }

    pub(super) fn contains(&self, job: JobNumber) -> bool {
        self.journal.contains(job)
    }

    pub(super) fn token(&mut self, job: JobNumber, token: Generated) {
        self.journal.token(job, token);
    }

    pub(super) fn event(&mut self, job: JobNumber, event: Event, now: Time) {
        let state = match &event {
            event if !is_terminal(event) => return self.journal.event(job, event.clone()),
            Event::Finished { reason: FinishReason::Cancelled, .. } => JobState::Cancelled,
            Event::Finished { .. } => JobState::Done,
            _ => JobState::Failed,
        };
        self.journal.end(job, event, state, now);
    }

    pub(super) fn runs(&mut self, job: JobNumber, runs: bool) {
        if runs { self.journal.began(job) } else { self.journal.parked(job) }
    }

    pub(super) fn set_class(&mut self, job: JobNumber, class: Class) {
        self.journal.settings(job, |change| change.class = Some(stored_class(class)));
    }

    pub(super) fn hold(&mut self, job: JobNumber, held: bool) {
        self.journal.settings(job, |change| change.held = Some(held));
    }

    /// Begins what is due; the names of the writes, to be ended by [`Self::written`].
    pub(super) fn begin_writes(&mut self, now: Time) -> Vec<u64> {
        let mut names = Vec::new();
        for write in self.journal.take_writes(now) {
            self.writes += 1;
            self.under_way.insert(self.writes, write);
            names.push(self.writes);
        }
        names
    }

    /// A write ends; the events that are to be shown now.
    pub(super) fn written(&mut self, name: u64, fails: bool, now: Time) -> (JobNumber, Vec<Event>) {
        let (job, write) = self.under_way.remove(&name).expect("a write ends once");
        if !fails {
            self.records.get_mut(&job).expect("its record was stored first").apply(&write);
        }
        let result = if fails { Err(()) } else { Ok(()) };
        let events = self.journal.written(job, write, result, now);
        if events.last().is_some_and(is_terminal) {
            self.records.remove(&job);
        }
        (job, events)
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.journal.is_quiet()
    }

    /// The process ends: what is under way is on disk, or is not.
    pub(super) fn crash(self, rng: &mut Rng) -> BTreeMap<JobNumber, Record> {
        let Self { mut records, arriving, under_way, .. } = self;
        records.extend(arriving.into_iter().filter(|_| rng.chance(500)));
        for (job, write) in under_way.into_values() {
            if rng.chance(500) {
                records.get_mut(&job).expect("its record was stored first").apply(&write);
            }
        }
        records
    }

    /// Takes up a job of an earlier run.
    pub(super) fn restore(&mut self, job: JobNumber, record: Record) {
        self.journal.begin(job, record.state, record.attempts, record.events.len() as u64);
        if record.state == JobState::Running {
            self.journal.interrupted(job);
        }
        self.records.insert(job, record);
    }
}
