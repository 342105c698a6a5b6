//! What the KV store tells of itself, for metrics and `status`. Counts are of blocks unless they say otherwise, totals are
//! since the daemon's start.

use crate::config::SsdSettings;
use crate::scheduler::plan::ModelName;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use zllm_state::{ByTier, StoreFigures};

/// What the KV store holds and has done.
#[derive(Debug, Clone, Default)]
pub(crate) struct KvSnapshot {
    /// Loaded models.
    pub(crate) models: BTreeMap<ModelName, ModelFigures>,
    pub(crate) ssd: SsdFigures,
    pub(crate) sessions: usize,
    pub(crate) totals: KvTotals,
}

/// How the memory of one model's arena is used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ModelFigures {
    pub(crate) block_bytes: u64,
    pub(crate) device: TierFigures,
    pub(crate) ram: TierFigures,
    /// How fast its prompts are computed; `None` while none was measured.
    pub(crate) compute_tokens_per_s: Option<f64>,
}

/// How a tier of an arena is used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TierFigures {
    /// Held by leases and by reads that are on their way.
    pub(crate) used: u32,
    /// Kept for later.
    pub(crate) cached: u32,
    pub(crate) free: u32,
}

impl TierFigures {
    pub(crate) fn total(self) -> u32 {
        self.used + self.cached + self.free
    }
}

/// The tier on SSD, which all models share.
#[derive(Debug, Clone, Default)]
pub(crate) struct SsdFigures {
    pub(crate) state: SsdState,
    /// Where its file is.
    pub(crate) dir: Option<PathBuf>,
    /// What the file may take: the configured budget, or less where the file system has less.
    pub(crate) budget_bytes: u64,
    /// What it takes on disk.
    pub(crate) file_bytes: u64,
    pub(crate) stored_blocks: u64,
    /// What the stored blocks take of the file.
    pub(crate) stored_bytes: u64,
    /// Blocks in memory that wait to be written.
    pub(crate) unsaved_bytes: u64,
    /// How fast blocks come back; `None` while none was measured.
    pub(crate) read_bytes_per_s: Option<f64>,
}

/// Whether there is a tier on SSD.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum SsdState {
    /// The configuration wants none.
    #[default]
    Off,
    Ready,
    /// There should be one and cannot, for this reason.
    Down(String),
}

/// What has happened.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct KvTotals {
    /// Blocks that lost their copy on a tier to make room.
    pub(crate) evicted: ByTier,
    /// Blocks that were to be written to SSD and were evicted before.
    pub(crate) lost_unsaved: u64,
    pub(crate) written_blocks: u64,
    pub(crate) written_bytes: u64,
    /// Blocks that were read back from SSD.
    pub(crate) restored_blocks: u64,
    pub(crate) restored_bytes: u64,
    /// From the decision to read to the blocks on the device, all reads together.
    pub(crate) restore_time: Duration,
    /// Blocks on SSD that could not be read, or were not what was written.
    pub(crate) unreadable: u64,
}

impl KvSnapshot {
    /// What the store and the disk say.
    pub(super) fn new(
        figures: StoreFigures,
        ssd: Option<&SsdSettings>,
        trouble: Option<&str>,
        (file_bytes, limit_bytes): (u64, u64),
    ) -> Self {
        let tier = |tier: zllm_state::TierFigures| TierFigures {
            used: tier.used,
            cached: tier.cached,
            free: tier.free,
        };
        let rates = &figures.compute_tokens_per_s;
        let models = figures.arenas.iter().map(|(name, arena)| {
            let (device, ram) = (tier(arena.device), tier(arena.ram));
            let compute_tokens_per_s = rates.get(name).copied();
            let model = ModelFigures { block_bytes: arena.block_bytes, device, ram, compute_tokens_per_s };
            (name.as_str().into(), model)
        });
        let state = match (ssd, trouble) {
            (None, _) => SsdState::Off,
            (Some(_), None) => SsdState::Ready,
            (Some(_), Some(reason)) => SsdState::Down(reason.to_owned()),
        };
        Self {
            models: models.collect(),
            ssd: SsdFigures {
                state,
                dir: ssd.map(|ssd| ssd.dir.clone()),
                budget_bytes: limit_bytes,
                file_bytes,
                stored_blocks: figures.stored_blocks,
                stored_bytes: figures.stored_bytes,
                unsaved_bytes: figures.unsaved_bytes,
                read_bytes_per_s: figures.read_bytes_per_s,
            },
            sessions: figures.sessions,
            totals: KvTotals {
                evicted: figures.evicted,
                lost_unsaved: figures.lost_unsaved_blocks + figures.refused_blocks,
                written_blocks: figures.written_blocks,
                written_bytes: figures.written_bytes,
                restored_blocks: figures.restored_blocks,
                restored_bytes: figures.restored_bytes,
                restore_time: Duration::from_secs_f64(figures.restore_ms / 1e3),
                unreadable: figures.unreadable_blocks,
            },
        }
    }
}
