//! The token log as the daemon writes it: for each job that has not ended, a sequence of steps, one for each append.
//!
//! A step holds tokens and events together and is there as a whole or not at all, so what is read back after a crash is a
//! state that the job was in. The last one may be there though its append was not acknowledged: it says what the job would
//! compute again, and nobody was told otherwise. Each step says how many tokens and events come before it; reading ends at
//! one that does not follow on the last, and what lies behind the end is deleted before anything is appended.

use super::NumberedEvents;
use super::record::{Step, TokenEntry, decode, encode};
use crate::limits::READ_STEPS;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use zllm_state::{LogEntry, TokenLog, TokenLogError};
use zllm_wire::Event;

/// The one kind of entry.
const STEP: u8 = 0;

/// The token log, and how long each job's part of it is.
pub(super) struct Logs {
    log: TokenLog,
    jobs: HashMap<u64, Extent>,
    /// Jobs behind whose last step a failed append may have left something.
    in_doubt: BTreeSet<u64>,
}

type Outcome<T> = Result<T, TokenLogError>;

/// What is stored of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Extent {
    steps: u64,
    tokens: u64,
    events: u64,
}

impl Extent {
    fn with(self, step: &Step) -> Self {
        Self { steps: self.steps + 1, tokens: step.tokens_after(), events: step.events_after() }
    }

    fn is_followed_by(self, step: &Step) -> bool {
        (self.tokens, self.events) == (step.tokens_before, step.events_before)
    }
}

/// What a job left in the log.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Left {
    pub(super) tokens: Vec<TokenEntry>,
    /// Its `Started` event, if it has begun.
    pub(super) started: Option<Event>,
    /// How many events are stored.
    pub(super) events: u64,
}

/// Tokens and events to append to a job.
#[derive(Debug)]
pub(super) struct NewStep {
    pub(super) job: u64,
    pub(super) tokens: Vec<TokenEntry>,
    /// With their offsets, which go on from those that are stored.
    pub(super) events: NumberedEvents,
}

impl Logs {
    /// Opens the log and reads what the jobs left; others ended while the daemon did, and are forgotten.
    pub(super) fn open(dir: &Path, jobs: &[u64]) -> Result<(Self, HashMap<u64, Left>), String> {
        let text = |error: TokenLogError| error.to_string();
        let (log, notes) = TokenLog::open(dir).map_err(text)?;
        tell(notes);
        let mut logs = Self { log, jobs: HashMap::new(), in_doubt: BTreeSet::new() };
        let there = logs.log.jobs().map_err(text)?;
        let (wanted, ended): (Vec<u64>, Vec<u64>) = there.into_iter().partition(|job| jobs.contains(job));
        logs.remove(&ended)?;
        let left = wanted.into_iter().map(|job| Ok((job, logs.take_up(job)?))).collect::<Outcome<_>>();
        Ok((logs, left.map_err(text)?))
    }

    /// Reads what a job left, and lets go of what does not follow on it.
    fn take_up(&mut self, job: u64) -> Outcome<Left> {
        let (mut extent, mut left) = (Extent::default(), Left::default());
        loop {
            let before = extent.steps;
            for bytes in self.log.read(job, STEP, before, READ_STEPS)? {
                // What cannot be read is computed again.
                let Some(step) = decode(&bytes).ok().filter(|step| extent.is_followed_by(step)) else {
                    break;
                };
                extent = extent.with(&step);
                left.tokens.extend(step.tokens);
                let mut started =
                    step.events.into_iter().filter(|event| matches!(event, Event::Started { .. }));
                left.started = left.started.or_else(|| started.next());
            }
            if extent.steps < before + READ_STEPS as u64 {
                break;
            }
        }
        self.log.cut(job, STEP, extent.steps)?;
        left.events = extent.events;
        self.jobs.insert(job, extent);
        Ok(left)
    }

    /// Appends, in one flush; several steps of a job become one. After an error nothing is appended.
    ///
    /// # Panics
    /// When events do not go on where those that are stored end.
    pub(super) fn append(&mut self, new: Vec<NewStep>) -> Result<(), String> {
        let mut steps: BTreeMap<u64, Step> = BTreeMap::new();
        for NewStep { job, tokens, events } in new {
            let extent = self.jobs.get(&job).copied().unwrap_or_default();
            let (tokens_before, events_before) = (extent.tokens, extent.events);
            let step = steps.entry(job).or_insert(Step { tokens_before, events_before, ..Step::default() });
            step.tokens.extend(tokens);
            for (offset, event) in events {
                assert_eq!(
                    offset,
                    step.events_after(),
                    "job {job:016x}: an event is appended after the last one"
                );
                step.events.push(event);
            }
        }
        let appended = self.put(&steps);
        tell(self.log.take_notes());
        if let Err(error) = appended {
            self.in_doubt.extend(steps.keys());
            return Err(error.to_string());
        }
        for (job, step) in steps {
            let extent = self.jobs.entry(job).or_default();
            *extent = extent.with(&step);
        }
        Ok(())
    }

    fn put(&mut self, steps: &BTreeMap<u64, Step>) -> Outcome<()> {
        let place = |job: u64| self.jobs.get(&job).map_or(0, |extent| extent.steps);
        for &job in &self.in_doubt {
            self.log.cut(job, STEP, place(job))?;
        }
        self.in_doubt.clear();
        let entry = |(&job, step)| LogEntry { job, kind: STEP, index: place(job), bytes: encode(step) };
        let entries: Vec<LogEntry> = steps.iter().map(entry).collect();
        self.log.append(&entries)
    }

    /// Whether a job left anything.
    pub(super) fn has(&self, job: u64) -> bool {
        self.jobs.contains_key(&job)
    }

    /// At most `max` events from number `from` on.
    ///
    /// # Errors
    /// The log's; events that are not there any more.
    pub(super) fn events(&mut self, job: u64, from: u64, max: usize) -> Result<Vec<Event>, String> {
        let extent = self.jobs.get(&job).copied().unwrap_or_default();
        let mut events = Vec::new();
        if from >= extent.events || max == 0 {
            return Ok(events);
        }
        // The last step that begins at `from` or before: the next one begins behind it, so it has this event.
        let (mut at, mut behind) = (0, extent.steps);
        while behind - at > 1 {
            let middle = at + (behind - at) / 2;
            let begins = self.steps(job, middle, 1)?[0].events_before;
            *(if begins <= from { &mut at } else { &mut behind }) = middle;
        }
        let mut wanted = from;
        while at < extent.steps && events.len() < max {
            for step in self.steps(job, at, READ_STEPS)? {
                let skipped = wanted.checked_sub(step.events_before).ok_or_else(|| lost(job))?;
                events.extend(step.events.into_iter().skip(skipped as usize));
                wanted = from + events.len() as u64;
                at += 1;
            }
        }
        events.truncate(max);
        Ok(events)
    }

    /// Steps of a job from number `at` on: one at least.
    fn steps(&mut self, job: u64, at: u64, max: usize) -> Result<Vec<Step>, String> {
        let read = self.log.read(job, STEP, at, max).map_err(|error| error.to_string())?;
        if read.is_empty() {
            return Err(lost(job));
        }
        read.iter().map(|bytes| decode(bytes)).collect()
    }

    /// Forgets jobs.
    pub(super) fn remove(&mut self, jobs: &[u64]) -> Result<(), String> {
        for job in jobs {
            self.jobs.remove(job);
            self.in_doubt.remove(job);
        }
        self.log.remove(jobs).map_err(|error| error.to_string())
    }

    /// Bytes on disk.
    #[cfg(test)]
    pub(super) fn disk_bytes(&self) -> u64 {
        self.log.disk_bytes()
    }
}

/// Logs what an operator should know.
fn tell(notes: Vec<String>) {
    for note in notes {
        tracing::warn!(note, "the token log was not as it should be");
    }
}

fn lost(job: u64) -> String {
    format!("events of job j-{job:016x} are not in its log any more: the log was damaged and began anew")
}
