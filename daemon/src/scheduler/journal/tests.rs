//! Random lives of jobs over a disk that fails now and then: what ends up there is what was said, in order and once.

use super::*;
use std::time::Duration;
use zllm_wire::{ChoiceEnd, FinishReason, Usage};

/// xorshift64*: small, seeded, the same everywhere.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

/// What the disk has of a job, and what readers have seen.
#[derive(Debug, Default)]
struct Kept {
    state: Option<JobState>,
    held: Option<bool>,
    tokens: Vec<u32>,
    events: Vec<Event>,
    shown: Vec<Event>,
    attempts: u32,
}

impl Kept {
    /// Takes a write in, as the disk would.
    fn take(&mut self, write: &Write) {
        let mut append = |events: &[(u64, Event)]| {
            for (offset, event) in events {
                assert_eq!(*offset, self.events.len() as u64, "events come in order, each once");
                self.events.push(event.clone());
            }
        };
        match write {
            Write::Append { tokens, events } => {
                append(events);
                self.tokens.extend(tokens.iter().map(|entry| entry.token));
            }
            Write::Change(change) => self.change(change),
            Write::Finish { change, events } => {
                append(events);
                self.change(change);
            }
        }
    }

    fn change(&mut self, change: &JobChange) {
        if let Some(next) = change.state {
            let state = self.state.expect("recorded");
            assert!(state.may_become(next), "{state:?} becomes {next:?}");
            self.state = Some(next);
        }
        self.held = change.held.or(self.held);
        self.attempts = change.attempts.unwrap_or(self.attempts);
    }
}

fn text(number: u64) -> Event {
    Event::Text { choice: 0, text: number.to_string(), tokens: 1, logprobs: vec![] }
}

fn finished(reason: FinishReason) -> Event {
    let choices = vec![ChoiceEnd { reason, stop: None }];
    Event::Finished { reason, choices, usage: Usage::default() }
}

fn generated(token: u32) -> Generated {
    let held = String::new();
    Generated { choice: 0, token, state: 0.0, sent: true, logprob: None, held, end: None }
}

/// One job's life, as the scheduler tells it.
struct Life {
    journal: Journal,
    kept: Kept,
    rng: Rng,
    now: Time,
    said: Vec<Event>,
    drawn: Vec<u32>,
    held: Option<bool>,
    runs: bool,
    ended: Option<JobState>,
    on_the_way: Option<Write>,
    /// The disk fails one in so many writes.
    fails: u64,
}

const JOB: JobNumber = JobNumber(7);

impl Life {
    fn new(seed: u64) -> Self {
        let mut journal = Journal::default();
        journal.begin(JOB, JobState::Queued, 0, 0);
        let kept = Kept { state: Some(JobState::Queued), ..Kept::default() };
        let (said, drawn) = (Vec::new(), Vec::new());
        let rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (now, on_the_way, fails) = (Duration::ZERO, None, 2 + seed % 5);
        Self { journal, kept, rng, now, said, drawn, held: None, runs: false, ended: None, on_the_way, fails }
    }

    fn happen(&mut self) {
        let number = self.said.len() as u64;
        match self.rng.below(10) {
            0..=4 if self.runs => {
                let token = self.drawn.len() as u32;
                self.drawn.push(token);
                self.journal.token(JOB, generated(token));
                self.say(text(number));
            }
            5 if self.runs => {
                self.runs = false;
                self.journal.parked(JOB);
            }
            5 | 6 if !self.runs => {
                self.runs = true;
                self.journal.began(JOB);
            }
            7 => {
                self.held = Some(number.is_multiple_of(2));
                let held = self.held;
                self.journal.settings(JOB, |change| change.held = held);
            }
            8 if self.rng.below(8) == 0 => {
                let done = self.runs;
                let reason = if done { FinishReason::Stop } else { FinishReason::Cancelled };
                let state = if done { JobState::Done } else { JobState::Cancelled };
                let event = finished(reason);
                self.said.push(event.clone());
                self.journal.end(JOB, event, state, self.now);
                self.ended = Some(state);
            }
            _ => {}
        }
    }

    fn say(&mut self, event: Event) {
        self.said.push(event.clone());
        self.journal.event(JOB, event);
    }

    /// The disk answers what is on its way, and gets what is next.
    fn write(&mut self, may_fail: bool) {
        self.now += Duration::from_millis(400);
        if let Some(write) = self.on_the_way.take() {
            let result = if may_fail && self.rng.below(self.fails) == 0 { Err(()) } else { Ok(()) };
            if result.is_ok() {
                self.kept.take(&write);
            }
            let shown = self.journal.written(JOB, write, result, self.now);
            let terminal = shown.iter().any(super::super::log::is_terminal);
            assert!(!terminal || self.kept.state == self.ended, "an end is shown when it is on disk");
            self.kept.shown.extend(shown);
        }
        let mut writes = self.journal.take_writes(self.now);
        assert!(writes.len() <= 1, "one write of a job at a time");
        self.on_the_way = writes.pop().map(|(_, write)| write);
        assert!(self.said.starts_with(&self.kept.shown), "readers see what was said, in order");
        assert!(self.said.starts_with(&self.kept.events), "and so does the disk");
        assert!(self.drawn.starts_with(&self.kept.tokens), "and the tokens");
    }
}

#[test]
fn whatever_the_disk_does_everything_comes_there_in_order_and_once() {
    let (mut ended, mut failed) = (0, 0);
    for seed in 1..=400 {
        let mut life = Life::new(seed);
        let mut turns = 0;
        while life.ended.is_none() && turns < 400 {
            life.happen();
            let before = life.kept.shown.len() > life.kept.events.len();
            life.write(true);
            failed += usize::from(!before && life.kept.shown.len() > life.kept.events.len());
            turns += 1;
        }
        for _ in 0..20 {
            life.write(false);
        }
        assert_eq!((&life.kept.events, &life.kept.shown), (&life.said, &life.said), "seed {seed}");
        match life.ended {
            Some(state) => {
                assert_eq!(life.kept.state, Some(state), "seed {seed}");
                assert!(!life.journal.contains(JOB), "seed {seed}");
                ended += 1;
            }
            None => assert_eq!((life.kept.tokens, life.kept.held), (life.drawn, life.held), "seed {seed}"),
        }
    }
    assert!(
        ended > 100 && failed > 100,
        "too quiet: {ended} ended, {failed} times events were shown unstored"
    );
}

#[test]
fn giving_way_is_no_failed_attempt() {
    let mut journal = Journal::default();
    journal.begin(JOB, JobState::Queued, 0, 0);
    for _ in 0..3 {
        journal.began(JOB);
        journal.parked(JOB);
    }
    journal.began(JOB);
    assert_eq!(journal.attempts(JOB), 1);
}

#[test]
fn a_record_that_is_being_written_keeps_everything_else_back() {
    let mut journal = Journal::default();
    journal.begin(JOB, JobState::Queued, 0, 0);
    journal.record(JOB);
    journal.event(JOB, Event::Queued { position: 0 });
    assert!(journal.take_writes(Duration::ZERO).is_empty() && !journal.is_quiet());
    journal.recorded(JOB);
    assert_eq!(journal.take_writes(Duration::ZERO).len(), 1);
}
