//! What the scheduler and the device say to each other: one step of model work and its outcome. Plain data, so that a
//! simulated device can stand in for a real one.

use std::sync::Arc;
use zllm_engine::Pool;
use zllm_wire::{ChoiceEnd, TokenLogprob};

/// A model's name, as configured.
pub(crate) type ModelName = Arc<str>;

/// A job: of two the later one has the higher number, over restarts too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct JobNumber(pub(crate) u64);

/// One sequence on a device: an answer of a job, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SequenceId {
    pub(crate) job: JobNumber,
    pub(crate) choice: u32,
}

/// One batch for one model: the decode rows of all its running sequences and at most one prefill chunk.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StepPlan {
    pub(crate) model: ModelName,
    pub(crate) rows: Vec<PlanRow>,
}

/// Tokens of one sequence, in order, whose KV is computed in this step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PlanRow {
    pub(crate) sequence: SequenceId,
    pub(crate) tokens: Vec<u32>,
    /// Position of `tokens[0]` in the sequence.
    pub(crate) position: usize,
    /// The sequence's block table, for its whole length.
    pub(crate) blocks: Arc<[u32]>,
    /// Whether a token is sampled after the last of `tokens`.
    pub(crate) samples: bool,
    /// What is pooled of a text that becomes an embedding, before `tokens`.
    pub(crate) pool: Option<Pool>,
}

/// What a step gave, a row for each row of its plan, in the same order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StepOutcome {
    pub(crate) rows: Vec<RowOutcome>,
}

/// What one row gave.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RowOutcome {
    pub(crate) sequence: SequenceId,
    /// The next token, where one was asked for, or why the model gave none.
    pub(crate) accepted: Option<Result<Accepted, String>>,
    /// The row's pool, with its tokens.
    pub(crate) pool: Option<Pool>,
}

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Accepted {
    pub(crate) token: u32,
    /// Text that is safe to send; may be empty.
    pub(crate) text: String,
    /// Text that is held back because it may begin a stop string; it is sent if the generation is cut short here.
    pub(crate) held: String,
    /// Its log probability, when the request wants it.
    pub(crate) logprob: Option<TokenLogprob>,
    /// Set when the generation ends with this token.
    pub(crate) finish: Option<ChoiceEnd>,
    /// What resuming needs beside the tokens: the sampler's state after this one, mirostat's bound in bits.
    pub(crate) state: f32,
}

impl StepPlan {
    /// Tokens computed for prompts: rows of more than one token, or that do not sample yet.
    pub(crate) fn prefill_tokens(&self) -> usize {
        let prefill = |row: &&PlanRow| row.tokens.len() > 1 || !row.samples;
        self.rows.iter().filter(prefill).map(|row| row.tokens.len()).sum()
    }
}
