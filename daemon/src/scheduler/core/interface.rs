//! What goes into the scheduler's core and what comes out: plain data.

use crate::scheduler::plan::{JobNumber, ModelName, SequenceId, StepOutcome, StepPlan};
use std::sync::Arc;
use std::time::Duration;
use zllm_engine::{Pool, Pooling};
use zllm_state::{ByTier, LeaseId};
use zllm_wire::{ChoiceEnd, Class, Event, MomentKind, TokenLogprob, TokenTiers};

pub(crate) use crate::clock::Time;
pub(crate) use zllm_state::CacheOutcome;

/// A connection that jobs may belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// What waits, or may wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) jobs: usize,
    /// Prompt tokens.
    pub(crate) tokens: usize,
    /// Bytes of the requests.
    pub(crate) bytes: usize,
}

/// The scheduler's bounds.
#[derive(Debug, Clone)]
pub(crate) struct CoreLimits {
    /// Of all that waits.
    pub(crate) queue: Amount,
    /// Of what waits of each class, by [`Class`].
    pub(crate) classes: [Amount; 3],
    /// Of what waits of one tenant.
    pub(crate) tenant: Amount,
    /// Sequences that are computed side by side.
    pub(crate) running_jobs: usize,
    /// Prompt tokens of one step, when nothing else is to keep its pace.
    pub(crate) prefill_chunk_tokens: usize,
    /// While sequences decode, a step with prompt tokens in it takes at most so many times one without; `None`: no bound.
    pub(crate) pace: Option<f64>,
    /// A class that waits for so long without a start goes before the class above it; `None`: never.
    pub(crate) aging: Option<Duration>,
}

/// A job as it arrives: its prompt is tokenized and its model is loaded.
#[derive(Debug, Clone)]
pub(crate) struct NewJob {
    pub(crate) id: JobNumber,
    pub(crate) model: ModelName,
    /// Whose KV it may share, and with whom it shares the machine; empty for the common one.
    pub(crate) tenant: String,
    pub(crate) class: Class,
    pub(crate) prompt: Vec<u32>,
    /// Tokens to generate at most, in each answer; the context's end included. None, of a text that becomes an embedding.
    pub(crate) max_tokens: usize,
    /// Answers to generate.
    pub(crate) choices: u32,
    /// How the prompt becomes an embedding. Such a job ends with its prompt. It computes all of it and leaves nothing in the
    /// KV cache: rows that were not computed cannot be pooled.
    pub(crate) pooling: Option<Pooling>,
    /// Size of the request, for the queue's bound.
    pub(crate) bytes: usize,
    /// When the request came in, before its model was loaded and its prompt tokenized.
    pub(crate) arrived_at: Time,
    /// It fails if it has not started by then.
    pub(crate) start_by: Option<Time>,
    /// It fails if it has not ended by then.
    pub(crate) deadline: Option<Time>,
    /// The connection whose end cancels the job; `None` for a durable one, which waits for [`Input::Stored`].
    pub(crate) owner: Option<ConnectionId>,
}

/// A durable job of an earlier run of the daemon.
#[derive(Debug, Clone)]
pub(crate) struct RestoredJob {
    pub(crate) job: NewJob,
    /// It need not wait for [`Input::Stored`].
    pub(crate) stored: bool,
    pub(crate) held: bool,
    /// When it began first, and what its prompt was found in then.
    pub(crate) started: Option<(Time, ByTier)>,
    /// One for each answer.
    pub(crate) choices: Vec<RestoredChoice>,
}

/// Where an answer of a restored job was.
#[derive(Debug, Clone)]
pub(crate) enum RestoredChoice {
    Open(Progress),
    Ended { end: ChoiceEnd, generated: usize },
}

/// How far an answer is: what is left of it when its KV is given back, and what a restart brings.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Progress {
    pub(crate) generated: Vec<u32>,
    /// What its sampler knows beside its tokens, after the last of them.
    pub(crate) state: f32,
    /// Tokens since the last text event.
    pub(crate) unsent_tokens: u32,
    /// Their log probabilities, when the request wants them.
    pub(crate) unsent_logprobs: Vec<TokenLogprob>,
    /// Text of those tokens that waits for the end of what may be a stop string.
    pub(crate) held: String,
}

/// What happens to the scheduler.
#[derive(Debug)]
pub(crate) enum Input {
    /// A model can be used; its KV arena has so many blocks. It computes on these devices, and shares no step with another
    /// model on one of them.
    ModelUp {
        model: ModelName,
        total_blocks: u32,
        devices: Vec<u16>,
    },
    /// A model is gone. Nothing of it may run; jobs that wait go on waiting.
    ModelDown {
        model: ModelName,
    },
    /// Taken with [`Event::Queued`] or refused with [`Action::Refused`], at once.
    Submit(NewJob),
    /// Taken, whatever the bounds say: it was accepted before.
    Restore(RestoredJob),
    /// A durable job's record is on disk, so it may start.
    Stored(JobNumber),
    /// A durable job's record is not on disk: it never existed.
    Unstored(JobNumber),
    Cancel(Vec<JobNumber>),
    /// A job cannot go on.
    Fail {
        job: JobNumber,
        message: String,
    },
    /// A connection has ended.
    OwnerGone(ConnectionId),
    /// A held job waits, and is parked if it runs, until it is let go.
    Hold {
        job: JobNumber,
        held: bool,
    },
    SetClass {
        job: JobNumber,
        class: Class,
    },
    /// Whether nothing that waits starts.
    Pause(bool),
    /// The KV store's answer to [`Action::Lease`]; it may come late, after a read from disk.
    Leased {
        sequence: SequenceId,
        result: Result<Lease, NoLease>,
    },
    StepDone {
        model: ModelName,
        outcome: StepOutcome,
        took: Duration,
    },
    /// The daemon stops: accept nothing more and park what is durable. What has not ended by then is cancelled.
    Drain {
        deadline: Time,
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
        /// The prompt, and what was generated of a sequence that goes on; none of one that shares nothing.
        tokens: Arc<[u32]>,
        capacity_tokens: usize,
    },
    /// A job waits: what is kept of its prompt may come nearer meanwhile. Given once a job; nothing answers it.
    Prefetch { model: ModelName, tenant: String, prompt: Arc<[u32]> },
    /// What the KV store had of a job's prompt.
    Cached { job: JobNumber, report: CacheReport },
    /// A sequence that has generated before goes on: its sampler is to be made from its tokens.
    Resume { sequence: SequenceId, model: ModelName, prompt: Arc<[u32]>, generated: Vec<u32>, state: f32 },
    /// Something of the job runs now and did not before.
    Began { job: JobNumber },
    /// Nothing of the job runs any more; it goes on later.
    Parked { job: JobNumber },
    /// The next block of a lease is full, with these tokens.
    Commit { lease: LeaseId, tokens: Vec<u32> },
    /// Give a lease back. `tokens` are those whose KV is in its blocks and may be shared: the full blocks are committed, the
    /// rest is a tail.
    Release {
        sequence: SequenceId,
        lease: LeaseId,
        tokens: Vec<u32>,
        cached_tokens: usize,
        /// Tokens generated in this answer; the last one may not be among `tokens`.
        sampled: usize,
        /// The sequence goes on later.
        parked: bool,
    },
    /// Compute; answered by [`Input::StepDone`].
    Step(StepPlan),
    /// The device may drop what it keeps for a sequence.
    Forget { sequence: SequenceId, model: ModelName },
    /// Append to the job's log.
    Event { job: JobNumber, event: Event },
    /// A token was generated. The text that it let go of is in the event before this action.
    Token { job: JobNumber, token: Generated },
    /// All of the job's prompt is pooled.
    Pooled { job: JobNumber, pool: Pool },
    /// The job has come to a point of its way.
    Moment { job: JobNumber, what: MomentKind },
    /// Something was measured.
    Measure(Measure),
}

/// A generated token, as it is needed to go on from it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Generated {
    pub(crate) choice: u32,
    pub(crate) token: u32,
    pub(crate) state: f32,
    /// Whether a text event took it along.
    pub(crate) sent: bool,
    /// Its log probability, when no event took it along.
    pub(crate) logprob: Option<TokenLogprob>,
    pub(crate) held: String,
    /// Set when its answer ends with it.
    pub(crate) end: Option<ChoiceEnd>,
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
    /// A running sequence gave way.
    Parked,
}

/// Why a job is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(
        "the queue is full: {queued} {what} of {whose} wait, at most {limit} may, and this request has {added}"
    )]
    QueueFull {
        what: &'static str,
        whose: String,
        queued: usize,
        added: usize,
        limit: usize,
        retry_after: Duration,
    },
    #[error("the request has {added} {what}, of {whose} at most {limit} may wait: it can never be taken")]
    TooLarge { what: &'static str, whose: String, added: usize, limit: usize },
    #[error("the daemon is stopping and takes no new jobs")]
    Stopping,
    #[error(
        "the daemon was drained and starts no jobs until `zllmctl resume`; durable jobs are taken and wait"
    )]
    Paused,
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
    /// Jobs that have not started.
    pub(crate) queued_jobs: usize,
    /// Jobs of which something runs.
    pub(crate) running_jobs: usize,
    /// Jobs that have started and of which nothing runs.
    pub(crate) parked_jobs: usize,
    /// Jobs that wait until they are let go.
    pub(crate) held_jobs: usize,
    /// Tokens that running sequences may come to, which their leases cover.
    pub(crate) ticket_tokens: usize,
}
