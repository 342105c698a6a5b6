//! The KV store: the real index of blocks, what the blocks hold, and leases that are decided late and answered later.

use super::super::{CacheOutcome, CacheReport, Lease, NoLease, Time};
use super::text::kv_root;
use crate::scheduler::plan::{PlanRow, SequenceId};
use std::collections::HashMap;
use std::sync::Arc;
use zllm_state::index::{ArenaId, Index, IndexOptions};
use zllm_state::{ArenaBudget, BLOCK_TOKENS, BlockKey, Fingerprint, LeaseError, LeaseId};

/// Blocks of a model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks {
    /// That leases may have at one time.
    pub(super) device: u32,
    /// For what no lease uses.
    pub(super) ram: u32,
}

/// What [`super::super::Action::Lease`] asked for.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) sequence: SequenceId,
    pub(super) tenant: String,
    pub(super) tokens: Arc<[u32]>,
    pub(super) capacity: usize,
}

#[derive(Debug)]
struct Asked {
    question: Question,
    /// Once the store has decided.
    answer: Option<Result<Lease, NoLease>>,
}

struct Arena {
    id: ArenaId,
    contents: Vec<[u64; BLOCK_TOKENS]>,
    asked: Option<Asked>,
}

pub(super) struct Store {
    index: Index,
    /// By model.
    arenas: Vec<Arena>,
    holders: HashMap<LeaseId, (SequenceId, usize, Arc<[u32]>)>,
    /// Leases that began inside of a block.
    pub(super) partial: usize,
    /// Prompt tokens found, and asked for.
    pub(super) found: u64,
    pub(super) asked_for: u64,
}

impl Store {
    pub(super) fn new(models: impl Iterator<Item = Blocks>) -> Self {
        let mut index = Index::new(IndexOptions::default());
        let arena = |Blocks { device, ram }| {
            let budget =
                ArenaBudget { device_blocks: device, ram_blocks: ram, block_bytes: 1, stored_bytes: 1 };
            let contents = vec![[0; BLOCK_TOKENS]; (device + ram) as usize];
            Arena { id: index.add_arena(budget), contents, asked: None }
        };
        let arenas = models.map(arena).collect();
        Self { index, arenas, holders: HashMap::new(), partial: 0, found: 0, asked_for: 0 }
    }

    /// # Errors
    /// When the model asks already.
    pub(super) fn ask(&mut self, model: usize, question: Question) -> Result<(), String> {
        let asked = &mut self.arenas[model].asked;
        if let Some(before) = asked {
            return Err(format!("{question:?} is asked while {before:?} is not answered"));
        }
        *asked = Some(Asked { question, answer: None });
        Ok(())
    }

    pub(super) fn is_asked(&self, model: usize) -> bool {
        self.arenas[model].asked.is_some()
    }

    /// Decides what a model asked; the lease is held from now on, whenever it is answered.
    ///
    /// # Errors
    /// When it can never be granted: then it should not have been asked for.
    pub(super) fn decide(&mut self, model: usize, refuse: bool, now: Time) -> Result<(), String> {
        let arena = &mut self.arenas[model];
        let Some(Asked { question, answer }) = &mut arena.asked else {
            return Err("a decision without a question".to_owned());
        };
        if refuse {
            *answer = Some(Err(NoLease::NotNow));
            return Ok(());
        }
        let root = BlockKey::root(Fingerprint([model as u8; 32]), &question.tenant);
        let now_ms = now.as_millis() as u64;
        let grant = match self.index.lease(arena.id, root, &question.tokens, question.capacity, now_ms) {
            Ok(grant) => grant,
            Err(LeaseError::NotNow { .. }) => {
                *answer = Some(Err(NoLease::NotNow));
                return Ok(());
            }
            Err(never) => return Err(format!("{:?} can never be: {never}", question.sequence)),
        };
        let blocks: Arc<[u32]> = grant.blocks.into();
        self.holders.insert(grant.lease, (question.sequence, model, blocks.clone()));
        if let Some(copy) = grant.copy {
            self.partial += 1;
            arena.contents[copy.to as usize] = arena.contents[copy.from as usize];
        }
        self.found += grant.cached.total();
        self.asked_for += question.tokens.len() as u64;
        let cache = CacheReport { cached: grant.cached, outcome: CacheOutcome::Nothing };
        *answer = Some(Ok(Lease { id: grant.lease, blocks, cache }));
        Ok(())
    }

    /// The answer to what a model asked; it must be decided.
    pub(super) fn answer(&mut self, model: usize) -> (SequenceId, Result<Lease, NoLease>) {
        let asked = self.arenas[model].asked.take().expect("asked");
        (asked.question.sequence, asked.answer.expect("decided"))
    }

    pub(super) fn commit(&mut self, lease: LeaseId, tokens: &[u32]) {
        self.index.commit(lease, tokens);
    }

    /// Takes a lease back whose positions have these KVs.
    ///
    /// # Errors
    /// When the lease is not that sequence's, or its blocks hold something else.
    pub(super) fn release(
        &mut self,
        lease: LeaseId,
        sequence: SequenceId,
        tokens: &[u32],
        mut kvs: impl Iterator<Item = u64>,
        now: Time,
    ) -> Result<(), String> {
        let (model, blocks) = match self.holders.remove(&lease) {
            Some((holder, model, blocks)) if holder == sequence => (model, blocks),
            other => return Err(format!("{sequence:?} gives back a lease that is held by {other:?}")),
        };
        let content = |at: usize| self.kv(model, "", &blocks, Some(at));
        if let Some(at) = (0..tokens.len()).find(|at| kvs.next() != Some(content(*at))) {
            return Err(format!("{sequence:?} gives back another KV at position {at} than it computed"));
        }
        let tail = &tokens[tokens.len() / BLOCK_TOKENS * BLOCK_TOKENS..];
        self.index.release(lease, tail, now.as_millis() as u64);
        Ok(())
    }

    /// # Errors
    /// The index's.
    pub(super) fn check(&self) -> Result<(), String> {
        self.index.check()
    }

    /// Leases that are granted, answered or not.
    pub(super) fn open(&self) -> usize {
        self.holders.len()
    }

    /// # Errors
    /// When anything is held.
    pub(super) fn check_unused(&self) -> Result<(), String> {
        if let Some((lease, (holder, ..))) = self.holders.iter().next() {
            return Err(format!("{} leases were never given back, {lease:?} of {holder:?}", self.open()));
        }
        for arena in &self.arenas {
            let figures = self.index.figures(arena.id);
            if (figures.leases, figures.device.used) != (0, 0) {
                return Err(format!("blocks are used at the end: {figures:?}"));
            }
        }
        self.check()
    }

    /// The KV at a position of a block table; before the first it is the tenant's root.
    pub(super) fn kv(&self, model: usize, tenant: &str, blocks: &[u32], position: Option<usize>) -> u64 {
        let Some(at) = position else { return kv_root(model, tenant) };
        self.arenas[model].contents[blocks[at / BLOCK_TOKENS] as usize][at % BLOCK_TOKENS]
    }

    /// Writes the KV of a row's tokens.
    pub(super) fn write(&mut self, model: usize, row: &PlanRow, kvs: &[u64]) {
        for (at, kv) in (row.position..).zip(kvs) {
            let block = row.blocks[at / BLOCK_TOKENS] as usize;
            self.arenas[model].contents[block][at % BLOCK_TOKENS] = *kv;
        }
    }
}
