//! What goes into the scheduler's core and what comes out: plain data.

use crate::scheduler::plan::{JobNumber, ModelName, SequenceId, StepOutcome, StepPlan};
use std::sync::Arc;
use std::time::Duration;
use zllm_state::{ByTier, LeaseId};
use zllm_wire::{Event, TokenTiers};

pub(crate) use zllm_state::CacheOutcome;

/// Time since the daemon's start.
pub(crate) type Uptime = Duration;

/// A connection that jobs may belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// The scheduler's bounds.
#[derive(Debug, Clone)]
pub(crate) struct CoreLimits {
    pub(crate) queued_jobs: usize,
    pub(crate) queued_prompt_tokens: usize,
    pub(crate) queued_bytes: usize,
    pub(crate) running_jobs: usize,
    pub(crate) prefill_chunk_tokens: usize,
}

/// A job as it arrives: its prompt is tokenized and its model is loaded.
#[derive(Debug, Clone)]
pub(crate) struct NewJob {
    pub(crate) id: JobNumber,
    pub(crate) model: ModelName,
    /// Whose KV it may share; empty for the common one.
    pub(crate) tenant: String,
    pub(crate) prompt: Vec<u32>,
    /// Tokens to generate at most, in each answer; the context's end included.
    pub(crate) max_tokens: usize,
    /// Answers to generate.
    pub(crate) choices: u32,
    /// Size of the request, for the queue's bound.
    pub(crate) bytes: usize,
    /// When the request came in, before its model was loaded and its prompt tokenized.
    pub(crate) arrived_at: Uptime,
    /// The connection whose end cancels the job; `None` for a detached one.
    pub(crate) owner: Option<ConnectionId>,
}

/// What happens to the scheduler.
#[derive(Debug)]
pub(crate) enum Input {
    /// A model can be used; its KV arena has so many blocks.
    ModelUp {
        model: ModelName,
        total_blocks: u32,
    },
    /// A model is gone. It must have no jobs.
    ModelDown {
        model: ModelName,
    },
    /// Taken with [`Event::Queued`] or refused with [`Action::Refused`], at once.
    Submit(NewJob),
    Cancel(JobNumber),
    /// A connection has ended.
    OwnerGone(ConnectionId),
    /// The KV store's answer to [`Action::Lease`]; it may come late, after a read from disk.
    Leased {
        sequence: SequenceId,
        result: Result<Lease, NoLease>,
    },
    StepDone(StepOutcome),
    /// Accept nothing more; what has not ended by then is cancelled.
    Drain {
        deadline: Uptime,
    },
    /// Time has passed; comes now and then.
    Tick,
}

/// KV blocks for a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) id: LeaseId,
    pub(crate) blocks: Arc<[u32]>,
    pub(crate) cache: CacheReport,
}

impl Lease {
    /// Leading tokens of the prompt whose KV is in the blocks already; they may end within a block.
    pub(crate) fn cached_tokens(&self) -> usize {
        self.cache.cached.total() as usize
    }
}

/// What the KV store had of a prompt, and why not more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CacheReport {
    /// Tokens by the tier that they came from.
    pub(crate) cached: ByTier,
    pub(crate) outcome: CacheOutcome,
}

/// Tokens by tier as clients are told.
pub(crate) fn token_tiers(ByTier { device, ram, ssd }: ByTier) -> TokenTiers {
    TokenTiers { device, ram, ssd }
}

/// Why the KV store gave no lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoLease {
    /// Wait for a release, or for a tick.
    NotNow,
    /// Never, with the reason.
    Never(String),
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Action {
    /// The job is not taken; it never existed.
    Refused { job: JobNumber, refusal: Refusal },
    /// Ask the KV store; answered by [`Input::Leased`].
    Lease {
        sequence: SequenceId,
        model: ModelName,
        tenant: String,
        prompt: Arc<[u32]>,
        capacity_tokens: usize,
    },
    /// A job waits: what is kept of its prompt may come nearer meanwhile. Given once a job; nothing answers it.
    Prefetch { model: ModelName, tenant: String, prompt: Arc<[u32]> },
    /// What the KV store had of a job's prompt.
    Cached { job: JobNumber, report: CacheReport },
    /// The next block of a lease is full, with these tokens.
    Commit { lease: LeaseId, tokens: Vec<u32> },
    /// Give a lease back. `tokens` are those whose KV is in its blocks: the full blocks are committed, the rest is a tail.
    Release {
        sequence: SequenceId,
        lease: LeaseId,
        tokens: Vec<u32>,
        cached_tokens: usize,
        /// Tokens generated in this answer; the last one may not be among `tokens`.
        sampled: usize,
    },
    /// Compute; answered by [`Input::StepDone`].
    Step(StepPlan),
    /// The device may drop what it keeps for a sequence.
    Forget { sequence: SequenceId, model: ModelName },
    /// Append to the job's log.
    Event { job: JobNumber, event: Event },
    /// A token was generated.
    Token { job: JobNumber },
    /// Something was measured.
    Measure(Measure),
}

/// What is measured on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    QueueWait(Duration),
    FirstToken(Duration),
    InterToken(Duration),
    /// Prompt tokens whose KV was computed, of one chunk.
    Prefilled(usize),
    /// Prompt tokens found in the KV cache, of one sequence.
    FromCache(ByTier),
    /// One token.
    Generated,
}

/// Why a job is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("the queue is full: {queued} {what} wait, {limit} may")]
    QueueFull { what: &'static str, queued: usize, limit: usize, retry_after: Duration },
    #[error("the daemon is stopping and takes no new jobs")]
    Draining,
    #[error("model {model:?} was unloaded meanwhile; submit the job again to load it")]
    NoModel { model: ModelName },
    #[error(
        "{prompt_tokens} prompt tokens and {max_tokens} to generate need {needed} KV blocks, model {model:?} has \
         {total} in all; shorten the prompt, lower max_tokens or raise the model's kv_budget"
    )]
    NeverFits { model: ModelName, prompt_tokens: usize, max_tokens: usize, needed: usize, total: u32 },
}

/// How busy the scheduler is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) queued_jobs: usize,
    pub(crate) running_jobs: usize,
}
