//! What the KV store actor is asked, and its answers.

use super::{KvSnapshot, KvStoreActor};
use crate::clock::Uptime;
use crate::limits::{CHECK_TIMEOUT, CLOSE_TIMEOUT};
use crate::pulse::Organ;
use crate::scheduler::core::{Lease, NoLease};
use crate::scheduler::plan::{ModelName, SequenceId};
use actix::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use zllm_state::{
    ArenaBudget, CheckReport, EvictTarget, Evicted, Fingerprint, LeaseId, LeaseRequest, SaveOutcome,
    SessionError, SessionName, SessionView, Tier, TierMap, disk_bytes, smallest_budget,
};

/// Opens the KV database; answered when it is open or known not to be.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct OpenDisk;

/// A model was loaded: its arena is empty.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct AddModel {
    pub(crate) model: ModelName,
    pub(crate) fingerprint: [u8; 32],
    pub(crate) device_blocks: u32,
    pub(crate) ram_blocks: u32,
    pub(crate) block_bytes: u64,
}

/// A model is about to be unloaded; no lease is left on it. Answered when what is worth keeping of it is safe.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct CloseModel;

/// A model is unloaded next: nothing more is asked of its arena. No lease may be left on it.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct RemoveModel(pub(crate) ModelName);

/// The process is about to end and no lease is left. Answered when what is worth keeping is safe, or at the deadline.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct SaveAll {
    pub(crate) deadline: Uptime,
}

/// One operation of the scheduler.
#[derive(Debug)]
pub(crate) enum KvOp {
    Lease {
        sequence: SequenceId,
        model: ModelName,
        /// Whose KV it may share; empty for the common one.
        tenant: String,
        prompt: Arc<[u32]>,
        capacity_tokens: usize,
        /// Whether a session will have what it computes.
        has_session: bool,
    },
    /// A job with this prompt will ask for a lease: bring nearer what is kept of it.
    Prefetch { model: ModelName, tenant: String, prompt: Arc<[u32]> },
    /// The next block of a lease is full, with these tokens.
    Commit { lease: LeaseId, tokens: Vec<u32> },
    /// A lease ends; `tail` are its computed tokens after the last full block. `keep`: they are wanted again, so what leaves
    /// memory is to be on SSD.
    Release { lease: LeaseId, tail: Vec<u32>, session: Option<zllm_state::SessionUse>, keep: bool },
    /// A step has computed so many prompt tokens in that time.
    Measured { model: ModelName, tokens: usize, took: Duration },
}

/// Where a lease is answered, sooner or later: once, on every path.
pub(crate) type LeaseAnswer = oneshot::Receiver<Result<Lease, NoLease>>;

/// Operations, begun in order; the answer has one entry for each lease among them.
#[derive(Message)]
#[rtype(result = "Vec<(SequenceId, LeaseAnswer)>")]
pub(crate) struct Apply(pub(crate) Vec<KvOp>);

/// Evicts from one tier, or from all.
#[derive(Message)]
#[rtype(result = "Result<Evicted, SessionError>")]
pub(crate) struct Evict {
    pub(crate) target: EvictTarget,
    pub(crate) tier: Option<Tier>,
}

/// Makes a session of the first tokens of another.
#[derive(Message)]
#[rtype(result = "Result<SessionView, SessionError>")]
pub(crate) struct Fork {
    pub(crate) from: SessionName,
    pub(crate) to: SessionName,
    pub(crate) tokens: Option<u64>,
}

/// Pins a session or lets go of it.
#[derive(Message)]
#[rtype(result = "Result<(), SessionError>")]
pub(crate) struct Pin {
    pub(crate) session: SessionName,
    pub(crate) pinned: bool,
}

/// Sets how long a session is kept without use; `None`: as the configuration says.
#[derive(Message)]
#[rtype(result = "Result<(), SessionError>")]
pub(crate) struct SetTtl {
    pub(crate) session: SessionName,
    pub(crate) ttl_ms: Option<u64>,
}

/// Pins the first tokens of a prompt until a time, in milliseconds since the Unix epoch: for each as many as said. Whether
/// each is held.
#[derive(Message)]
#[rtype(result = "Vec<bool>")]
pub(crate) struct HoldPrefixes {
    pub(crate) model: ModelName,
    pub(crate) tenant: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) prefixes: Vec<(usize, u64)>,
}

/// Saves one session, or all; answered when they are on disk.
#[derive(Message)]
#[rtype(result = "Result<SaveOutcome, SessionError>")]
pub(crate) struct Save(pub(crate) Option<SessionName>);

/// Verifies every checksum and reference of the KV database.
#[derive(Message)]
#[rtype(result = "Checked")]
pub(crate) struct CheckDisk;

/// What a check found, and how long it took; or why there was none.
pub(crate) type Checked = Result<(CheckReport, Duration), String>;

/// The tokens of a session, for a model to go on with.
#[derive(Message)]
#[rtype(result = "Result<Arc<[u32]>, SessionError>")]
pub(crate) struct ContinueSession {
    pub(crate) session: SessionName,
    pub(crate) model: ModelName,
}

/// One session in full.
#[derive(Message)]
#[rtype(result = "Option<SessionView>")]
pub(crate) struct SessionDetails(pub(crate) SessionName);

/// All sessions, without what they share.
#[derive(Message)]
#[rtype(result = "Vec<(SessionName, SessionView)>")]
pub(crate) struct Sessions;

/// A map of each tier, and the sessions that the maps name by number.
#[derive(Message)]
#[rtype(result = "(Vec<TierMap>, Vec<SessionName>)")]
pub(crate) struct Residency;

/// Asks for a [`KvSnapshot`].
#[derive(Message)]
#[rtype(result = "KvSnapshot")]
pub(crate) struct Snapshot;

impl KvStoreActor {
    fn apply(&mut self, op: KvOp, answers: &mut Vec<(SequenceId, LeaseAnswer)>, ctx: &mut Context<Self>) {
        let now_ms = self.clock.unix_ms();
        let actions = match op {
            KvOp::Lease { sequence, .. } if self.is_device_behind() => {
                let (answer, lease) = oneshot::channel();
                answers.push((sequence, lease));
                let _ = answer.send(Err(NoLease::NotNow));
                Vec::new()
            }
            KvOp::Lease { sequence, model, tenant, prompt, capacity_tokens, has_session } => {
                let ticket = self.ticket();
                let (answer, lease) = oneshot::channel();
                self.leases.insert(ticket, answer);
                answers.push((sequence, lease));
                let model = model.to_string();
                let request = LeaseRequest { ticket, model, tenant, prompt, capacity_tokens, has_session };
                self.store.lease(request, now_ms)
            }
            KvOp::Prefetch { model, tenant, prompt } => self.store.prefetch(&model, &tenant, &prompt, now_ms),
            KvOp::Commit { lease, tokens } => {
                self.store.commit(lease, &tokens);
                Vec::new()
            }
            KvOp::Release { lease, tail, session, keep } => {
                self.store.release(lease, &tail, session, keep, now_ms)
            }
            KvOp::Measured { model, tokens, took } => {
                self.store.measured(&model, tokens, took.as_secs_f64() * 1e3);
                Vec::new()
            }
        };
        self.carry_out(actions, ctx);
    }

    /// Asks for everything worth keeping to be saved; hears when it is.
    fn save_everything(&mut self, ctx: &mut Context<Self>) -> oneshot::Receiver<SaveOutcome> {
        let (heard, saved) = oneshot::channel();
        let ticket = self.ticket();
        self.saves.insert(ticket, heard);
        let actions = self.store.save_worthy(ticket);
        self.carry_out(actions, ctx);
        saved
    }
}

impl Handler<OpenDisk> for KvStoreActor {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, _: OpenDisk, _: &mut Self::Context) -> Self::Result {
        self.open_disk()
    }
}

impl Handler<AddModel> for KvStoreActor {
    type Result = ();

    fn handle(&mut self, message: AddModel, _: &mut Self::Context) {
        let AddModel { model, fingerprint, device_blocks, ram_blocks, block_bytes } = message;
        let (stored_bytes, needed_bytes) = (disk_bytes(block_bytes), smallest_budget(block_bytes));
        if let Some(ssd) = self.disk.settings().filter(|ssd| ssd.budget_bytes < needed_bytes) {
            let budget_bytes = ssd.budget_bytes;
            tracing::warn!(%model, budget_bytes, needed_bytes, "kv.ssd_budget is too small for this model's KV");
        }
        let budget = ArenaBudget { device_blocks, ram_blocks, block_bytes, stored_bytes };
        self.store.add_model(&model, Fingerprint(fingerprint), budget);
    }
}

impl Handler<CloseModel> for KvStoreActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: CloseModel, ctx: &mut Self::Context) -> Self::Result {
        let saved = self.save_everything(ctx);
        Box::pin(async move {
            // What is not saved by then is computed again when it is wanted.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, saved).await;
        })
    }
}

impl Handler<RemoveModel> for KvStoreActor {
    type Result = ();

    fn handle(&mut self, RemoveModel(model): RemoveModel, ctx: &mut Self::Context) {
        let actions = self.store.remove_model(&model, self.clock.unix_ms());
        self.carry_out(actions, ctx);
    }
}

impl Handler<SaveAll> for KvStoreActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, SaveAll { deadline }: SaveAll, ctx: &mut Self::Context) -> Self::Result {
        if self.disk.settings().is_none() {
            return Box::pin(std::future::ready(()));
        }
        let unsaved_bytes = self.store.figures().unsaved_bytes;
        let saved = self.save_everything(ctx);
        let time = deadline.saturating_sub(self.clock.now());
        Box::pin(async move {
            match tokio::time::timeout(time, saved).await {
                Ok(Ok(SaveOutcome::Done { sessions, blocks, bytes })) => {
                    tracing::info!(sessions, blocks, bytes, "saved");
                }
                Ok(Ok(SaveOutcome::Failed { reason })) => tracing::info!(reason, "not saved"),
                Ok(Err(_)) => {}
                Err(_) => tracing::warn!(unsaved_bytes, "the time to save is over"),
            }
        })
    }
}

impl Handler<Apply> for KvStoreActor {
    type Result = MessageResult<Apply>;

    fn handle(&mut self, Apply(ops): Apply, ctx: &mut Self::Context) -> Self::Result {
        let mut answers = Vec::new();
        for op in ops {
            self.apply(op, &mut answers, ctx);
        }
        self.pulses.beat(Organ::KvStore);
        MessageResult(answers)
    }
}

impl Handler<Evict> for KvStoreActor {
    type Result = Result<Evicted, SessionError>;

    fn handle(&mut self, Evict { target, tier }: Evict, ctx: &mut Self::Context) -> Self::Result {
        let (evicted, actions) = self.store.evict(&target, tier, self.clock.unix_ms())?;
        self.carry_out(actions, ctx);
        Ok(evicted)
    }
}

impl Handler<Fork> for KvStoreActor {
    type Result = Result<SessionView, SessionError>;

    fn handle(&mut self, Fork { from, to, tokens }: Fork, ctx: &mut Self::Context) -> Self::Result {
        let actions = self.store.fork(&from, &to, tokens, self.clock.unix_ms())?;
        self.carry_out(actions, ctx);
        self.store.session_view(&to).ok_or(SessionError::NotFound { id: to.to_string() })
    }
}

impl Handler<Pin> for KvStoreActor {
    type Result = Result<(), SessionError>;

    fn handle(&mut self, Pin { session, pinned }: Pin, ctx: &mut Self::Context) -> Self::Result {
        let actions = self.store.pin(&session, pinned)?;
        self.carry_out(actions, ctx);
        Ok(())
    }
}

impl Handler<SetTtl> for KvStoreActor {
    type Result = Result<(), SessionError>;

    fn handle(&mut self, SetTtl { session, ttl_ms }: SetTtl, ctx: &mut Self::Context) -> Self::Result {
        let actions = self.store.set_ttl(&session, ttl_ms)?;
        self.carry_out(actions, ctx);
        Ok(())
    }
}

impl Handler<HoldPrefixes> for KvStoreActor {
    type Result = Vec<bool>;

    fn handle(&mut self, message: HoldPrefixes, ctx: &mut Self::Context) -> Self::Result {
        let HoldPrefixes { model, tenant, tokens, prefixes } = message;
        let mut hold = |(length, until_ms): (usize, u64)| {
            let (held, actions) = self.store.hold_prefix(&model, &tenant, &tokens[..length], until_ms);
            self.carry_out(actions, ctx);
            held
        };
        prefixes.into_iter().map(&mut hold).collect()
    }
}

impl Handler<Save> for KvStoreActor {
    type Result = ResponseFuture<Result<SaveOutcome, SessionError>>;

    fn handle(&mut self, Save(session): Save, ctx: &mut Self::Context) -> Self::Result {
        if let Some(name) = session.as_ref().filter(|name| self.store.session(name).is_none()) {
            let missing = SessionError::NotFound { id: name.to_string() };
            return Box::pin(std::future::ready(Err(missing)));
        }
        let (heard, saved) = oneshot::channel();
        let ticket = self.ticket();
        self.saves.insert(ticket, heard);
        let actions = self.store.save(ticket, session.as_ref());
        self.carry_out(actions, ctx);
        Box::pin(async move {
            let ending = SaveOutcome::Failed { reason: "the daemon is ending".to_owned() };
            Ok(saved.await.unwrap_or(ending))
        })
    }
}

impl Handler<CheckDisk> for KvStoreActor {
    type Result = ResponseFuture<Checked>;

    fn handle(&mut self, _: CheckDisk, _: &mut Self::Context) -> Self::Result {
        if let Some(trouble) = self.disk.trouble() {
            return Box::pin(std::future::ready(Err(format!(
                "the KV database cannot be used now: {trouble}"
            ))));
        }
        if self.disk.settings().is_none() {
            return Box::pin(std::future::ready(Err("the KV database is off (kv.ssd_budget)".to_owned())));
        }
        let clock = self.clock;
        let started = clock.now();
        let checking = self.disk.run(|disk| disk.check());
        Box::pin(async move {
            match tokio::time::timeout(CHECK_TIMEOUT, checking).await {
                Ok(Ok(report)) => Ok((report, clock.now() - started)),
                Ok(Err(failed)) => Err(format!("the KV database cannot be read: {failed}")),
                Err(_) => Err(format!("the check is not done after {} s", CHECK_TIMEOUT.as_secs())),
            }
        })
    }
}

impl Handler<ContinueSession> for KvStoreActor {
    type Result = Result<Arc<[u32]>, SessionError>;

    fn handle(&mut self, message: ContinueSession, _: &mut Self::Context) -> Self::Result {
        self.store.continue_session(&message.session, &message.model)
    }
}

impl Handler<SessionDetails> for KvStoreActor {
    type Result = MessageResult<SessionDetails>;

    fn handle(&mut self, SessionDetails(name): SessionDetails, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.store.session_view(&name))
    }
}

impl Handler<Sessions> for KvStoreActor {
    type Result = MessageResult<Sessions>;

    fn handle(&mut self, _: Sessions, _: &mut Self::Context) -> Self::Result {
        let rows =
            self.store.sessions().map(|(name, session)| (name.clone(), self.store.brief_view(session)));
        MessageResult(rows.collect())
    }
}

impl Handler<Residency> for KvStoreActor {
    type Result = MessageResult<Residency>;

    fn handle(&mut self, _: Residency, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.store.residency(self.clock.unix_ms()))
    }
}

impl Handler<Snapshot> for KvStoreActor {
    type Result = MessageResult<Snapshot>;

    fn handle(&mut self, _: Snapshot, _: &mut Self::Context) -> Self::Result {
        let (ssd, trouble) = (self.disk.settings(), self.disk.trouble());
        let file = (self.disk.file_bytes(), self.disk.limit_bytes());
        MessageResult(KvSnapshot::new(self.store.figures(), ssd, trouble, file))
    }
}
