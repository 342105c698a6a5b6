//! What the daemon tells about kept keys and values: by tier, by session, block by block.
//!
//! A block is the KV of 64 tokens, or of fewer at the end of a timeline. It may have a copy on several tiers at once, so
//! that counts by tier may sum to more than there is. Sizes are bytes, times are milliseconds.

use crate::id::{JobId, SessionId, Tenant};
use crate::limits::{MAX_RUN_SESSIONS, MAX_TIER_RUNS};
use crate::params::bounded;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where KV blocks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// In the device's memory, ready to be used.
    Device,
    /// In host memory.
    Ram,
    /// In the KV database on disk.
    Ssd,
}

/// Bytes of KV by tier. A block may be on several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TierBytes {
    /// On the device.
    pub device: u64,
    /// In host memory.
    pub ram: u64,
    /// On disk.
    pub ssd: u64,
}

/// Blocks by tier. A block may be on several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TierBlocks {
    /// On the device.
    pub device: u64,
    /// In host memory.
    pub ram: u64,
    /// On disk.
    pub ssd: u64,
}

/// Tokens of a prompt that were found, by the fastest tier that had them when they were asked for: each counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenTiers {
    /// On the device.
    pub device: u64,
    /// In host memory.
    pub ram: u64,
    /// On disk.
    pub ssd: u64,
}

impl TokenTiers {
    /// All tokens that were found.
    pub fn total(&self) -> u64 {
        self.device + self.ram + self.ssd
    }
}

/// A session by name. Two tenants may have sessions of the same id; they share nothing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct SessionRef {
    /// Whose it is; `None`: of those who name no tenant.
    pub tenant: Option<Tenant>,
    /// Its id.
    pub id: SessionId,
}

impl fmt::Display for SessionRef {
    /// `id`, or `tenant/id`; neither has a slash of its own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tenant {
            Some(tenant) => f.pad(&format!("{tenant}/{}", self.id)),
            None => self.id.fmt(f),
        }
    }
}

/// Where every block is, and why it stays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Residency {
    /// The tiers: device and RAM of each loaded model, then the SSD.
    pub tiers: Vec<TierMap>,
    /// The sessions that [`BlockRun::sessions`] names by their places here; at most [`crate::limits::MAX_LIST_ROWS`].
    pub sessions: Vec<SessionRef>,
    /// How fast blocks come back from the SSD, as measured; `None` while none did.
    pub read_bytes_per_s: Option<f64>,
    /// How fast prompts are computed, as measured; models of which none was are not here.
    pub compute_tokens_per_s: Vec<ModelRate>,
    /// Blocks in memory that wait to be written to the SSD.
    pub unsaved_bytes: u64,
}

/// How fast a model computes prompts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelRate {
    /// The model.
    pub model: String,
    /// Prompt tokens a second.
    pub tokens_per_s: f64,
}

/// One tier's blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TierMap {
    /// The tier.
    pub tier: Tier,
    /// The model whose blocks these are; `None` for the SSD, which keeps those of all models.
    pub model: Option<String>,
    /// Bytes of one block; of the SSD's, whose blocks differ, the mean, and 0 when it has none.
    pub block_bytes: u64,
    /// Blocks there is room for; on the SSD as many as fit its budget at the mean size, 0 when that is not known.
    pub capacity_blocks: u64,
    /// Bytes there is room for.
    pub capacity_bytes: u64,
    /// Bytes taken.
    pub used_bytes: u64,
    /// The blocks, neighbours that are alike taken together; at most [`MAX_TIER_RUNS`]. Where there would be more, neighbours
    /// that differ are taken together too, and the run is told as its largest part is.
    #[serde(deserialize_with = "bounded::<_, _, MAX_TIER_RUNS>")]
    pub runs: Vec<BlockRun>,
}

/// Neighbouring blocks of a tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlockRun {
    /// How many.
    pub blocks: u32,
    /// What they are.
    pub state: BlockState,
    /// Sessions whose timelines have them: places in [`Residency::sessions`]; at most [`MAX_RUN_SESSIONS`].
    #[serde(deserialize_with = "bounded::<_, _, MAX_RUN_SESSIONS>")]
    pub sessions: Vec<u32>,
    /// Since the latest use of one of them; 0 for free ones.
    pub age_ms: u64,
}

/// Why a block is where it is. A leased block may be pinned too and is told as leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BlockState {
    /// Nothing is there.
    Free,
    /// Kept for a prompt that begins with it, until the room is needed.
    Cached,
    /// Kept because a session of it is pinned.
    Pinned,
    /// In use: a job computes with it.
    Leased,
}

/// What a check of the SSD found. Every stored block was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckReport {
    /// Blocks read.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Saved sessions.
    pub sessions: u64,
    /// Those of them whose every block is there.
    pub complete_sessions: u64,
    /// What differs from what was written, a line each; at most [`crate::limits::MAX_LIST_ROWS`].
    pub damaged: Vec<String>,
    /// What refers to something that is not there, though it should be, a line each; at most as many.
    pub dangling: Vec<String>,
    /// How long it took.
    pub took_ms: u64,
}

/// Why a job found what it found in the cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CacheStory {
    /// The job.
    pub job: JobId,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// Those that were found.
    pub cached: TokenTiers,
    /// Why no more were.
    pub outcome: CacheOutcome,
}

/// Why no more of a prompt was found. One token at least is always computed: the answer begins with what it gives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheOutcome {
    /// There was no more to find: all of the prompt but its last token.
    Whole,
    /// The kept timeline that is most like the prompt goes on otherwise.
    Diverged {
        /// Tokens that both have; the first that differs has this place.
        at: u64,
        /// The text just before that place.
        before: String,
        /// The text that was kept from there on.
        kept: String,
        /// The text that was asked from there on.
        asked: String,
    },
    /// So much of it is kept, and nothing that is kept goes on like it.
    Ended {
        /// Its tokens.
        kept_tokens: u64,
    },
    /// Nothing that is kept begins like the prompt.
    Nothing,
    /// More was on the SSD, but to compute it was measured to be faster than to read it.
    Computed {
        /// Tokens that were there.
        ssd_tokens: u64,
        /// What reading them would have taken.
        read_ms: u64,
        /// What computing them was to take.
        compute_ms: u64,
    },
    /// More was on the SSD, but could not be read.
    Unreadable {
        /// Why.
        reason: String,
    },
    /// It has not begun, so nothing was looked up yet.
    Waiting,
}

/// The KV store at a glance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KvStatus {
    /// Whether KV is kept on the SSD.
    pub ssd: SsdState,
    /// The folder of its file; `None` when it is off.
    pub path: Option<String>,
    /// What the file takes on disk.
    pub file_bytes: u64,
    /// The most that it may take.
    pub budget_bytes: u64,
    /// Blocks in it.
    pub stored_blocks: u64,
    /// Blocks in memory that wait to be written.
    pub unsaved_bytes: u64,
    /// Host memory set aside for blocks, of all loaded models together.
    pub ram_budget_bytes: u64,
    /// What of that holds blocks.
    pub ram_used_bytes: u64,
    /// How fast blocks come back from the SSD, as measured; `None` while none did.
    pub read_bytes_per_s: Option<f64>,
    /// How fast prompts are computed, as measured over all models; `None` while none was.
    pub compute_tokens_per_s: Option<f64>,
    /// Blocks that lost their copy on a tier since the start.
    pub evicted_blocks: TierBlocks,
    /// Blocks that were to be written and were evicted before, since the start.
    pub lost_unsaved_blocks: u64,
}

/// Whether KV is kept on the SSD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SsdState {
    /// The configuration wants none.
    Off,
    /// It is.
    Ready,
    /// It should be and cannot.
    Down {
        /// Why.
        reason: String,
    },
}
