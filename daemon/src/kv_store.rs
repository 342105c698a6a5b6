//! The KV store actor: carries messages into the pure [`KvStore`] of the `state` library and its actions out. It is the only
//! judge of what is resident and the only writer of the KV database; device threads and blocking threads are its hands.
//!
//! Invariants: it always answers at once, or when the disk has, within [`READ_TIMEOUT`]. What a device is told (puts, copies)
//! is in the device's queue before the lease that relies on it is answered, and the device works in order. A disk
//! that fails or hangs is given up and tried again later; until then everything goes on from memory.

mod disk;
mod figures;
mod messages;

pub(crate) use figures::{KvSnapshot, ModelFigures, SsdState, TierFigures};
#[cfg(test)]
pub(crate) use figures::{KvTotals, SsdFigures};
pub(crate) use messages::{
    AddModel, Apply, CheckDisk, CloseModel, ContinueSession, Evict, Fork, HoldPrefixes, KvOp, OpenDisk, Pin,
    RemoveModel, Residency, Save, SaveAll, SessionDetails, Sessions, SetTtl, Snapshot,
};

use crate::clock::Clock;
use crate::config::{KvSettings, SavePolicy};
use crate::device::Devices;
use crate::limits::{
    MAILBOX_MESSAGES, MAX_HELD_PREFIXES, MAX_RUNNING_JOBS, MAX_SESSION_TOKENS, MAX_SESSIONS,
    READ_BATCH_BYTES, READ_TIMEOUT, TICK, WRITE_TIMEOUT,
};
use crate::pulse::{AliveGuard, Organ, Pulses};
use crate::scheduler::core::{CacheReport, Lease, NoLease};
use actix::prelude::*;
use disk::{Disk, DiskTask, Failed};
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::oneshot;
use zllm_state::{
    Action, BlockKey, BlockToStore, Granted, KvStore, LeaseError, Manifest, Read, ReadOutcome, RestoreId,
    SaveOutcome, SessionName, StoreOptions, WriteId,
};

/// The actor.
pub(crate) struct KvStoreActor {
    store: KvStore,
    disk: Disk,
    devices: Devices,
    clock: Clock,
    leases: HashMap<u64, oneshot::Sender<Result<Lease, NoLease>>>,
    saves: HashMap<u64, oneshot::Sender<SaveOutcome>>,
    /// Copies of blocks that the device was sent and has not answered.
    copies: usize,
    next_ticket: u64,
    next_tick: Duration,
    /// Blocks that the disk had no room for, as last told, and when that may be told again.
    refused: (u64, Duration),
    pulses: Pulses,
    _alive: AliveGuard,
}

/// Blocks on their way from disk into their slots, as far as they are.
struct Restore {
    id: RestoreId,
    model: String,
    /// What goes where, first to last.
    reads: Vec<Read>,
    /// How many of them are in their slots.
    ready: usize,
    started: Duration,
}

/// How often sessions' times and long requests are looked at.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// A disk that stays full is told of so often at most.
const REFUSED_INTERVAL: Duration = Duration::from_secs(300);

impl KvStoreActor {
    pub(crate) fn spawn(settings: KvSettings, devices: Devices, clock: Clock, pulses: Pulses) -> Addr<Self> {
        Self::create(|ctx| {
            ctx.set_mailbox_capacity(MAILBOX_MESSAGES);
            let alive = pulses.guard(Organ::KvStore);
            let options = StoreOptions {
                save: match settings.save {
                    _ if settings.ssd.is_none() => zllm_state::SavePolicy::Never,
                    SavePolicy::Sessions => zllm_state::SavePolicy::Sessions,
                    SavePolicy::SecondUse => zllm_state::SavePolicy::SecondUse,
                    SavePolicy::All => zllm_state::SavePolicy::All,
                    SavePolicy::Never => zllm_state::SavePolicy::Never,
                },
                disk_budget_bytes: 0,
                write_batch_bytes: crate::limits::WRITE_BATCH_BYTES,
                unsaved_budget_bytes: settings.unsaved_budget_bytes,
                max_sessions: MAX_SESSIONS,
                max_session_tokens: MAX_SESSION_TOKENS,
                max_prefixes: MAX_HELD_PREFIXES,
                max_tenant_prefixes: crate::limits::MAX_TENANT_PREFIXES,
                session_ttl_ms: settings.session_ttl.map(|ttl| ttl.as_millis() as u64),
                running_save_ms: crate::limits::RUNNING_SAVE.as_millis() as u64,
            };
            Self {
                store: KvStore::new(options),
                disk: Disk::new(settings.ssd),
                devices,
                clock,
                leases: HashMap::new(),
                saves: HashMap::new(),
                copies: 0,
                next_ticket: 0,
                next_tick: Duration::ZERO,
                refused: (0, Duration::ZERO),
                pulses,
                _alive: alive,
            }
        })
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    fn carry_out(&mut self, actions: Vec<Action>, ctx: &mut Context<Self>) {
        for action in actions {
            match action {
                Action::Leased { ticket, result } => self.answer_lease(ticket, result),
                Action::Copy { model, from, to } => self.copy(model, from, to, ctx),
                Action::Restore { id, model, reads } => {
                    let started = self.clock.now();
                    self.restore(Restore { id, model, reads, ready: 0, started }, ctx);
                }
                Action::Write { id, model, blocks, delete } => self.write(id, model, blocks, delete, ctx),
                Action::WriteSessions { id, put, remove } => self.write_sessions(id, put, remove, ctx),
                Action::Saved { ticket, outcome } => {
                    if let Some(waiting) = self.saves.remove(&ticket) {
                        let _ = waiting.send(outcome);
                    }
                }
            }
        }
    }

    fn answer_lease(&mut self, ticket: u64, result: Result<Granted, LeaseError>) {
        let result = match result {
            Ok(Granted { lease, blocks, cached, outcome }) => {
                Ok(Lease { id: lease, blocks: blocks.into(), cache: CacheReport { cached, outcome } })
            }
            Err(LeaseError::NotNow { .. }) => Err(NoLease::NotNow),
            Err(error @ (LeaseError::NeverFits { .. } | LeaseError::Pinned { .. })) => {
                Err(NoLease::Never(error.to_string()))
            }
        };
        let waiting = self.leases.remove(&ticket).expect("each request is answered once");
        // Nobody waits any more when the scheduler has died; the process is about to end.
        let _ = waiting.send(result);
    }

    /// Whether the device has as many copies waiting as its queue was made for. A lease may need one more.
    fn is_device_behind(&self) -> bool {
        self.copies >= MAX_RUNNING_JOBS
    }

    /// The device's queue takes the copy before anything that follows from the lease.
    fn copy(&mut self, model: String, from: u32, to: u32, ctx: &mut Context<Self>) {
        self.copies += 1;
        let copying = self.devices.copy(&model.as_str().into(), from, to);
        ctx.spawn(copying.into_actor(self).map(|answer, actor, _| match answer {
            Ok(()) => actor.copies -= 1,
            Err(message) => panic!("the device does not copy a block: {message}"),
        }));
    }

    /// Reads the next blocks of a restore. A few at a time: what is on its way counts in no budget.
    fn restore(&mut self, restore: Restore, ctx: &mut Context<Self>) {
        let keys: Vec<BlockKey> = restore.reads[restore.ready..].iter().map(|read| read.key).collect();
        let reading = self.disk.run(move |disk| disk::read_some(disk, &keys, READ_BATCH_BYTES));
        let reading = async move { tokio::time::timeout(READ_TIMEOUT, reading).await };
        ctx.spawn(reading.into_actor(self).map(move |result, actor, ctx| match result {
            Ok(Ok((blocks, next_is_bad))) => actor.put(restore, blocks, next_is_bad, ctx),
            Ok(Err(failed)) => actor.give_up_disk(failed, ctx),
            Err(_) => {
                let failed = actor.disk.hung("read", READ_TIMEOUT);
                actor.give_up_disk(failed, ctx);
            }
        }));
    }

    fn put(
        &mut self,
        mut restore: Restore,
        blocks: Vec<Vec<u8>>,
        next_is_bad: bool,
        ctx: &mut Context<Self>,
    ) {
        if !self.store.is_restoring(restore.id) {
            return;
        }
        let count = blocks.len();
        let slots = restore.reads[restore.ready..].iter().map(|read| read.slot);
        let blocks = slots.zip(blocks).collect();
        let putting = self.devices.put(&restore.model.as_str().into(), blocks);
        ctx.spawn(putting.into_actor(self).map(move |done, actor, ctx| {
            let damaged = match done {
                Ok(()) => {
                    restore.ready += count;
                    usize::from(next_is_bad)
                }
                Err(message) => {
                    tracing::warn!(
                        restore.model,
                        reason = message,
                        "blocks that were read do not fit the device"
                    );
                    count
                }
            };
            if damaged == 0 && restore.ready < restore.reads.len() {
                return actor.restore(restore, ctx);
            }
            if damaged > 0 {
                tracing::warn!(restore.model, "a KV block on disk is damaged or gone; it is computed again");
            }
            let mut outcomes = vec![ReadOutcome::Ready; restore.ready];
            outcomes.resize(restore.ready + damaged, ReadOutcome::Damaged);
            outcomes.resize(restore.reads.len(), ReadOutcome::Failed);
            let took_ms = (actor.clock.now() - restore.started).as_secs_f64() * 1e3;
            let actions = actor.store.restored(restore.id, &outcomes, took_ms, actor.clock.unix_ms());
            actor.carry_out(actions, ctx);
        }));
    }

    fn write(
        &mut self,
        id: WriteId,
        model: String,
        blocks: Vec<BlockToStore>,
        delete: Vec<BlockKey>,
        ctx: &mut Context<Self>,
    ) {
        if blocks.is_empty() {
            return self.run_write(id, move |disk, _| disk.write(&[], &delete), ctx);
        }
        let slots = blocks.iter().map(|block| block.slot).collect();
        let fetching = self.devices.fetch(&model.as_str().into(), slots);
        ctx.spawn(fetching.into_actor(self).map(move |fetched, actor, ctx| {
            match fetched {
                Ok(bytes) if actor.store.fetched(id) => actor.run_write(
                    id,
                    move |disk, now_ms| disk::write_blocks(disk, blocks, bytes, &delete, now_ms),
                    ctx,
                ),
                // The disk was lost while the device was busy.
                Ok(_) => {}
                Err(message) => panic!("the device does not give a block that is held: {message}"),
            }
        }));
    }

    fn write_sessions(
        &mut self,
        id: WriteId,
        put: Vec<Manifest>,
        remove: Vec<SessionName>,
        ctx: &mut Context<Self>,
    ) {
        let remove: Vec<(String, String)> = remove.into_iter().map(|name| (name.tenant, name.id)).collect();
        self.run_write(
            id,
            move |disk, _| {
                disk.remove_sessions(&remove)?;
                disk.put_sessions(&put)
            },
            ctx,
        );
    }

    /// Runs a transaction on a blocking thread and tells the store of its end.
    fn run_write(&mut self, id: WriteId, task: impl DiskTask, ctx: &mut Context<Self>) {
        let (now_ms, dir) = (self.clock.unix_ms(), self.disk.dir().to_path_buf());
        let writing = self.disk.run(move |disk| {
            let done = match task(disk, now_ms) {
                Err(error) if error.is_fatal() => return Err(error),
                done => done.map_err(|error| error.to_string()),
            };
            Ok((done, disk::room(disk, &dir)))
        });
        let writing = async move { tokio::time::timeout(WRITE_TIMEOUT, writing).await };
        ctx.spawn(writing.into_actor(self).map(move |result, actor, ctx| match result {
            Ok(Ok((done, room))) => {
                match &done {
                    Ok(()) => actor.disk.has_worked(),
                    Err(message) => tracing::warn!(reason = message, "not written to the KV database"),
                }
                let budget = actor.disk.budget(&room);
                actor.store.set_disk_budget(budget);
                let actions = actor.store.written(id, done.is_ok());
                actor.carry_out(actions, ctx);
            }
            Ok(Err(failed)) => actor.give_up_disk(failed, ctx),
            Err(_) => {
                let failed = actor.disk.hung("write", WRITE_TIMEOUT);
                actor.give_up_disk(failed, ctx);
            }
        }));
    }

    /// Goes on without the disk, and tries it again later.
    fn give_up_disk(&mut self, failed: Failed, ctx: &mut Context<Self>) {
        let Some(reason) = self.disk.give_up(failed, self.clock.now()) else { return };
        tracing::warn!(reason, "the KV database cannot be used now; going on from memory");
        let actions = self.store.disk_down(&reason, self.clock.unix_ms());
        self.carry_out(actions, ctx);
    }

    /// Says that the disk has no room, at most every [`REFUSED_INTERVAL`].
    fn tell_refused(&mut self, now: Duration) {
        let figures = self.store.figures();
        let (told, next) = self.refused;
        if figures.refused_blocks > told && now >= next {
            self.refused = (figures.refused_blocks, now + REFUSED_INTERVAL);
            tracing::warn!(
                dir = %self.disk.dir().display(),
                blocks = figures.refused_blocks - told,
                room_bytes = figures.stored_budget_bytes,
                "no room on disk for KV blocks; they are computed again when they are wanted"
            );
        }
    }

    /// Opens the database, unless it is off or open.
    fn open_disk(&mut self) -> ResponseActFuture<Self, ()> {
        let opening = self.disk.open();
        Box::pin(opening.into_actor(self).map(|opened, actor, ctx| {
            let Some(opened) = opened else { return };
            let Some((contents, room)) = actor.disk.opened(opened, actor.clock.now()) else { return };
            let budget = actor.disk.budget(&room);
            actor.store.set_disk_budget(budget);
            let actions = actor.store.disk_ready(contents);
            actor.carry_out(actions, ctx);
        }))
    }
}

impl Actor for KvStoreActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(TICK, |actor, ctx| {
            actor.pulses.beat(Organ::KvStore);
            let now = actor.clock.now();
            if now < actor.next_tick {
                return;
            }
            actor.next_tick = now + HOUSEKEEPING;
            let actions = actor.store.tick(actor.clock.unix_ms());
            actor.carry_out(actions, ctx);
            actor.tell_refused(now);
            if actor.disk.is_due(now) {
                let opening = actor.open_disk();
                ctx.spawn(opening);
            }
        });
    }
}
