//! What waits and what runs: priority classes, the queue as it is told, and the moments of a job's life.
//!
//! Times are milliseconds. Tokens and bytes count what a job needs at most: its prompt and all that it may generate.

use crate::id::{BatchId, JobId, SessionId, Tenant};
use crate::info::JobState;
use crate::kv::SessionRef;
use crate::limits::{MAX_BATCH_ROWS, MAX_LIST_ROWS};
use crate::params::bounded;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How urgent a job is. Those of an earlier class go before those of a later one, until these have waited for so long
/// that they count as the next more urgent class.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Somebody waits for it.
    Interactive,
    /// Neither.
    #[default]
    Normal,
    /// Whenever there is room; may be parked for the others while it runs.
    Batch,
}

/// What [`crate::Op::Cancel`] is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CancelTarget {
    /// One job.
    Job(JobId),
    /// All jobs of a session.
    Session(SessionRef),
    /// All jobs of a batch.
    Batch {
        /// Whose it is.
        tenant: Option<Tenant>,
        /// The batch.
        batch: BatchId,
    },
}

/// Jobs, and what they need together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueLoad {
    /// How many.
    pub jobs: u64,
    /// Tokens of their prompts, and those that they may generate.
    pub tokens: u64,
    /// Memory that they take while they wait.
    pub bytes: u64,
}

/// Who waits, who runs, and how full the queue is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueReport {
    /// Whether nothing that waits starts, because a client said so or because the daemon is about to stop.
    pub draining: bool,
    /// Jobs that wait, the next one first; at most [`MAX_LIST_ROWS`].
    #[serde(deserialize_with = "bounded::<_, _, MAX_LIST_ROWS>")]
    pub waiting: Vec<WaitingJob>,
    /// Jobs that run, the one that began first first; at most [`MAX_LIST_ROWS`].
    #[serde(deserialize_with = "bounded::<_, _, MAX_LIST_ROWS>")]
    pub running: Vec<RunningJob>,
    /// What waits of each class, beside what may; in the order of [`Class`].
    pub classes: Vec<ClassLoad>,
    /// What waits of each tenant that has jobs, beside what may; at most [`MAX_LIST_ROWS`].
    #[serde(deserialize_with = "bounded::<_, _, MAX_LIST_ROWS>")]
    pub tenants: Vec<TenantLoad>,
    /// Jobs that may run at once.
    pub running_limit: u32,
}

/// A job that waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WaitingJob {
    /// The job.
    pub job: JobId,
    /// What the client called it.
    pub label: Option<String>,
    /// Whose it is.
    pub tenant: Option<Tenant>,
    /// The session it continues.
    pub session: Option<SessionId>,
    /// The model that is to answer.
    pub model: String,
    /// Its class.
    pub class: Class,
    /// The class that it counts as, 0 being the most urgent: its own, less one for each time span that it has waited.
    pub level: u8,
    /// How many jobs are before it.
    pub position: u32,
    /// Since it was submitted.
    pub waited_ms: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// Most tokens that it may generate, all its answers together.
    pub max_tokens: u64,
    /// Those that it has: it ran before.
    pub generated_tokens: u64,
    /// What it waits for.
    pub why: WaitReason,
    /// When it is expected to start, from now; `None`: nobody can tell.
    pub starts_in_ms: Option<u64>,
}

/// What a job waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// Others are before it.
    Turn,
    /// As many jobs run as may.
    Places,
    /// KV memory, all that can be evicted counted in.
    Memory {
        /// Blocks that it needs.
        blocks: u64,
        /// Blocks that it could have.
        free: u64,
    },
    /// Its KV, which is on its way from host memory or the SSD.
    Reading,
    /// Its model.
    Model {
        /// What that is doing.
        state: String,
    },
    /// A client that holds it.
    Held,
    /// The end of a drain.
    Draining,
    /// Its record, which is on its way to the disk.
    Storing,
    /// More urgent jobs: it ran and was parked for them. Its KV is kept.
    Parked,
}

/// A job that runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunningJob {
    /// The job.
    pub job: JobId,
    /// What the client called it.
    pub label: Option<String>,
    /// Whose it is.
    pub tenant: Option<Tenant>,
    /// The model that answers.
    pub model: String,
    /// Its class.
    pub class: Class,
    /// What it is at.
    pub phase: Phase,
    /// Tokens generated so far, all its answers together.
    pub generated_tokens: u64,
    /// The most that they may be.
    pub max_tokens: u64,
    /// Tokens that there is room for, reserved for it.
    pub ticket_tokens: u64,
    /// KV that is reserved for it.
    pub ticket_bytes: u64,
    /// Since it began to run, the last time.
    pub since_ms: u64,
}

/// What a running job is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Its prompt is being computed.
    Prefill {
        /// Tokens that are computed or were found.
        done: u64,
        /// Tokens of the prompt.
        total: u64,
    },
    /// It generates.
    Decode,
}

/// What waits of one class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClassLoad {
    /// The class.
    pub class: Class,
    /// What waits.
    pub queued: QueueLoad,
    /// The most that may.
    pub limit: QueueLoad,
}

/// What one tenant has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TenantLoad {
    /// Whose; `None`: of those who name no tenant.
    pub tenant: Option<Tenant>,
    /// What waits.
    pub queued: QueueLoad,
    /// The most that may.
    pub limit: QueueLoad,
    /// Its jobs that run.
    pub running_jobs: u32,
    /// Tokens computed and generated for it, as the fairness between tenants counts them.
    pub served_tokens: u64,
}

/// One job of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BatchJob {
    /// The job.
    pub job: JobId,
    /// What the client called it.
    pub label: Option<String>,
    /// Its state.
    pub state: JobState,
}

/// Jobs of a batch, those that were submitted first first; at most [`MAX_BATCH_ROWS`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BatchPage {
    /// The jobs.
    #[serde(deserialize_with = "bounded::<_, _, MAX_BATCH_ROWS>")]
    pub jobs: Vec<BatchJob>,
    /// Whether there are further ones.
    pub more: bool,
}

/// Something that happened to a job.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Moment {
    /// When, since it was submitted.
    pub at_ms: f64,
    /// What.
    pub what: MomentKind,
}

/// What happens to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MomentKind {
    /// It came into the queue.
    Queued,
    /// Its record is on the disk: from here on it survives.
    Stored,
    /// A client holds it.
    Held,
    /// It is held no longer.
    Released,
    /// Its prompt was looked up in the KV cache.
    PrefixSearched,
    /// What was found of it elsewhere is on the device.
    Restored {
        /// Tokens that came from host memory.
        ram: u64,
        /// Tokens that came from the SSD.
        ssd: u64,
    },
    /// The first part of its prompt is being computed.
    Started {
        /// Tokens of it that need not be.
        cached_tokens: u64,
    },
    /// All of its prompt is computed.
    PrefillDone,
    /// It has its first token.
    FirstToken,
    /// It made room for more urgent jobs; its KV is kept.
    Parked,
    /// It runs again.
    Resumed,
    /// The daemon was started again and took it up.
    Restarted,
    /// It is done, failed or cancelled.
    Ended,
}
