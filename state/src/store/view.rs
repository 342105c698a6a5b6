//! What lies where, for people: a session's blocks by tier, and a map of each tier.

use super::{DiskState, KvStore};
use crate::index::{ArenaFigures, BlockView};
use crate::key::BlockKey;
use crate::session::{Session, SessionName};
use crate::tier::{ByTier, Tier};
use std::collections::{BTreeMap, HashMap};

/// One session and what of it is where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionView {
    /// The session.
    pub session: Session,
    /// Blocks by tier; one may be on several.
    pub blocks: ByTier,
    /// Bytes of those.
    pub bytes: ByTier,
    /// Blocks that are in no tier any more.
    pub evicted_blocks: u64,
    /// Blocks in memory that are not on disk.
    pub unsaved_blocks: u64,
    /// Blocks that other sessions have too.
    pub shared_blocks: u64,
    /// Those sessions, those with the most in common first.
    pub shared_with: Vec<SessionName>,
}

/// How the store is used.
#[derive(Debug, Clone, PartialEq)]
pub struct StoreFigures {
    /// Each model's arena, by the model's name.
    pub arenas: BTreeMap<String, ArenaFigures>,
    /// Prompt tokens a second of each model, where they were measured.
    pub compute_tokens_per_s: BTreeMap<String, f64>,
    /// The disk.
    pub disk: DiskState,
    /// Blocks on disk.
    pub stored_blocks: u64,
    /// What they take there.
    pub stored_bytes: u64,
    /// What they may take.
    pub stored_budget_bytes: u64,
    /// What waits to be written.
    pub unsaved_bytes: u64,
    /// Sessions.
    pub sessions: usize,
    /// Speed of reading back, where it was measured.
    pub read_bytes_per_s: Option<f64>,
    /// Blocks read back since the start.
    pub restored_blocks: u64,
    /// Their bytes.
    pub restored_bytes: u64,
    /// How long those reads took together.
    pub restore_ms: f64,
    /// Blocks on disk that could not be read, or were not what was written.
    pub unreadable_blocks: u64,
    /// Blocks written since the start.
    pub written_blocks: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Blocks that the disk had no room for.
    pub refused_blocks: u64,
    /// Copies that were evicted to make room, by tier.
    pub evicted: ByTier,
    /// Blocks that were to be saved and had to go before.
    pub lost_unsaved_blocks: u64,
}

/// What may be done with a block's copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunState {
    /// A running request holds it.
    Leased,
    /// A pinned session has it.
    Pinned,
    /// It waits for use or eviction.
    Cached,
    /// Nothing is there.
    Free,
}

/// Neighbouring blocks of a map that are alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapRun {
    /// How many.
    pub blocks: u64,
    /// What they are.
    pub state: RunState,
    /// Sessions that have them, at most 4; by number in the list that comes with the map.
    pub sessions: Vec<u32>,
    /// Since the last use of the latest of them.
    pub age_ms: u64,
}

/// One tier, drawn out: blocks of one session lie together, in token order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierMap {
    /// Which.
    pub tier: Tier,
    /// Whose arena; `None` for the disk, which all models share.
    pub model: Option<String>,
    /// Bytes of one block; of the disk those of its first block.
    pub block_bytes: u64,
    /// Blocks that it may hold; 0 for the disk, which is bounded in bytes.
    pub capacity_blocks: u64,
    /// Bytes that it may hold.
    pub capacity_bytes: u64,
    /// Bytes that it holds.
    pub used_bytes: u64,
    /// What it holds.
    pub runs: Vec<MapRun>,
}

/// Sessions that a run names.
const RUN_SESSIONS: usize = 4;
/// Sessions that a view names as sharing blocks.
const SHARED_WITH: usize = 32;
/// Blocks whose ages differ by less than this lie in one run.
const AGE_STEP_MS: u64 = 60_000;

impl KvStore {
    /// One session in full.
    pub fn session_view(&self, name: &SessionName) -> Option<SessionView> {
        let session = self.sessions.get(name)?;
        let mut view = self.brief_view(session);
        let own: HashMap<&BlockKey, ()> = session.keys.iter().map(|key| (key, ())).collect();
        let mut shared: HashMap<&BlockKey, ()> = HashMap::new();
        let mut with: Vec<(usize, &SessionName)> = Vec::new();
        for (other, session) in self.sessions.iter().filter(|(other, _)| *other != name) {
            let common = session.keys.iter().filter(|key| own.contains_key(key));
            let count = common.map(|key| shared.insert(key, ())).count();
            if count > 0 {
                with.push((count, other));
            }
        }
        with.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(b.1)));
        view.shared_blocks = shared.len() as u64;
        view.shared_with = with.into_iter().take(SHARED_WITH).map(|(_, name)| name.clone()).collect();
        Some(view)
    }

    /// The same without what it shares with others, which takes a look at all of them.
    pub fn brief_view(&self, session: &Session) -> SessionView {
        let mut view = SessionView {
            session: session.clone(),
            blocks: ByTier::default(),
            bytes: ByTier::default(),
            evicted_blocks: 0,
            unsaved_blocks: 0,
            shared_blocks: 0,
            shared_with: Vec::new(),
        };
        for key in &session.keys {
            let Some(block) = self.index.view(key) else {
                view.evicted_blocks += 1;
                continue;
            };
            if let Some((_, tier, _)) = block.memory {
                *view.blocks.of(tier) += 1;
                *view.bytes.of(tier) += block.bytes;
            }
            view.blocks.ssd += u64::from(block.stored);
            view.bytes.ssd += block.stored_bytes;
            view.unsaved_blocks += u64::from(!block.stored);
        }
        view
    }

    /// How everything is used.
    pub fn figures(&self) -> StoreFigures {
        let arenas = self.models.iter().map(|(name, model)| (name.clone(), self.index.figures(model.arena)));
        let rates =
            self.models.iter().filter_map(|(name, model)| Some((name.clone(), model.compute_rate? * 1e3)));
        let arenas: BTreeMap<String, ArenaFigures> = arenas.collect();
        StoreFigures {
            arenas,
            compute_tokens_per_s: rates.collect(),
            disk: self.saving.state,
            stored_blocks: self.index.stored_blocks(),
            stored_bytes: self.index.stored_bytes(),
            stored_budget_bytes: self.block_budget(),
            unsaved_bytes: self.index.unsaved_bytes(),
            sessions: self.sessions.len(),
            read_bytes_per_s: self.read_bytes_per_s(),
            restored_blocks: self.reading.restored_blocks,
            restored_bytes: self.reading.restored_bytes,
            restore_ms: self.reading.restore_ms,
            unreadable_blocks: self.reading.unreadable,
            written_blocks: self.saving.written_blocks,
            written_bytes: self.saving.written_bytes,
            refused_blocks: self.saving.refused_blocks,
            evicted: self.index.evicted(),
            lost_unsaved_blocks: self.index.lost_unsaved(),
        }
    }

    /// A map of each tier, and the sessions that the maps name by number.
    pub fn residency(&self, now_ms: u64) -> (Vec<TierMap>, Vec<SessionName>) {
        let names: Vec<SessionName> = self.sessions.iter().map(|(name, _)| name.clone()).collect();
        let mut owners: HashMap<BlockKey, Vec<(u32, u32)>> = HashMap::new();
        for (number, (_, session)) in self.sessions.iter().enumerate() {
            for (position, key) in session.keys.iter().enumerate() {
                owners.entry(*key).or_default().push((number as u32, position as u32));
            }
        }
        let mut maps = Vec::new();
        for (name, model) in &self.models {
            let budget = &model.budget;
            for (tier, capacity) in [(Tier::Device, budget.device_blocks), (Tier::Ram, budget.ram_blocks)] {
                let is_here = |view: &BlockView| {
                    view.memory.is_some_and(|(arena, here, _)| arena == model.arena && here == tier)
                };
                let figures = self.index.figures(model.arena);
                let used = if tier == Tier::Device { figures.device } else { figures.ram };
                let mut map = self.map(tier, &owners, now_ms, is_here);
                // Blocks that running requests write are nobody's yet.
                let named: u64 = map.runs.iter().map(|run| run.blocks).sum();
                let private = u64::from(used.used + used.cached).saturating_sub(named);
                map.push(private, RunState::Leased);
                map.push(u64::from(used.free), RunState::Free);
                map.model = Some(name.clone());
                map.block_bytes = budget.block_bytes;
                map.capacity_blocks = capacity.into();
                map.capacity_bytes = u64::from(capacity) * budget.block_bytes;
                map.used_bytes = u64::from(used.used + used.cached) * budget.block_bytes;
                maps.push(map);
            }
        }
        let mut disk = self.map(Tier::Ssd, &owners, now_ms, |view| view.stored);
        disk.capacity_bytes = if self.saving.state == DiskState::Ready { self.block_budget() } else { 0 };
        disk.used_bytes = self.index.stored_bytes();
        maps.push(disk);
        (maps, names)
    }

    fn map(
        &self,
        tier: Tier,
        owners: &HashMap<BlockKey, Vec<(u32, u32)>>,
        now_ms: u64,
        is_here: impl Fn(&BlockView) -> bool,
    ) -> TierMap {
        let here = self.index.iter().filter(|(_, view)| is_here(view));
        let mut blocks: Vec<_> =
            here.map(|(key, view)| (owners.get(&key).map_or(&[][..], Vec::as_slice), key, view)).collect();
        // What belongs to nobody stands last.
        blocks.sort_by(|a, b| (a.0.is_empty(), a.0, a.1).cmp(&(b.0.is_empty(), b.0, b.1)));
        let mut map = TierMap {
            tier,
            model: None,
            block_bytes: blocks.first().map_or(0, |(_, _, view)| view.stored_bytes),
            capacity_blocks: 0,
            capacity_bytes: 0,
            used_bytes: 0,
            runs: Vec::new(),
        };
        for (owners, _, view) in blocks {
            let is_leased = view.leases > 0 && tier != Tier::Ssd;
            let state = match (is_leased, view.pinned) {
                (true, _) => RunState::Leased,
                (false, true) => RunState::Pinned,
                (false, false) => RunState::Cached,
            };
            let mut sessions: Vec<u32> = owners.iter().map(|(session, _)| *session).collect();
            sessions.dedup();
            sessions.truncate(RUN_SESSIONS);
            let age_ms = now_ms.saturating_sub(view.last_use_ms);
            match map.runs.last_mut() {
                Some(run)
                    if run.state == state
                        && run.sessions == sessions
                        && run.age_ms.abs_diff(age_ms) < AGE_STEP_MS =>
                {
                    run.blocks += 1;
                    run.age_ms = run.age_ms.min(age_ms);
                }
                _ => map.runs.push(MapRun { blocks: 1, state, sessions, age_ms }),
            }
        }
        map
    }
}

impl TierMap {
    fn push(&mut self, blocks: u64, state: RunState) {
        if blocks > 0 {
            self.runs.push(MapRun { blocks, state, sessions: Vec::new(), age_ms: 0 });
        }
    }
}
