//! What of durable jobs is on its way to the disk: pure bookkeeping, which the scheduler actor carries out.
//!
//! Of each job one write is under way at a time; what comes meanwhile gathers and goes with the next one. So writes of a
//! job are in order, and a slow disk makes them larger instead of more.
//!
//! Invariants: readers are shown an event when it is in the log, so what a reader has seen is there after a crash. A terminal
//! event is shown when it is recorded. A write that fails is tried again, later; until then a job goes on, its events are
//! shown as they are (a job that is computed again gives the same ones), and only its end waits for the disk.

use super::core::{Generated, Time};
use super::plan::JobNumber;
use crate::job_disk::TokenEntry;
use crate::limits::{JOURNAL_RETRY, MAX_JOURNAL_WRITES};
use std::collections::{BTreeSet, HashMap};
use zllm_state::{JobChange, JobState};
use zllm_wire::Event;

/// All durable jobs that have not ended on disk.
#[derive(Debug, Default)]
pub(super) struct Journal {
    jobs: HashMap<JobNumber, Pending>,
    /// Those that may have something to write.
    due: BTreeSet<JobNumber>,
    /// Writes that are under way.
    writes: usize,
}

/// One job's.
#[derive(Debug)]
struct Pending {
    /// What the record says.
    on_disk: JobState,
    wanted: JobState,
    /// Times it has begun to run.
    attempts: u32,
    /// Class and hold as they are to be in the record, when they have changed.
    settings: Option<JobChange>,
    tokens: Vec<TokenEntry>,
    events: Vec<Event>,
    /// Offset of the first of `events`.
    offset: u64,
    /// Readers were shown so many of `events` although they are not in the log yet.
    shown: usize,
    ending: Option<(JobState, Time)>,
    busy: bool,
    retry_at: Option<Time>,
}

/// One write.
#[derive(Debug)]
pub(super) enum Write {
    Append {
        tokens: Vec<TokenEntry>,
        events: Vec<(u64, Event)>,
    },
    Change(JobChange),
    /// The job's end, with the last of its events, the terminal one included.
    Finish {
        change: JobChange,
        events: Vec<(u64, Event)>,
    },
}

impl Journal {
    /// A job's record is being written, or was there when the daemon started: with so many events.
    pub(super) fn begin(&mut self, job: JobNumber, on_disk: JobState, attempts: u32, events: u64) {
        let pending = Pending {
            on_disk,
            wanted: on_disk,
            attempts,
            settings: None,
            tokens: Vec::new(),
            events: Vec::new(),
            offset: events,
            shown: 0,
            ending: None,
            busy: false,
            retry_at: None,
        };
        let before = self.jobs.insert(job, pending);
        assert!(before.is_none(), "a job is journalled once");
    }

    /// The record itself is being written; nothing else is until [`Self::recorded`].
    pub(super) fn record(&mut self, job: JobNumber) {
        self.of(job).busy = true;
    }

    /// The record is on disk.
    pub(super) fn recorded(&mut self, job: JobNumber) {
        let pending = self.of(job);
        pending.busy = false;
    }

    /// The job never existed.
    pub(super) fn forget(&mut self, job: JobNumber) {
        self.jobs.remove(&job);
    }

    pub(super) fn contains(&self, job: JobNumber) -> bool {
        self.jobs.contains_key(&job)
    }

    /// Whether everything is on disk, or cannot be written now. A daemon that stops does not wait for a disk that fails: what
    /// is not written is computed again.
    pub(super) fn is_quiet(&self) -> bool {
        self.jobs.values().all(|pending| !pending.busy && (!pending.has_work() || pending.retry_at.is_some()))
    }

    pub(super) fn attempts(&self, job: JobNumber) -> u32 {
        self.jobs.get(&job).map_or(0, |pending| pending.attempts)
    }

    pub(super) fn began(&mut self, job: JobNumber) {
        let pending = self.of(job);
        pending.attempts += 1;
        pending.wanted = JobState::Running;
    }

    /// The daemon was started again; it does not run any more, and may have been what ended the daemon.
    pub(super) fn interrupted(&mut self, job: JobNumber) {
        self.of(job).wanted = JobState::Queued;
    }

    /// It gave way, which is no failed attempt.
    pub(super) fn parked(&mut self, job: JobNumber) {
        let pending = self.of(job);
        pending.attempts = pending.attempts.saturating_sub(1);
        pending.wanted = JobState::Queued;
    }

    pub(super) fn token(&mut self, job: JobNumber, token: Generated) {
        let Generated { choice, token, state, sent, logprob, held, end } = token;
        self.of(job).tokens.push(TokenEntry { choice, token, state, held, sent, logprob, end });
    }

    pub(super) fn event(&mut self, job: JobNumber, event: Event) {
        self.of(job).events.push(event);
    }

    /// The terminal event.
    pub(super) fn end(&mut self, job: JobNumber, event: Event, state: JobState, at: Time) {
        let pending = self.of(job);
        pending.events.push(event);
        pending.ending = Some((state, at));
        if state == JobState::Done {
            // Only what runs can be done. One whose answers had all ended before a restart is not run again for that.
            pending.wanted = JobState::Running;
        }
    }

    /// Class and hold are others now.
    pub(super) fn settings(&mut self, job: JobNumber, change: impl FnOnce(&mut JobChange)) {
        change(self.of(job).settings.get_or_insert_default());
    }

    /// How many events of the job's log are on disk.
    pub(super) fn stored_events(&self, job: JobNumber) -> u64 {
        // All of one whose end is.
        self.jobs.get(&job).map_or(u64::MAX, |pending| pending.offset)
    }

    /// The next writes, at most one of each job, which are then under way.
    pub(super) fn take_writes(&mut self, now: Time) -> Vec<(JobNumber, Write)> {
        let mut writes = Vec::new();
        for job in std::mem::take(&mut self.due) {
            let Some(pending) = self.jobs.get_mut(&job) else { continue };
            if pending.busy || !pending.has_work() {
                // What is busy is due when it has ended.
                continue;
            }
            let waits = pending.retry_at.is_some_and(|at| now < at);
            if waits || self.writes >= MAX_JOURNAL_WRITES {
                self.due.insert(job);
                continue;
            }
            pending.busy = true;
            self.writes += 1;
            writes.push((job, pending.write(job, now)));
        }
        writes
    }

    /// A write has ended; the events that are to be shown to readers now.
    pub(super) fn written(
        &mut self,
        job: JobNumber,
        write: Write,
        result: Result<(), ()>,
        now: Time,
    ) -> Vec<Event> {
        self.writes -= 1;
        self.due.insert(job);
        let Some(pending) = self.jobs.get_mut(&job) else { return Vec::new() };
        pending.busy = false;
        pending.retry_at = result.is_err().then(|| now + JOURNAL_RETRY);
        let Ok(()) = result else { return pending.undo(write) };
        match write {
            Write::Append { events, .. } => pending.unshown(events),
            Write::Change(change) => {
                pending.on_disk = change.state.unwrap_or(pending.on_disk);
                Vec::new()
            }
            Write::Finish { events, .. } => {
                let events = pending.unshown(events);
                self.jobs.remove(&job);
                events
            }
        }
    }

    /// A job of which something changes.
    fn of(&mut self, job: JobNumber) -> &mut Pending {
        self.due.insert(job);
        self.jobs.get_mut(&job).expect("a durable job is journalled until its end is on disk")
    }
}

impl Pending {
    fn has_work(&self) -> bool {
        self.is_changed() || !self.tokens.is_empty() || !self.events.is_empty()
    }

    fn is_changed(&self) -> bool {
        self.wanted != self.on_disk || self.settings.is_some()
    }

    fn write(&mut self, job: JobNumber, now: Time) -> Write {
        let milliseconds = |time: Time| time.as_millis() as u64;
        let (number, attempts) = (job.0, Some(self.attempts));
        if self.is_changed() {
            let state = Some(self.wanted).filter(|state| *state != self.on_disk);
            let settings = self.settings.take().unwrap_or_default();
            let at_ms = milliseconds(now);
            return Write::Change(JobChange { number, state, attempts, at_ms, ..settings });
        }
        match self.ending {
            None => Write::Append { tokens: std::mem::take(&mut self.tokens), events: self.take_events() },
            Some((state, at)) => {
                let (state, at_ms) = (Some(state), milliseconds(at));
                let change = JobChange { number, state, attempts, at_ms, ..JobChange::default() };
                Write::Finish { change, events: self.take_events() }
            }
        }
    }

    fn take_events(&mut self) -> Vec<(u64, Event)> {
        let events: Vec<_> = (self.offset..).zip(std::mem::take(&mut self.events)).collect();
        self.offset += events.len() as u64;
        events
    }

    /// Those of `events` that no reader was shown.
    fn unshown(&mut self, events: Vec<(u64, Event)>) -> Vec<Event> {
        let shown = std::mem::take(&mut self.shown).min(events.len());
        events.into_iter().skip(shown).map(|(_, event)| event).collect()
    }

    /// Takes a write back that failed. All events but a terminal one are shown meanwhile.
    fn undo(&mut self, write: Write) -> Vec<Event> {
        let (tokens, events) = match write {
            Write::Append { tokens, events } => (tokens, events),
            Write::Finish { events, .. } => (Vec::new(), events),
            Write::Change(JobChange { class, held, summary, .. }) => {
                if class.is_some() || held.is_some() || summary.is_some() {
                    let newer = self.settings.get_or_insert_default();
                    newer.class = newer.class.or(class);
                    newer.held = newer.held.or(held);
                    newer.summary = newer.summary.take().or(summary);
                }
                (Vec::new(), Vec::new())
            }
        };
        self.offset -= events.len() as u64;
        self.tokens.splice(0..0, tokens);
        self.events.splice(0..0, events.into_iter().map(|(_, event)| event));
        let end = self.events.iter().position(super::log::is_terminal).unwrap_or(self.events.len());
        let show = self.events[self.shown.min(end)..end].to_vec();
        self.shown = end;
        show
    }
}

#[cfg(test)]
mod tests;
