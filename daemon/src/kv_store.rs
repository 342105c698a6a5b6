//! The KV store actor: the only judge of what is resident. It owns the block ledger of each loaded model and the
//! table of sessions.
//!
//! The scheduler sends its operations in order, one batch at a time; each is bookkeeping in memory, so the actor
//! always answers at once.

mod figures;

pub(crate) use figures::{KvSnapshot, ModelFigures, SsdState, TierFigures};
#[cfg(test)]
pub(crate) use figures::{KvTotals, SsdFigures};

use crate::limits::{MAILBOX_MESSAGES, MAX_SESSIONS, TICK};
use crate::pulse::{AliveGuard, Organ, Pulses};
use crate::scheduler::core::{CacheOutcome, CacheReport, Lease, NoLease, Uptime};
use crate::scheduler::plan::{ModelName, SequenceId};
use actix::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use zllm_state::{
    BlockFigures, BlockLedger, ByTier, Fingerprint, LeaseError, LeaseId, Session, SessionId, SessionTable,
};

/// The actor.
pub(crate) struct KvStoreActor {
    models: BTreeMap<ModelName, ModelBlocks>,
    sessions: SessionTable,
    pulses: Pulses,
    _alive: AliveGuard,
}

struct ModelBlocks {
    fingerprint: Fingerprint,
    ledger: BlockLedger,
}

/// A model was loaded: its arena is empty.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct AddModel {
    pub(crate) model: ModelName,
    pub(crate) fingerprint: [u8; 32],
    pub(crate) blocks: u32,
    pub(crate) block_bytes: u64,
}

/// A model is about to be unloaded; no lease is left on it. Answered when what is worth keeping of it is safe.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct CloseModel(pub(crate) ModelName);

/// The process is about to end and no lease is left. Answered when what is worth keeping is safe, or at the deadline.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct SaveAll {
    pub(crate) deadline: Uptime,
}

/// A model was unloaded: its arena is gone. No lease may be left on it.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct RemoveModel(pub(crate) ModelName);

/// One operation of the scheduler.
#[derive(Debug)]
#[allow(dead_code, reason = "a store in memory alone has no use for the rest")]
pub(crate) enum KvOp {
    Lease {
        sequence: SequenceId,
        model: ModelName,
        /// Whose KV it may share; empty for the common one.
        tenant: String,
        prompt: Arc<[u32]>,
        capacity_tokens: usize,
    },
    /// A job with this prompt will ask for a lease: bring nearer what is kept of it.
    Prefetch { model: ModelName, tenant: String, prompt: Arc<[u32]> },
    /// The next block of a lease is full, with these tokens.
    Commit { model: ModelName, lease: LeaseId, tokens: Vec<u32> },
    /// A lease ends; `tail` are its computed tokens after the last full block.
    Release { model: ModelName, lease: LeaseId, tail: Vec<u32>, session: Option<SessionUse> },
    /// A step has computed so many prompt tokens in that time.
    Measured { model: ModelName, tokens: usize, took: Duration },
}

/// What a request leaves on its session.
#[derive(Debug)]
#[allow(dead_code, reason = "a store in memory alone has no use for the rest")]
pub(crate) struct SessionUse {
    pub(crate) tenant: String,
    pub(crate) id: SessionId,
    /// All tokens whose KV was computed, the tail included.
    pub(crate) tokens: Vec<u32>,
    pub(crate) hit_tokens: u64,
    /// Tokens generated in this answer: the position of the sampler's next draw.
    pub(crate) sampled: u64,
    pub(crate) now_ms: u64,
}

/// Where a lease is answered, sooner or later: once, on every path.
pub(crate) type LeaseAnswer = oneshot::Receiver<Result<Lease, NoLease>>;

/// Operations, begun in order; the answer has one entry for each lease among them.
#[derive(Message)]
#[rtype(result = "Vec<(SequenceId, LeaseAnswer)>")]
pub(crate) struct Apply(pub(crate) Vec<KvOp>);

/// What to evict.
#[derive(Message)]
#[rtype(result = "Option<Evicted>")]
pub(crate) enum Evict {
    /// Everything that is cached; leases stay.
    All,
    /// One session and the blocks that only it uses; `None` when there is no such session.
    Session(SessionId),
}

/// What was evicted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Evicted {
    pub(crate) sessions: u32,
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
}

/// Asks for a [`KvSnapshot`].
#[derive(Message)]
#[rtype(result = "KvSnapshot")]
pub(crate) struct Snapshot;

/// Asks for sessions: one, or all.
#[derive(Message)]
#[rtype(result = "Vec<SessionRow>")]
pub(crate) struct Sessions(pub(crate) Option<SessionId>);

/// A session and what of it is on the device.
#[derive(Debug, Clone)]
pub(crate) struct SessionRow {
    pub(crate) id: SessionId,
    pub(crate) model: String,
    pub(crate) tokens: u64,
    pub(crate) last_use_ms: u64,
    pub(crate) resident_blocks: u64,
    pub(crate) resident_bytes: u64,
    pub(crate) turns: u64,
    pub(crate) hit_tokens: u64,
}

impl KvStoreActor {
    pub(crate) fn spawn(pulses: Pulses) -> Addr<Self> {
        Self::create(|ctx| {
            ctx.set_mailbox_capacity(MAILBOX_MESSAGES);
            let alive = pulses.guard(Organ::KvStore);
            Self { models: BTreeMap::new(), sessions: SessionTable::new(MAX_SESSIONS), pulses, _alive: alive }
        })
    }

    fn model(&mut self, model: &ModelName) -> &mut ModelBlocks {
        self.models.get_mut(model).expect("the scheduler works with loaded models only")
    }

    fn lease(&mut self, model: &ModelName, prompt: &[u32], capacity_tokens: usize) -> Result<Lease, NoLease> {
        match self.model(model).ledger.lease(prompt, capacity_tokens) {
            Ok(grant) => {
                let cached = ByTier { device: grant.cached_tokens as u64, ..ByTier::default() };
                let outcome = match cached.device {
                    0 => CacheOutcome::Nothing,
                    all if all + 1 == prompt.len() as u64 => CacheOutcome::Whole,
                    kept_tokens => CacheOutcome::Ended { kept_tokens },
                };
                let blocks = grant.blocks.iter().map(|block| block.0).collect();
                Ok(Lease { id: grant.lease, blocks, cache: CacheReport { cached, outcome } })
            }
            Err(LeaseError::NotNow { .. }) => Err(NoLease::NotNow),
            Err(error @ LeaseError::NeverFits { .. }) => Err(NoLease::Never(error.to_string())),
        }
    }

    fn release(&mut self, model: &ModelName, lease: LeaseId, session: Option<SessionUse>) {
        let blocks = self.model(model);
        blocks.ledger.release(lease);
        if cfg!(debug_assertions) {
            blocks.ledger.check().expect("the ledger's invariants hold");
        }
        let fingerprint = blocks.fingerprint;
        if let Some(SessionUse { id, tokens, hit_tokens, now_ms, .. }) = session {
            self.sessions.record(&id, model, fingerprint, &tokens, hit_tokens, now_ms);
        }
    }

    fn evict_all(&mut self) -> Evicted {
        let resident = |models: &BTreeMap<ModelName, ModelBlocks>, session: &Session| {
            models.get(&*session.model).map_or(0, |model| model.ledger.resident_blocks(&session.keys))
        };
        let before: Vec<u32> =
            self.sessions.iter().map(|(_, session)| resident(&self.models, session)).collect();
        let mut evicted = Evicted::default();
        for model in self.models.values_mut() {
            let blocks = u64::from(model.ledger.evict_cached());
            evicted.blocks += blocks;
            evicted.bytes += blocks * model.ledger.figures().block_bytes;
        }
        let after = self.sessions.iter().map(|(_, session)| resident(&self.models, session));
        evicted.sessions = before.iter().zip(after).filter(|&(&before, after)| after < before).count() as u32;
        evicted
    }

    fn evict_session(&mut self, id: &SessionId) -> Option<Evicted> {
        let session = self.sessions.remove(id)?;
        let mut evicted = Evicted { sessions: 1, ..Evicted::default() };
        if let Some(model) = self.models.get_mut(&*session.model) {
            evicted.blocks = u64::from(model.ledger.evict_chains(session.keys.iter().chain(&session.left)));
            evicted.bytes = evicted.blocks * model.ledger.figures().block_bytes;
        }
        Some(evicted)
    }

    fn row(&self, id: &SessionId, session: &Session) -> SessionRow {
        let (resident_blocks, resident_bytes) = self.models.get(&*session.model).map_or((0, 0), |model| {
            let blocks = u64::from(model.ledger.resident_blocks(&session.keys));
            (blocks, blocks * model.ledger.figures().block_bytes)
        });
        SessionRow {
            id: id.clone(),
            model: session.model.clone(),
            tokens: session.tokens,
            last_use_ms: session.last_use_ms,
            resident_blocks,
            resident_bytes,
            turns: session.turns,
            hit_tokens: session.hit_tokens,
        }
    }
}

impl Actor for KvStoreActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(TICK, |actor, _| actor.pulses.beat(Organ::KvStore));
    }
}

impl Handler<AddModel> for KvStoreActor {
    type Result = ();

    fn handle(&mut self, message: AddModel, _: &mut Self::Context) {
        let AddModel { model, fingerprint, blocks, block_bytes } = message;
        let fingerprint = Fingerprint(fingerprint);
        let ledger = BlockLedger::new(fingerprint, blocks, block_bytes);
        let before = self.models.insert(model, ModelBlocks { fingerprint, ledger });
        assert!(before.is_none(), "a model is added once");
    }
}

impl Handler<CloseModel> for KvStoreActor {
    type Result = ();

    fn handle(&mut self, CloseModel(model): CloseModel, _: &mut Self::Context) {
        assert_eq!(self.model(&model).ledger.live_leases(), 0, "a model is closed when its jobs have ended");
    }
}

impl Handler<SaveAll> for KvStoreActor {
    type Result = ();

    fn handle(&mut self, SaveAll { deadline }: SaveAll, _: &mut Self::Context) {
        tracing::debug!(?deadline, "what is in memory goes with it");
    }
}

impl Handler<RemoveModel> for KvStoreActor {
    type Result = ();

    fn handle(&mut self, RemoveModel(model): RemoveModel, _: &mut Self::Context) {
        if let Some(blocks) = self.models.remove(&model) {
            assert_eq!(blocks.ledger.live_leases(), 0, "a model is removed when its jobs have ended");
        }
        self.sessions.remove_model(&model);
    }
}

impl Handler<Apply> for KvStoreActor {
    type Result = MessageResult<Apply>;

    fn handle(&mut self, Apply(ops): Apply, _: &mut Self::Context) -> Self::Result {
        let mut answers = Vec::new();
        for op in ops {
            match op {
                KvOp::Lease { sequence, model, prompt, capacity_tokens, .. } => {
                    let (answer, lease) = oneshot::channel();
                    // The other end is at hand.
                    let _ = answer.send(self.lease(&model, &prompt, capacity_tokens));
                    answers.push((sequence, lease));
                }
                // Everything is in memory already.
                KvOp::Prefetch { .. } | KvOp::Measured { .. } => {}
                KvOp::Commit { model, lease, tokens } => {
                    self.model(&model).ledger.commit(lease, &tokens);
                }
                KvOp::Release { model, lease, session, .. } => self.release(&model, lease, session),
            }
        }
        self.pulses.beat(Organ::KvStore);
        MessageResult(answers)
    }
}

impl Handler<Evict> for KvStoreActor {
    type Result = Option<Evicted>;

    fn handle(&mut self, message: Evict, _: &mut Self::Context) -> Self::Result {
        match message {
            Evict::All => Some(self.evict_all()),
            Evict::Session(id) => self.evict_session(&id),
        }
    }
}

impl Handler<Snapshot> for KvStoreActor {
    type Result = MessageResult<Snapshot>;

    fn handle(&mut self, _: Snapshot, _: &mut Self::Context) -> Self::Result {
        let figures = |model: &ModelBlocks| {
            let BlockFigures {
                used_blocks: used, cached_blocks: cached, free_blocks: free, block_bytes, ..
            } = model.ledger.figures();
            ModelFigures {
                block_bytes,
                device: TierFigures { used, cached, free },
                ..ModelFigures::default()
            }
        };
        let models = self.models.iter().map(|(name, model)| (name.clone(), figures(model))).collect();
        let sessions = self.sessions.iter().count();
        MessageResult(KvSnapshot { models, sessions, ..KvSnapshot::default() })
    }
}

impl Handler<Sessions> for KvStoreActor {
    type Result = MessageResult<Sessions>;

    fn handle(&mut self, Sessions(which): Sessions, _: &mut Self::Context) -> Self::Result {
        MessageResult(match which {
            Some(id) => self.sessions.get(&id).map(|session| self.row(&id, session)).into_iter().collect(),
            None => self.sessions.iter().map(|(id, session)| self.row(id, session)).collect(),
        })
    }
}
