//! What happens in a history, and what it comes to.

use crate::scheduler::plan::JobNumber;
use std::time::Duration;
use zllm_wire::Class;

/// What happens at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Happening {
    Tick,
    /// A client does what it does next.
    Wake(usize),
    /// What became of a job's client.
    Fate(JobNumber, Fate),
    /// The store decides what a model asked, and the answer arrives.
    Decide(usize),
    Answer(usize),
    StepDone(usize, Duration),
    /// A model is loaded.
    Loaded(usize),
    Stored(JobNumber),
    Written(u64),
    Pause(bool),
    Restart,
    Kill,
}

/// What a client does to a job after a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    Cancel,
    /// Its client's connection ends.
    Leave,
    Hold(bool),
    SetClass(u8),
}

/// What a history came to.
#[derive(Debug, Default, Clone)]
pub(super) struct Totals {
    pub(super) submitted: usize,
    pub(super) finished: usize,
    pub(super) cancelled: usize,
    pub(super) failed: usize,
    pub(super) refused: usize,
    pub(super) unstored: usize,
    /// Went with a process that was killed.
    pub(super) lost: usize,
    pub(super) restored: usize,
    pub(super) parked: usize,
    pub(super) several_answers: usize,
    pub(super) pooled: usize,
    pub(super) starts: u32,
    pub(super) steps: u64,
    pub(super) inputs: u64,
    pub(super) tokens: u64,
    pub(super) partial_leases: usize,
    pub(super) prefetches: usize,
    /// Prompt tokens found in the cache, and asked for.
    pub(super) found: u64,
    pub(super) asked_for: u64,
}

impl Totals {
    pub(super) fn add(&mut self, other: &Self) {
        self.submitted += other.submitted;
        self.finished += other.finished;
        self.cancelled += other.cancelled;
        self.failed += other.failed;
        self.refused += other.refused;
        self.unstored += other.unstored;
        self.lost += other.lost;
        self.restored += other.restored;
        self.parked += other.parked;
        self.several_answers += other.several_answers;
        self.pooled += other.pooled;
        self.starts += other.starts;
        self.steps += other.steps;
        self.tokens += other.tokens;
        self.partial_leases += other.partial_leases;
        self.prefetches += other.prefetches;
    }
}

impl Happening {
    /// Whether it happens although the daemon was started again meanwhile.
    pub(super) fn outlives_the_daemon(&self) -> bool {
        match self {
            Self::Tick | Self::Wake(_) | Self::Fate(..) | Self::Restart | Self::Kill | Self::Pause(_) => true,
            Self::Loaded(_)
            | Self::Decide(_)
            | Self::Answer(_)
            | Self::StepDone(..)
            | Self::Stored(_)
            | Self::Written(_) => false,
        }
    }
}

impl Fate {
    pub(super) fn class(of: u8) -> Class {
        [Class::Interactive, Class::Normal, Class::Batch][usize::from(of)]
    }
}
