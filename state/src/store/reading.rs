//! Bringing blocks back from disk before a lease uses them, when that is faster than computing them again.
//!
//! Invariants: one restore is on its way at a time; a lease that needs another waits for it. A restore that fails, or whose
//! disk is lost, lets its lease go on with what memory has.

use super::{Action, DiskState, KvStore, LeaseRequest};
use crate::index::{Missing, NearMiss, Restore, RestoreId};
use crate::key::BlockKey;
use crate::tier::Tier;
use std::collections::VecDeque;
use std::sync::Arc;

/// What became of one block that was to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOutcome {
    /// It is in its slot.
    Ready,
    /// It is not there, or its checksum is wrong: its copy on disk is gone for good.
    Damaged,
    /// The disk or the device did not do it.
    Failed,
}

/// Why a lease found what it found, and no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheOutcome {
    /// All but the last token of the prompt.
    Whole,
    /// What is kept and shares the most with it goes on differently.
    Diverged {
        /// Tokens that both have.
        shared: u64,
        /// The last of those.
        before: Vec<u32>,
        /// How what is kept goes on.
        kept: Vec<u32>,
        /// How the prompt goes on.
        asked: Vec<u32>,
    },
    /// What is kept ends there.
    Ended {
        /// Tokens found.
        kept_tokens: u64,
    },
    /// Nothing like it is kept.
    Nothing,
    /// More is on disk; computing it was expected to be faster than reading it.
    Computed {
        /// Tokens that lie on disk alone.
        ssd_tokens: u64,
        /// What reading them was expected to take.
        read_ms: u64,
        /// What computing them was expected to take.
        compute_ms: u64,
    },
    /// More is on disk and could not be read.
    Unreadable {
        /// Why.
        reason: String,
    },
}

/// What is known of a request before it is answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Note {
    computed: Option<(u64, u64, u64)>,
    unreadable: Option<String>,
}

impl Note {
    pub(super) fn outcome(self, cached: usize, prompt: usize, near_miss: Option<NearMiss>) -> CacheOutcome {
        if prompt > 0 && cached + 1 >= prompt {
            return CacheOutcome::Whole;
        }
        if let Some(reason) = self.unreadable {
            return CacheOutcome::Unreadable { reason };
        }
        if let Some((ssd_tokens, read_ms, compute_ms)) = self.computed {
            return CacheOutcome::Computed { ssd_tokens, read_ms, compute_ms };
        }
        match near_miss {
            Some(NearMiss { shared, before, kept, asked }) => {
                CacheOutcome::Diverged { shared: shared as u64, before, kept, asked }
            }
            None if cached > 0 => CacheOutcome::Ended { kept_tokens: cached as u64 },
            None => CacheOutcome::Nothing,
        }
    }
}

/// A request that is not answered yet.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: LeaseRequest,
    pub(super) note: Note,
}

#[derive(Debug)]
struct Restoring {
    id: RestoreId,
    model: String,
    keys: Vec<BlockKey>,
    bytes: u64,
    /// Who waits for it; nobody for a prefetch.
    waiting: Option<Waiting>,
}

/// What is being read, and how fast reading was.
#[derive(Debug, Default)]
pub(super) struct Reading {
    restoring: Option<Restoring>,
    /// Leases that wait for the restore before their own.
    deferred: VecDeque<LeaseRequest>,
    /// Bytes a millisecond.
    rate: Option<f64>,
    /// What was read back since the start, and how long it took.
    pub(super) restored_blocks: u64,
    pub(super) restored_bytes: u64,
    pub(super) restore_ms: f64,
    pub(super) unreadable: u64,
}

/// Weight of the latest measurement in a running mean.
const NEWEST: f64 = 0.3;
/// What a read takes beside its bytes, in milliseconds.
const READ_OVERHEAD_MS: f64 = 1.0;
/// A disk that was judged too slow is thought a little faster each time, so that it is tried again.
const FORGIVENESS: f64 = 1.02;

impl KvStore {
    pub(super) fn lease_or_read(&mut self, request: LeaseRequest, now_ms: u64) {
        let model = self.model(&request.model);
        let (arena, root) = (model.arena, BlockKey::root(model.fingerprint, &request.tenant));
        let fits =
            request.capacity_tokens.div_ceil(crate::key::BLOCK_TOKENS) <= model.budget.device_blocks as usize;
        let missing = self.index.missing(arena, root, &request.prompt);
        let mut note = Note::default();
        if fits && missing.blocks > 0 && self.saving.state == DiskState::Ready {
            if self.reading.restoring.is_some() {
                self.reading.deferred.push_back(request);
                return;
            }
            match self.expected_ms(&request.model, &missing) {
                Some((read_ms, compute_ms)) if read_ms >= compute_ms => {
                    note.computed = Some((missing.tokens, read_ms as u64, compute_ms as u64));
                    self.reading.rate = self.reading.rate.map(|rate| rate * FORGIVENESS);
                }
                _ => {
                    let prompt = &request.prompt;
                    let restore = self.index.begin_restore(arena, root, prompt, Tier::Device, now_ms);
                    if let Some(restore) = restore {
                        let model = request.model.clone();
                        return self.start_restore(model, restore, Some(Waiting { request, note }));
                    }
                }
            }
        }
        self.grant(Waiting { request, note }, now_ms);
    }

    /// Brings a prompt's blocks up from disk before its request runs, as far as there is room in RAM.
    pub fn prefetch(&mut self, model: &str, tenant: &str, prompt: &Arc<[u32]>, now_ms: u64) -> Vec<Action> {
        if let Some(of) = self.models.get(model).filter(|of| of.budget.ram_blocks > 0) {
            let root = BlockKey::root(of.fingerprint, tenant);
            let missing = self.index.missing(of.arena, root, prompt);
            let pays = self.expected_ms(model, &missing).is_none_or(|(read, compute)| read < compute);
            let free = self.saving.state == DiskState::Ready && self.reading.restoring.is_none();
            if free && missing.blocks > 0 && pays {
                // Without room there is nothing to do: the request reads for itself when its turn comes.
                if let Some(restore) = self.index.begin_restore(of.arena, root, prompt, Tier::Ram, now_ms) {
                    self.start_restore(model.to_owned(), restore, None);
                }
            }
        }
        self.done()
    }

    fn start_restore(&mut self, model: String, restore: Restore, waiting: Option<Waiting>) {
        let Restore { id, reads } = restore;
        let keys: Vec<BlockKey> = reads.iter().map(|read| read.key).collect();
        let bytes = keys.len() as u64 * self.model(&model).budget.block_bytes;
        self.reading.restoring = Some(Restoring { id, model: model.clone(), keys, bytes, waiting });
        self.actions.push(Action::Restore { id, model, reads });
    }

    /// Whether a restore is still wanted: what was read for another must not be put into its slots.
    pub fn is_restoring(&self, id: RestoreId) -> bool {
        self.reading.restoring.as_ref().is_some_and(|restoring| restoring.id == id)
    }

    /// What became of a restore's blocks, in order. One that is not wanted any more is ignored.
    pub fn restored(
        &mut self,
        id: RestoreId,
        outcomes: &[ReadOutcome],
        took_ms: f64,
        now_ms: u64,
    ) -> Vec<Action> {
        if self.is_restoring(id) {
            let restoring = self.reading.restoring.take().expect("looked up above");
            assert_eq!(outcomes.len(), restoring.keys.len(), "each read has an outcome");
            if outcomes.iter().all(|outcome| *outcome == ReadOutcome::Ready) {
                let rate = restoring.bytes as f64 / took_ms.max(0.01);
                self.reading.rate =
                    Some(self.reading.rate.map_or(rate, |mean| mean + NEWEST * (rate - mean)));
                self.reading.restored_blocks += restoring.keys.len() as u64;
                self.reading.restored_bytes += restoring.bytes;
                self.reading.restore_ms += took_ms;
                self.price_reads();
            }
            self.end_restore(restoring, outcomes, now_ms);
        }
        self.done()
    }

    /// Prompt tokens of a model were computed in a time: what reading is compared with.
    pub fn measured(&mut self, model: &str, tokens: usize, took_ms: f64) {
        let Some(model) = self.models.get_mut(model) else { return };
        let rate = tokens as f64 / took_ms.max(0.01);
        model.compute_rate = Some(model.compute_rate.map_or(rate, |mean| mean + NEWEST * (rate - mean)));
        self.price_reads();
    }

    /// Ends a restore of a model, or any when the disk is lost, as if nothing had been read.
    pub(super) fn give_up_restore(&mut self, model: &str, now_ms: u64) {
        if self.reading.restoring.as_ref().is_some_and(|restoring| restoring.model == model) {
            self.give_up_any_restore(now_ms);
        }
    }

    pub(super) fn give_up_any_restore(&mut self, now_ms: u64) {
        if let Some(restoring) = self.reading.restoring.take() {
            let outcomes = vec![ReadOutcome::Failed; restoring.keys.len()];
            self.end_restore(restoring, &outcomes, now_ms);
        }
    }

    fn end_restore(&mut self, restoring: Restoring, outcomes: &[ReadOutcome], now_ms: u64) {
        let ready: Vec<bool> = outcomes.iter().map(|outcome| *outcome == ReadOutcome::Ready).collect();
        self.index.finish_restore(restoring.id, &ready);
        for (key, outcome) in restoring.keys.iter().zip(outcomes) {
            self.reading.unreadable += u64::from(*outcome != ReadOutcome::Ready);
            if *outcome == ReadOutcome::Damaged {
                self.damaged(key);
            }
        }
        if let Some(mut waiting) = restoring.waiting {
            let bad = outcomes.iter().find(|outcome| **outcome != ReadOutcome::Ready);
            waiting.note.unreadable = bad.map(|outcome| match outcome {
                ReadOutcome::Damaged => "a block on disk is damaged".to_owned(),
                _ => "the disk did not answer in time or failed".to_owned(),
            });
            self.grant(waiting, now_ms);
        }
        for request in std::mem::take(&mut self.reading.deferred) {
            self.lease_or_read(request, now_ms);
        }
    }

    /// What reading and computing what is missing would take, where both were measured.
    fn expected_ms(&self, model: &str, missing: &Missing) -> Option<(f64, f64)> {
        let compute = missing.tokens as f64 / self.model(model).compute_rate?;
        Some((READ_OVERHEAD_MS + missing.bytes as f64 / self.reading.rate?, compute))
    }

    /// Tells the eviction policy what it costs to read a block back.
    fn price_reads(&mut self) {
        let Some(read_rate) = self.reading.rate else { return };
        for model in self.models.values() {
            let Some(compute_rate) = model.compute_rate else { continue };
            let read = model.budget.block_bytes as f64 / read_rate;
            let compute = crate::key::BLOCK_TOKENS as f64 / compute_rate;
            self.index.set_costs(model.arena, (read / compute) as f32);
        }
    }

    pub(super) fn read_bytes_per_s(&self) -> Option<f64> {
        self.reading.rate.map(|rate| rate * 1e3)
    }
}
