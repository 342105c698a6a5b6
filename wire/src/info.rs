//! What the daemon tells about models, jobs, sessions and itself. Sizes are bytes, times are milliseconds.

use crate::id::{BatchId, IdempotencyKey, JobId, SessionId, Tenant};
use crate::kv::{KvStatus, SessionRef, Tier, TierBlocks, TierBytes, TokenTiers};
use crate::limits::MAX_MOMENTS;
use crate::message::{ChoiceEnd, FinishReason, Usage};
use crate::params::{GenerationParams, bounded};
use crate::queue::{Class, Moment};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A model that is configured or found in the models folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelInfo {
    /// The name that requests use.
    pub name: String,
    /// Whether it can answer now.
    pub state: ModelState,
    /// The family as the file names it, such as `llama`; empty when the file was not looked into yet.
    pub architecture: String,
    /// The file.
    pub path: String,
    /// The device it is loaded on.
    pub device: Option<String>,
    /// Bytes of its weights; the file's size while it is not loaded.
    pub weight_bytes: u64,
    /// Longest sequence; `None` when the file was not looked into yet.
    pub context_tokens: Option<u32>,
    /// Whether conversations have a chat template, the file's or the configuration's; `None` when the file was not
    /// looked into yet.
    pub has_template: Option<bool>,
}

/// A model's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelState {
    /// On disk; the first request loads it.
    Available,
    /// Being loaded.
    Loading,
    /// Answers requests.
    Loaded,
    /// Could not be loaded.
    Failed {
        /// Why.
        message: String,
    },
}

/// A job's state. The last three are terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Admitted, waits for its turn.
    Queued,
    /// Being prefilled or decoded.
    Running,
    /// Ended by itself.
    Done,
    /// Ended by an error.
    Failed,
    /// Ended by a client.
    Cancelled,
}

/// One job in a listing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobInfo {
    /// Its id.
    pub id: JobId,
    /// What the client called it.
    pub label: Option<String>,
    /// The model that answers.
    pub model: String,
    /// Whose it is.
    pub tenant: Option<Tenant>,
    /// The session it continues.
    pub session: Option<SessionId>,
    /// Its state.
    pub state: JobState,
    /// Its class.
    pub class: Class,
    /// Whether a client holds it.
    pub held: bool,
    /// The batch that it is a part of.
    pub batch: Option<BatchId>,
    /// Whether it goes on without its client, and survives the daemon.
    pub detached: bool,
    /// How many jobs are before it; 0 when it does not wait.
    pub queue_position: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of the prompt that were found in the KV cache.
    pub cached_tokens: u64,
    /// The same by the tier that they were on.
    pub cached_by_tier: TokenTiers,
    /// Tokens generated so far.
    pub generated_tokens: u64,
    /// KV that it holds.
    pub bytes: TierBytes,
    /// Since it was submitted.
    pub age_ms: u64,
    /// Since its last token, or change of state.
    pub idle_ms: u64,
}

/// One job in full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobDetail {
    /// As in the listing.
    pub info: JobInfo,
    /// What was asked of it.
    pub params: GenerationParams,
    /// Its answers, as many as were asked for.
    pub choices: Vec<ChoiceDetail>,
    /// Events in its log; attach with this offset to read only what comes.
    pub events: u64,
    /// Why it ended, when it is done or cancelled; as in the event `Finished`.
    pub finish: Option<FinishReason>,
    /// What it took, when it has ended.
    pub usage: Option<Usage>,
    /// Why it failed.
    pub error: Option<String>,
    /// How often it began to run.
    pub attempts: u32,
    /// It fails when it has not ended so long from now; `None`: it may take its time, or has ended.
    pub deadline_ms: Option<u64>,
    /// It fails when it has not started so long from now; `None`: it may wait, or has started.
    pub max_wait_ms: Option<u64>,
    /// What its client called its submission.
    pub key: Option<IdempotencyKey>,
    /// What happened to it, in order; at most [`MAX_MOMENTS`].
    #[serde(deserialize_with = "bounded::<_, _, MAX_MOMENTS>")]
    pub timeline: Vec<Moment>,
}

/// One answer of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChoiceDetail {
    /// The text generated so far.
    pub text: String,
    /// Why it ended, when the job is done or cancelled.
    pub end: Option<ChoiceEnd>,
}

/// A session's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// A job of it is queued or running.
    Active,
    /// Its KV is kept for the next job.
    Idle,
}

/// One session in a listing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionInfo {
    /// Its id.
    pub id: SessionId,
    /// Whose it is; `None`: of those who name no tenant.
    pub tenant: Option<Tenant>,
    /// The model whose KV it has.
    pub model: String,
    /// Its state.
    pub state: SessionState,
    /// Length of its timeline.
    pub tokens: u64,
    /// KV by tier.
    pub bytes: TierBytes,
    /// Since its last use.
    pub idle_ms: u64,
    /// Whether its KV stays until it is unpinned.
    pub pinned: bool,
    /// How long after its last use it is forgotten, unless it is pinned; `None`: as the configuration says.
    pub ttl_ms: Option<u64>,
    /// Whether its latest state and all its blocks are on the SSD, to be found after a restart.
    pub saved: bool,
    /// Requests that it had.
    pub turns: u64,
    /// Tokens that they found in the KV cache, together.
    pub hit_tokens: u64,
}

/// One session in full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionDetail {
    /// As in the listing.
    pub info: SessionInfo,
    /// Blocks of its timeline by tier.
    pub blocks: TierBlocks,
    /// Blocks of its timeline that other sessions have too.
    pub shared_blocks: u64,
    /// Those sessions; at most [`crate::limits::MAX_SHARED_WITH`].
    pub shared_with: Vec<SessionRef>,
    /// Blocks of its timeline that are not on the SSD.
    pub unsaved_blocks: u64,
    /// How often it has changed: its timeline, and what was said of it.
    pub generation: u64,
    /// The generation that is on the SSD.
    pub saved_generation: Option<u64>,
    /// Since its first request.
    pub created_ms_ago: u64,
    /// Requests of it that found something in the KV cache.
    pub hits: u64,
    /// Its jobs, oldest first; at most [`crate::limits::MAX_LIST_ROWS`].
    pub jobs: Vec<JobInfo>,
}

/// The daemon at a glance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// Since it started.
    pub uptime_ms: u64,
    /// Whether nothing that waits starts, because a client said so or because it is about to stop.
    pub draining: bool,
    /// Every model it knows.
    pub models: Vec<ModelInfo>,
    /// Every device it uses.
    pub devices: Vec<DeviceInfo>,
    /// KV blocks, one row a model and tier.
    pub blocks: Vec<BlockUsage>,
    /// The KV store.
    pub kv: KvStatus,
    /// Jobs waiting.
    pub queued_jobs: u32,
    /// Most jobs that may wait.
    pub queue_capacity: u32,
    /// Those of them that a client holds.
    pub held_jobs: u32,
    /// Those of them that ran and were parked.
    pub parked_jobs: u32,
    /// Jobs being prefilled or decoded.
    pub running_jobs: u32,
    /// Whether detached jobs are on the disk before they are acknowledged.
    pub jobs_durable: bool,
    /// Why they are not.
    pub jobs_fault: Option<String>,
    /// Sessions known.
    pub sessions: u32,
    /// Connections open.
    pub connections: u32,
    /// Jobs done since the start.
    pub jobs_done: u64,
    /// Jobs failed since the start.
    pub jobs_failed: u64,
    /// Jobs cancelled since the start.
    pub jobs_cancelled: u64,
    /// Requests refused since the start.
    pub jobs_refused: u64,
    /// Prompt tokens computed since the start.
    pub prompt_tokens: u64,
    /// Prompt tokens found in the KV cache since the start.
    pub cached_tokens: u64,
    /// Tokens generated since the start.
    pub generated_tokens: u64,
    /// How fast answers come now.
    pub speed: Speed,
}

/// How fast answers come, over the last minute. Rates are 0 where nothing was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Speed {
    /// Prompt tokens computed a second.
    pub prefill_tokens_per_s: f32,
    /// Tokens generated a second, all jobs together.
    pub decode_tokens_per_s: f32,
    /// Tokens generated by one step, in the mean: the answers that were computed together.
    pub batch_rows: f32,
    /// From a request to its first token.
    pub first_token: Percentiles,
    /// From one token of an answer to the next.
    pub inter_token: Percentiles,
}

/// How long something took: so many of a hundred took at most so long. All are 0 when `count` is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Percentiles {
    /// The median.
    pub p50_ms: f32,
    /// 90 of a hundred.
    pub p90_ms: f32,
    /// 99 of a hundred.
    pub p99_ms: f32,
    /// How many were measured.
    pub count: u64,
}

/// A device's memory, and how busy it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceInfo {
    /// Its name, such as `cpu`.
    pub name: String,
    /// What it is, such as the processor's and the instruction set's names.
    pub description: String,
    /// Memory it has.
    pub total_bytes: u64,
    /// Memory that zllm uses of it.
    pub used_bytes: u64,
    /// The share of the last ten seconds in which it computed, 0 to 1.
    pub busy: f32,
}

/// KV blocks of one model on one tier. `used + cached <= total`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlockUsage {
    /// The model.
    pub model: String,
    /// The tier.
    pub tier: Tier,
    /// Bytes of one block.
    pub block_bytes: u64,
    /// Blocks there are.
    pub total: u64,
    /// Blocks that running jobs hold.
    pub used: u64,
    /// Blocks that nobody holds and that a prompt may find again.
    pub cached: u64,
}
