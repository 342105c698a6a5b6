//! The KV store without its hands: which blocks lie where, which sessions they belong to, what is written to disk and what
//! is read back. Pure: messages come in with the time, [`Action`]s go out, and whoever carries them out reports back.
//!
//! * A lease is answered at once, or after what lies on disk alone was read (`reading.rs`), whichever is measured to be
//!   faster than computing it again.
//! * What is worth keeping is written behind, in order: parents before children, blocks before the manifest that names
//!   them (`saving.rs`). One transaction is on its way at a time.
//! * Sessions are names for timelines (`sessions.rs`), prefixes are held for a while (`prefixes.rs`); `view.rs` tells what
//!   lies where.
//!
//! Invariants:
//! * Copies and puts are handed out before the lease that relies on them is answered; the device does them in order.
//! * A disk that fails or hangs costs nothing but what it kept: leases are still answered, from memory alone.
//! * Each lease request is answered exactly once, each save request too.

mod prefixes;
mod reading;
mod saving;
mod sessions;
mod view;

pub use reading::{CacheOutcome, ReadOutcome};
pub use saving::{DiskContents, DiskState, SaveOutcome, SavePolicy, WriteId};
pub use sessions::{EvictTarget, Evicted, SessionError};
pub use view::{MapRun, RunState, SessionView, StoreFigures, TierMap};

use crate::disk::Manifest;
use crate::index::{
    ArenaBudget, ArenaId, BlockToStore, Index, IndexOptions, LeaseError, LeaseId, Read, RestoreId,
};
use crate::key::{BLOCK_TOKENS, BlockKey, Fingerprint};
use crate::session::{SessionName, SessionTable, Turn};
use crate::tier::ByTier;
use prefixes::Prefix;
use reading::{Reading, Waiting};
use saving::Saving;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bounds and policy of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// What is written to disk.
    pub save: SavePolicy,
    /// Bytes that blocks and manifests may take on disk.
    pub disk_budget_bytes: u64,
    /// Bytes of one write, about: what a crash may lose beside what waits.
    pub write_batch_bytes: u64,
    /// Bytes that may wait to be written; what is over it is not written.
    pub unsaved_budget_bytes: u64,
    /// Sessions that are remembered.
    pub max_sessions: usize,
    /// Tokens that all sessions together may have.
    pub max_session_tokens: usize,
    /// Prefixes that are held for a while.
    pub max_prefixes: usize,
    /// Those of one tenant.
    pub max_tenant_prefixes: usize,
    /// How long a session is kept without use; `None`: for ever.
    pub session_ttl_ms: Option<u64>,
    /// A running request of a session has what it computed written after this time, and again each time it has passed.
    pub running_save_ms: u64,
}

/// A lease that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The caller's name for it, which comes back with the answer.
    pub ticket: u64,
    /// A model that was added.
    pub model: String,
    /// Whose; `""` for nobody in particular.
    pub tenant: String,
    /// The whole prompt.
    pub prompt: Arc<[u32]>,
    /// Tokens that the sequence may grow to, the prompt included.
    pub capacity_tokens: usize,
    /// Whether a session will have it.
    pub has_session: bool,
}

/// A lease that was granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// The name to commit and release under.
    pub lease: LeaseId,
    /// The block table: slot numbers in token order, for the whole capacity.
    pub blocks: Vec<u32>,
    /// Leading tokens whose KV is there, by where it was before; less than the prompt's length.
    pub cached: ByTier,
    /// Why it is not more.
    pub outcome: CacheOutcome,
}

/// What a session takes over from a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionUse {
    /// The session.
    pub name: SessionName,
    /// All tokens whose KV was computed, the tail included.
    pub tokens: Vec<u32>,
    /// Prompt tokens that came from the cache.
    pub hit_tokens: u64,
    /// Tokens drawn.
    pub sampled: u64,
}

/// What is to be done, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// The answer to a lease request.
    Leased {
        /// The request's.
        ticket: u64,
        /// The lease, or why there is none.
        result: Result<Granted, LeaseError>,
    },
    /// The device copies one block over another.
    Copy {
        /// The arena's model.
        model: String,
        /// Slot of the source.
        from: u32,
        /// Slot of the copy.
        to: u32,
    },
    /// Read blocks from disk and put them into slots; answered by [`KvStore::restored`].
    Restore {
        /// Names it.
        id: RestoreId,
        /// The arena's model.
        model: String,
        /// What goes where, first to last.
        reads: Vec<Read>,
    },
    /// Fetch blocks from the device, report [`KvStore::fetched`], write them and delete others in one transaction, report
    /// [`KvStore::written`].
    Write {
        /// Names it.
        id: WriteId,
        /// The arena's model; of no meaning without blocks.
        model: String,
        /// What to fetch and write.
        blocks: Vec<BlockToStore>,
        /// What to delete.
        delete: Vec<BlockKey>,
    },
    /// Switch manifests in one transaction, report [`KvStore::written`].
    WriteSessions {
        /// Names it.
        id: WriteId,
        /// New states.
        put: Vec<Manifest>,
        /// Sessions that are gone.
        remove: Vec<SessionName>,
    },
    /// The answer to a save request.
    Saved {
        /// The request's.
        ticket: u64,
        /// What is on disk now.
        outcome: SaveOutcome,
    },
}

#[derive(Debug)]
struct Model {
    arena: ArenaId,
    fingerprint: Fingerprint,
    budget: ArenaBudget,
    /// Prompt tokens a millisecond, as measured.
    compute_rate: Option<f64>,
}

/// What a live lease has computed so far.
#[derive(Debug)]
struct Held {
    model: String,
    root: BlockKey,
    /// Keys of its full blocks.
    keys: Vec<BlockKey>,
    has_session: bool,
    save_at_ms: u64,
}

/// The store.
#[derive(Debug)]
pub struct KvStore {
    options: StoreOptions,
    index: Index,
    models: BTreeMap<String, Model>,
    sessions: SessionTable,
    /// Those asked for longest ago first.
    prefixes: Vec<Prefix>,
    leases: BTreeMap<LeaseId, Held>,
    reading: Reading,
    saving: Saving,
    actions: Vec<Action>,
}

impl KvStore {
    /// An empty store, without a disk until [`KvStore::disk_ready`].
    pub fn new(options: StoreOptions) -> Self {
        let store_on_second_use = matches!(options.save, SavePolicy::Sessions | SavePolicy::SecondUse);
        Self {
            index: Index::new(IndexOptions { store_on_second_use }),
            models: BTreeMap::new(),
            sessions: SessionTable::new(options.max_sessions, options.max_session_tokens),
            prefixes: Vec::new(),
            leases: BTreeMap::new(),
            reading: Reading::default(),
            saving: Saving::default(),
            actions: Vec::new(),
            options,
        }
    }

    /// A model was loaded: its arena is empty.
    ///
    /// # Panics
    /// When it is there already.
    pub fn add_model(&mut self, name: &str, fingerprint: Fingerprint, budget: ArenaBudget) {
        let arena = self.index.add_arena(budget);
        let model = Model { arena, fingerprint, budget, compute_rate: None };
        let before = self.models.insert(name.to_owned(), model);
        assert!(before.is_none(), "a model is added once");
    }

    /// A model was unloaded: its arena is gone. What is on disk, and the sessions, stay.
    ///
    /// # Panics
    /// While it has leases.
    pub fn remove_model(&mut self, name: &str, now_ms: u64) -> Vec<Action> {
        if let Some(model) = self.models.get(name) {
            let arena = model.arena;
            self.give_up_restore(name, now_ms);
            self.models.remove(name);
            self.index.remove_arena(arena);
        }
        self.done()
    }

    /// Wants blocks for a sequence; answered by [`Action::Leased`], at once or after a read.
    ///
    /// # Panics
    /// When the model was not added.
    pub fn lease(&mut self, request: LeaseRequest, now_ms: u64) -> Vec<Action> {
        self.lease_or_read(request, now_ms);
        self.done()
    }

    /// The next block of a lease is full, with these tokens.
    pub fn commit(&mut self, lease: LeaseId, tokens: &[u32]) {
        self.index.commit(lease, tokens);
        let held = self.leases.get_mut(&lease).expect("commit names a live lease");
        let parent = held.keys.last().copied().unwrap_or(held.root);
        held.keys.push(parent.child(tokens));
    }

    /// Ends a lease; `tail` are its computed tokens after the last full block. What it computed stays until it is evicted;
    /// `keep`: it will be wanted again, so it is saved as a session's would be.
    pub fn release(
        &mut self,
        lease: LeaseId,
        tail: &[u32],
        session: Option<SessionUse>,
        keep: bool,
        now_ms: u64,
    ) -> Vec<Action> {
        let mut held = self.leases.remove(&lease).expect("release names a live lease");
        self.index.release(lease, tail, now_ms);
        match session {
            Some(SessionUse { name, tokens, hit_tokens, sampled }) if !tokens.is_empty() => {
                let full = held.keys.len() * BLOCK_TOKENS;
                assert_eq!(full + tail.len(), tokens.len(), "every full block was committed");
                let turn = Turn { model: &held.model, root: held.root, tokens: &tokens, hit_tokens, sampled };
                let forgotten = self.sessions.record(&name, &turn, now_ms);
                self.session_changed(&name, forgotten);
            }
            _ => {
                if !tail.is_empty() {
                    held.keys.push(held.keys.last().unwrap_or(&held.root).child(tail));
                }
                self.keep_unnamed(&held.keys, keep);
            }
        }
        self.save_prefixes(&held.keys);
        self.done()
    }

    /// Time has passed: sessions end, long requests are saved. Called every second or so.
    pub fn tick(&mut self, now_ms: u64) -> Vec<Action> {
        self.end_sessions(now_ms);
        self.end_prefixes(now_ms);
        self.save_running(now_ms);
        self.done()
    }

    /// What blocks and manifests may take on disk has changed: the disk itself may be getting full.
    pub fn set_disk_budget(&mut self, bytes: u64) {
        self.options.disk_budget_bytes = bytes;
    }

    /// Leases that have not been released.
    pub fn live_leases(&self) -> usize {
        self.leases.len()
    }

    /// Verifies all bookkeeping.
    ///
    /// # Errors
    /// The first broken invariant, in words.
    pub fn check(&self) -> Result<(), String> {
        self.index.check()
    }

    fn model(&self, name: &str) -> &Model {
        self.models.get(name).unwrap_or_else(|| panic!("model {name:?} was not added"))
    }

    fn model_of(&self, arena: ArenaId) -> Option<&str> {
        self.models.iter().find(|(_, model)| model.arena == arena).map(|(name, _)| name.as_str())
    }

    /// Takes blocks from memory for a request and answers it.
    fn grant(&mut self, waiting: Waiting, now_ms: u64) {
        let Waiting { request, note } = waiting;
        let LeaseRequest { ticket, model, tenant, prompt, capacity_tokens, has_session } = request;
        let Some(Model { arena, fingerprint, .. }) = self.models.get(&model) else {
            unreachable!("a model is removed when its leases are answered")
        };
        let root = BlockKey::root(*fingerprint, &tenant);
        let arena = *arena;
        let mut granted = self.index.lease(arena, root, &prompt, capacity_tokens, now_ms);
        if matches!(granted, Err(LeaseError::Pinned { .. })) && !self.prefixes.is_empty() {
            self.let_prefixes_go();
            granted = self.index.lease(arena, root, &prompt, capacity_tokens, now_ms);
        }
        let result = granted.map(|grant| {
            if let Some(copy) = grant.copy {
                self.actions.push(Action::Copy { model: model.clone(), from: copy.from, to: copy.to });
            }
            let cached = grant.cached.total() as usize;
            let keys: Vec<BlockKey> =
                crate::key::block_keys(root, &prompt[..cached / BLOCK_TOKENS * BLOCK_TOKENS]).collect();
            let save_at_ms = now_ms + self.options.running_save_ms;
            self.leases.insert(grant.lease, Held { model, root, keys, has_session, save_at_ms });
            let outcome = note.outcome(cached, prompt.len(), grant.near_miss);
            Granted { lease: grant.lease, blocks: grant.blocks, cached: grant.cached, outcome }
        });
        self.actions.push(Action::Leased { ticket, result });
    }

    /// Starts what the disk may do next, and hands out what has gathered.
    fn done(&mut self) -> Vec<Action> {
        self.disk_work();
        self.answer_saves();
        std::mem::take(&mut self.actions)
    }
}

impl Manifest {
    fn name(&self) -> SessionName {
        SessionName { tenant: self.tenant.clone(), id: self.id.clone() }
    }
}
