//! Operations on kept keys and values: what lies where, whose it is, and what clients may do about it. Types of the `state`
//! library become types of the protocol here, and nowhere else.

use super::{Services, fault, gone, not_found};
use crate::device::port::TextModel;
use crate::kv_store::{self, KvSnapshot, TierFigures};
use crate::limits::CHECK_LINES;
use crate::scheduler::core::{CacheReport, token_tiers};
use crate::scheduler::{JobsOf, StoryOf};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use zllm_state::{BLOCK_TOKENS, ByTier, RunState, SaveOutcome, SessionError, SessionName, SessionView};
use zllm_wire::limits::{MAX_LIST_ROWS, MAX_TIER_RUNS};
use zllm_wire::{
    BlockRun, BlockState, CacheOutcome, CacheStory, CheckReport, ErrorCode, EvictTarget, Fault, JobId,
    JobInfo, JobState, KvStatus, ModelRate, Residency, SessionDetail, SessionId, SessionInfo, SessionRef,
    SessionState, SsdState, Tenant, Tier, TierBlocks, TierBytes, TierMap, TokenTiers,
};

/// What was evicted.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct Evicted {
    /// Sessions that lost KV.
    pub(crate) sessions: u32,
    /// Blocks freed.
    pub(crate) blocks: u64,
    /// Bytes freed.
    pub(crate) bytes: u64,
}

/// What is on the SSD now and was not before, synced.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct Saved {
    /// Sessions whose latest state is there now; those included that were.
    pub(crate) sessions: u32,
    /// Blocks written.
    pub(crate) blocks: u64,
    /// Bytes written.
    pub(crate) bytes: u64,
}

/// The store's name for a session.
pub(crate) fn name_of(session: &SessionRef) -> SessionName {
    let tenant = session.tenant.as_ref().map_or_else(String::new, Tenant::to_string);
    SessionName { tenant, id: session.id.to_string() }
}

/// The protocol's name. A name that is none any more would be a defect, and is left out rather than told.
fn ref_of(name: &SessionName) -> Option<SessionRef> {
    let tenant = match name.tenant.as_str() {
        "" => None,
        tenant => Some(Tenant::new(tenant).ok()?),
    };
    Some(SessionRef { tenant, id: SessionId::new(name.id.as_str()).ok()? })
}

fn tier_blocks(blocks: ByTier) -> TierBlocks {
    TierBlocks { device: blocks.device, ram: blocks.ram, ssd: blocks.ssd }
}

fn tier_bytes(bytes: ByTier) -> TierBytes {
    TierBytes { device: bytes.device, ram: bytes.ram, ssd: bytes.ssd }
}

fn store_tier(tier: Tier) -> zllm_state::Tier {
    match tier {
        Tier::Device => zllm_state::Tier::Device,
        Tier::Ram => zllm_state::Tier::Ram,
        Tier::Ssd => zllm_state::Tier::Ssd,
    }
}

fn wire_tier(tier: zllm_state::Tier) -> Tier {
    match tier {
        zllm_state::Tier::Device => Tier::Device,
        zllm_state::Tier::Ram => Tier::Ram,
        zllm_state::Tier::Ssd => Tier::Ssd,
    }
}

pub(crate) fn session_fault(error: SessionError) -> Fault {
    let code = match error {
        SessionError::NotFound { .. } => ErrorCode::NotFound,
        SessionError::Exists { .. }
        | SessionError::OutOfRange { .. }
        | SessionError::OtherModel { .. }
        | SessionError::TooMuchPinned { .. } => ErrorCode::Invalid,
    };
    fault(code, error.to_string())
}

impl Services {
    /// All sessions, those in their first turn before the others, latest first, and at most as many as a listing has.
    pub(crate) async fn session_rows(&self, jobs: &[JobInfo]) -> Result<Vec<SessionInfo>, Fault> {
        let session_of =
            |job: &JobInfo| Some(SessionRef { tenant: job.tenant.clone(), id: job.session.clone()? });
        let live = jobs.iter().filter(|job| is_live(job));
        let mut active: HashMap<SessionRef, &JobInfo> =
            live.filter_map(|job| Some((session_of(job)?, job))).collect();
        let mut rows = self.kv.send(kv_store::Sessions).await.map_err(gone)?;
        rows.sort_by(|(a, of_a), (b, of_b)| {
            of_b.session.last_use_ms.cmp(&of_a.session.last_use_ms).then_with(|| a.cmp(b))
        });
        let row = |(name, view): (SessionName, SessionView)| {
            let session = ref_of(&name)?;
            let is_active = active.remove(&session).is_some();
            let state = if is_active { SessionState::Active } else { SessionState::Idle };
            Some(self.session_info(session, &view, state))
        };
        let rows: Vec<SessionInfo> = rows.into_iter().filter_map(row).collect();
        let mut first_turns: Vec<SessionInfo> =
            active.iter().map(|(session, job)| first_turn_info(session, job)).collect();
        first_turns.sort_by(|a, b| (a.idle_ms, &a.tenant, &a.id).cmp(&(b.idle_ms, &b.tenant, &b.id)));
        Ok(first_turns.into_iter().chain(rows).take(MAX_LIST_ROWS).collect())
    }

    pub(crate) async fn show_session(&self, session: SessionRef) -> Result<SessionDetail, Fault> {
        let jobs = JobsOf { session: Some(session.clone()), limit: MAX_LIST_ROWS };
        let jobs = self.ask_scheduler(jobs).await?;
        let view = self.kv.send(kv_store::SessionDetails(name_of(&session))).await.map_err(gone)?;
        // Before its first job has ended there is a session, and no KV of it.
        match (view, first_turn(&session, &jobs)) {
            (Some(view), _) => Ok(self.session_detail(session, &view, jobs)),
            (None, Some(detail)) => Ok(detail),
            (None, None) => Err(not_found("session", &session)),
        }
    }

    pub(crate) async fn fork(
        &self,
        from: SessionRef,
        to: SessionId,
        tokens: Option<u64>,
    ) -> Result<SessionDetail, Fault> {
        let to = SessionRef { tenant: from.tenant.clone(), id: to };
        let fork = kv_store::Fork { from: name_of(&from), to: name_of(&to), tokens };
        let view = self.kv.send(fork).await.map_err(gone)?.map_err(session_fault)?;
        Ok(self.session_detail(to, &view, Vec::new()))
    }

    pub(crate) async fn pin(&self, session: &SessionRef, pinned: bool) -> Result<(), Fault> {
        let pin = kv_store::Pin { session: name_of(session), pinned };
        self.kv.send(pin).await.map_err(gone)?.map_err(session_fault)
    }

    pub(crate) async fn set_ttl(&self, session: &SessionRef, ttl_ms: Option<u64>) -> Result<(), Fault> {
        let ttl = kv_store::SetTtl { session: name_of(session), ttl_ms };
        self.kv.send(ttl).await.map_err(gone)?.map_err(session_fault)
    }

    pub(crate) async fn save(&self, session: Option<&SessionRef>) -> Result<Saved, Fault> {
        let save = kv_store::Save(session.map(name_of));
        match self.kv.send(save).await.map_err(gone)?.map_err(session_fault)? {
            SaveOutcome::Done { sessions, blocks, bytes } => {
                Ok(Saved { sessions: sessions as u32, blocks, bytes })
            }
            SaveOutcome::Failed { reason } => Err(fault(ErrorCode::Failed, format!("not saved: {reason}"))),
        }
    }

    pub(crate) async fn check_disk(&self) -> Result<CheckReport, Fault> {
        let checked = self.kv.send(kv_store::CheckDisk).await.map_err(gone)?;
        let (report, took) = checked.map_err(|message| fault(ErrorCode::Failed, message))?;
        let mut dangling = report.dangling;
        if report.orphans > 0 {
            dangling.push(format!("{} pieces of data belong to no block", report.orphans));
        }
        let lines = |mut lines: Vec<String>| {
            lines.truncate(CHECK_LINES);
            lines
        };
        Ok(CheckReport {
            blocks: report.blocks,
            bytes: report.block_bytes,
            sessions: report.sessions,
            complete_sessions: report.complete_sessions,
            damaged: lines(report.damaged),
            dangling: lines(dangling),
            took_ms: took.as_millis() as u64,
        })
    }

    pub(crate) async fn evict(&self, target: EvictTarget, tier: Option<Tier>) -> Result<Evicted, Fault> {
        let target = match target {
            EvictTarget::All => zllm_state::EvictTarget::All,
            EvictTarget::Session(session) => zllm_state::EvictTarget::Session(name_of(&session)),
            EvictTarget::OlderThan { idle_ms } => zllm_state::EvictTarget::OlderThan { idle_ms },
        };
        let evict = kv_store::Evict { target, tier: tier.map(store_tier) };
        let evicted = self.kv.send(evict).await.map_err(gone)?.map_err(session_fault)?;
        Ok(Evicted {
            sessions: evicted.sessions as u32,
            blocks: evicted.blocks.total(),
            bytes: evicted.bytes,
        })
    }

    pub(crate) async fn why(&self, job: JobId) -> Result<CacheStory, Fault> {
        let story = self.ask_scheduler(StoryOf(job.clone())).await??;
        let (cached, outcome) = match story.cache {
            None => (TokenTiers::default(), CacheOutcome::Waiting),
            Some(CacheReport { cached, outcome }) => {
                (token_tiers(cached), outcome_in_words(story.text.as_deref(), outcome))
            }
        };
        Ok(CacheStory { job, prompt_tokens: story.prompt_tokens, cached, outcome })
    }

    pub(crate) async fn residency(&self) -> Result<Residency, Fault> {
        let (maps, names) = self.kv.send(kv_store::Residency).await.map_err(gone)?;
        let snapshot = self.kv.send(kv_store::Snapshot).await.map_err(gone)?;
        let (sessions, numbers) = listed_sessions(&names);
        let tiers = maps.into_iter().map(|map| tier_map(map, &numbers)).collect();
        let rates = snapshot.models.iter().filter_map(|(model, figures)| {
            let tokens_per_s = figures.compute_tokens_per_s?;
            Some(ModelRate { model: model.to_string(), tokens_per_s })
        });
        Ok(Residency {
            tiers,
            sessions,
            read_bytes_per_s: snapshot.ssd.read_bytes_per_s,
            compute_tokens_per_s: rates.collect(),
            unsaved_bytes: snapshot.ssd.unsaved_bytes,
        })
    }

    fn session_detail(
        &self,
        session: SessionRef,
        view: &SessionView,
        mut jobs: Vec<JobInfo>,
    ) -> SessionDetail {
        let is_active = jobs.iter().any(is_live);
        let state = if is_active { SessionState::Active } else { SessionState::Idle };
        jobs.reverse();
        let now_ms = self.clock.unix_ms();
        SessionDetail {
            info: self.session_info(session, view, state),
            blocks: tier_blocks(view.blocks),
            shared_blocks: view.shared_blocks,
            shared_with: view.shared_with.iter().filter_map(ref_of).collect(),
            unsaved_blocks: view.unsaved_blocks,
            generation: view.session.generation,
            saved_generation: view.session.saved_generation,
            created_ms_ago: now_ms.saturating_sub(view.session.created_ms),
            hits: view.session.hits,
            jobs,
        }
    }

    fn session_info(&self, name: SessionRef, view: &SessionView, state: SessionState) -> SessionInfo {
        let session = &view.session;
        SessionInfo {
            id: name.id,
            tenant: name.tenant,
            model: session.model.clone(),
            state,
            tokens: session.tokens.len() as u64,
            bytes: tier_bytes(view.bytes),
            idle_ms: self.clock.unix_ms().saturating_sub(session.last_use_ms),
            pinned: session.pinned,
            ttl_ms: session.ttl_ms,
            // Its full blocks, too: they may have been evicted since, or have found no room. A tail may have been taken over
            // by a longer block.
            saved: session.saved_generation == Some(session.generation)
                && view.blocks.ssd >= (session.tokens.len() / BLOCK_TOKENS) as u64,
            turns: session.turns,
            hit_tokens: session.hit_tokens,
        }
    }
}

/// Tokens become text while the model is loaded, else their numbers are told.
fn outcome_in_words(text: Option<&dyn TextModel>, outcome: zllm_state::CacheOutcome) -> CacheOutcome {
    use zllm_state::CacheOutcome as Kept;
    match outcome {
        Kept::Whole => CacheOutcome::Whole,
        Kept::Ended { kept_tokens } => CacheOutcome::Ended { kept_tokens },
        Kept::Nothing => CacheOutcome::Nothing,
        Kept::Computed { ssd_tokens, read_ms, compute_ms } => {
            CacheOutcome::Computed { ssd_tokens, read_ms, compute_ms }
        }
        Kept::Unreadable { reason } => CacheOutcome::Unreadable { reason },
        Kept::Diverged { shared, before, kept, asked } => {
            let show =
                |tokens: &[u32]| text.map_or_else(|| format!("{tokens:?}"), |text| text.text_of(tokens));
            let (before, kept, asked) = (show(&before), show(&kept), show(&asked));
            CacheOutcome::Diverged { at: shared, before, kept, asked }
        }
    }
}

/// The KV store's part of the status.
pub(crate) fn kv_status(kv: &KvSnapshot) -> KvStatus {
    let rates: Vec<f64> = kv.models.values().filter_map(|model| model.compute_tokens_per_s).collect();
    let mean = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
    let ram = |blocks: fn(TierFigures) -> u32| -> u64 {
        kv.models.values().map(|model| u64::from(blocks(model.ram)) * model.block_bytes).sum()
    };
    KvStatus {
        ssd: match &kv.ssd.state {
            kv_store::SsdState::Off => SsdState::Off,
            kv_store::SsdState::Ready => SsdState::Ready,
            kv_store::SsdState::Down(reason) => SsdState::Down { reason: reason.clone() },
        },
        path: kv.ssd.dir.as_ref().map(|dir| dir.display().to_string()),
        file_bytes: kv.ssd.file_bytes,
        budget_bytes: kv.ssd.budget_bytes,
        stored_blocks: kv.ssd.stored_blocks,
        unsaved_bytes: kv.ssd.unsaved_bytes,
        ram_budget_bytes: ram(TierFigures::total),
        ram_used_bytes: ram(|tier| tier.used + tier.cached),
        read_bytes_per_s: kv.ssd.read_bytes_per_s,
        compute_tokens_per_s: (!rates.is_empty()).then_some(mean),
        evicted_blocks: tier_blocks(kv.totals.evicted),
        lost_unsaved_blocks: kv.totals.lost_unsaved,
    }
}

pub(crate) fn is_live(job: &JobInfo) -> bool {
    matches!(job.state, JobState::Queued | JobState::Running)
}

/// A session whose first job has not ended.
fn first_turn(session: &SessionRef, jobs: &[JobInfo]) -> Option<SessionDetail> {
    let job = jobs.iter().find(|job| is_live(job))?;
    Some(SessionDetail {
        info: first_turn_info(session, job),
        blocks: TierBlocks::default(),
        shared_blocks: 0,
        shared_with: Vec::new(),
        unsaved_blocks: 0,
        generation: 0,
        saved_generation: None,
        created_ms_ago: job.age_ms,
        hits: 0,
        jobs: jobs.iter().rev().cloned().collect(),
    })
}

fn first_turn_info(session: &SessionRef, job: &JobInfo) -> SessionInfo {
    SessionInfo {
        id: session.id.clone(),
        tenant: session.tenant.clone(),
        model: job.model.clone(),
        state: SessionState::Active,
        tokens: job.prompt_tokens + job.generated_tokens,
        bytes: job.bytes,
        idle_ms: job.idle_ms,
        pinned: false,
        ttl_ms: None,
        saved: false,
        turns: 0,
        hit_tokens: job.cached_tokens,
    }
}

/// Sessions that a map may name, and their places in that list.
fn listed_sessions(names: &[SessionName]) -> (Vec<SessionRef>, BTreeMap<u32, u32>) {
    let mut sessions = Vec::new();
    let mut numbers = BTreeMap::new();
    for (number, name) in names.iter().enumerate().take(MAX_LIST_ROWS) {
        if let Some(session) = ref_of(name) {
            numbers.insert(number as u32, sessions.len() as u32);
            sessions.push(session);
        }
    }
    (sessions, numbers)
}

fn tier_map(map: zllm_state::TierMap, numbers: &BTreeMap<u32, u32>) -> TierMap {
    let runs = map.runs.into_iter().map(|run| BlockRun {
        blocks: u32::try_from(run.blocks).unwrap_or(u32::MAX),
        state: match run.state {
            RunState::Leased => BlockState::Leased,
            RunState::Pinned => BlockState::Pinned,
            RunState::Cached => BlockState::Cached,
            RunState::Free => BlockState::Free,
        },
        sessions: run.sessions.iter().filter_map(|number| numbers.get(number).copied()).collect(),
        age_ms: run.age_ms,
    });
    TierMap {
        tier: wire_tier(map.tier),
        model: map.model,
        block_bytes: map.block_bytes,
        capacity_blocks: match map.tier {
            zllm_state::Tier::Ssd => map.capacity_bytes.checked_div(map.block_bytes).unwrap_or(0),
            _ => map.capacity_blocks,
        },
        capacity_bytes: map.capacity_bytes,
        used_bytes: map.used_bytes,
        runs: at_most(runs.collect(), MAX_TIER_RUNS),
    }
}

/// Neighbours are taken together, each pair told as its larger part, until there are few enough.
fn at_most(mut runs: Vec<BlockRun>, bound: usize) -> Vec<BlockRun> {
    while runs.len() > bound {
        runs = runs
            .chunks(2)
            .map(|pair| {
                let larger = pair.iter().max_by_key(|run| run.blocks).expect("a chunk is not empty");
                let blocks = pair.iter().fold(0u32, |sum, run| sum.saturating_add(run.blocks));
                BlockRun { blocks, ..larger.clone() }
            })
            .collect();
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_map_is_told_in_fewer_runs_of_as_many_blocks() {
        let run = |blocks, state| BlockRun { blocks, state, sessions: vec![], age_ms: 0 };
        let runs: Vec<BlockRun> = (0..9)
            .map(|at| run(1 + at % 2 * 5, if at % 2 == 0 { BlockState::Free } else { BlockState::Leased }))
            .collect();
        let blocks = |runs: &[BlockRun]| runs.iter().map(|run| run.blocks).sum::<u32>();
        let short = at_most(runs.clone(), 5);
        assert_eq!((short.len(), blocks(&short)), (5, blocks(&runs)));
        assert!(short[..4].iter().all(|run| run.state == BlockState::Leased), "the larger part speaks");
        assert_eq!(at_most(runs.clone(), 9), runs);
    }
}
