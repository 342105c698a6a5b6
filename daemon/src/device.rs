//! The device actor: an ordinary actor in front of one OS thread that owns the backend, the weights and the sequences. There
//! is one for each device; `placement.rs` says which of them has which part of a model.
//!
//! Invariant: the channel to the thread is bounded, and nothing here ever waits for the thread: a message either gets
//! its place in the channel or is refused at once. What the actor tells about itself it knows without asking the thread.
//!
//! Invariant: loads, steps and copies of KV blocks go through one queue, the mailbox and then the channel, and are carried
//! out in the order in which they came into the mailbox. So whoever is told of blocks after the commands that fill them
//! were sent may send the step that reads them, and need not wait for the answers. A message is in the mailbox when `send`
//! returns; only an address that met a full mailbox before has to wait for its next one, so commands are sent through a
//! fresh clone.

mod busy;
pub(crate) mod cpu;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod placement;
pub(crate) mod port;
#[cfg(test)]
mod tests;
mod text;
mod thread;

use crate::clock::Clock;
use crate::config::ModelSettings;
use crate::limits::{DEVICE_COMMANDS, MAILBOX_MESSAGES, TICK};
use crate::pulse::{AliveGuard, Organ, Pulses};
use crate::scheduler::plan::{ModelName, SequenceId, StepOutcome, StepPlan};
use actix::prelude::*;
use busy::{Busy, Worked};
pub(crate) use placement::Devices;
use port::{Description, Device, Generate, LoadProgress, LoadedStage, StageOutcome};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use thread::Command;
use tokio::sync::{mpsc, oneshot};
use zllm_engine::Stage;

/// The actor.
pub(crate) struct DeviceActor {
    /// Its number among the devices.
    number: u16,
    commands: mpsc::Sender<Command>,
    description: Description,
    loaded: BTreeMap<ModelName, ModelMemory>,
    busy: Busy,
    clock: Clock,
    pulses: Pulses,
    _alive: AliveGuard,
}

/// Bytes that a loaded model takes on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ModelMemory {
    pub(crate) weight_bytes: u64,
    pub(crate) kv_bytes: u64,
}

/// What the device holds.
#[derive(Debug, Clone)]
pub(crate) struct DeviceSnapshot {
    pub(crate) description: Description,
    pub(crate) loaded: BTreeMap<ModelName, ModelMemory>,
    /// The share of the last ten seconds that its thread has worked, from 0 to 1.
    pub(crate) busy: f32,
}

/// Loads a stage of a model; progress is published as it comes.
#[derive(Message)]
#[rtype(result = "Result<LoadedStage, String>")]
pub(crate) struct LoadStage {
    pub(crate) model: ModelName,
    pub(crate) settings: ModelSettings,
    pub(crate) stage: Stage,
    pub(crate) progress: Box<dyn FnMut(LoadProgress) + Send>,
}

/// Drops a model and all that belongs to it.
#[derive(Message)]
#[rtype(result = "Result<(), String>")]
pub(crate) struct UnloadModel(pub(crate) ModelName);

/// Computes one stage of a step. An error is the device's, and fatal.
#[derive(Message)]
#[rtype(result = "Result<StageDone, String>")]
pub(crate) struct RunStage {
    pub(crate) plan: Arc<StepPlan>,
    /// What the stage before gave; `None` for the first.
    pub(crate) hidden: Option<Vec<f32>>,
    /// Samplers of the sequences that are in a step for the first time.
    pub(crate) begins: Vec<(SequenceId, Box<dyn Generate>)>,
    /// Sequences whose samplers may go.
    pub(crate) forgets: Vec<SequenceId>,
}

/// What a stage gave, and how long the device took.
pub(crate) struct StageDone {
    pub(crate) outcome: StageOutcome,
    pub(crate) took: Duration,
}

/// What a step gave, and how long its devices took, one after the other.
#[derive(Debug)]
pub(crate) struct StepDone {
    pub(crate) outcome: StepOutcome,
    pub(crate) took: Duration,
}

/// Copies KV blocks out, in the order of `slots`.
#[derive(Message)]
#[rtype(result = "Result<Vec<Vec<u8>>, String>")]
pub(crate) struct FetchBlocks {
    pub(crate) model: ModelName,
    pub(crate) slots: Vec<u32>,
}

/// Overwrites KV blocks with bytes that [`FetchBlocks`] gave of a model with the same fingerprint.
#[derive(Message)]
#[rtype(result = "Result<(), String>")]
pub(crate) struct PutBlocks {
    pub(crate) model: ModelName,
    pub(crate) blocks: Vec<(u32, Vec<u8>)>,
}

/// Overwrites the KV block `to` with `from`.
#[derive(Message)]
#[rtype(result = "Result<(), String>")]
pub(crate) struct CopyBlock {
    pub(crate) model: ModelName,
    pub(crate) from: u32,
    pub(crate) to: u32,
}

/// Asks for a [`DeviceSnapshot`].
#[derive(Message)]
#[rtype(result = "DeviceSnapshot")]
pub(crate) struct Snapshot;

impl DeviceActor {
    /// Starts the thread and the actor in front of it.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn spawn(
        number: u16,
        device: Box<dyn Device>,
        clock: Clock,
        pulses: Pulses,
    ) -> std::io::Result<Addr<Self>> {
        let description = device.describe();
        let (commands, queue) = mpsc::channel(DEVICE_COMMANDS);
        let worked = Worked::default();
        thread::spawn(number, device, queue, (clock, worked.clone()), pulses.clone())?;
        Ok(Self::create(|ctx| {
            ctx.set_mailbox_capacity(MAILBOX_MESSAGES);
            let alive = pulses.guard(Organ::Device(number));
            Self {
                number,
                commands,
                description,
                loaded: BTreeMap::new(),
                busy: Busy::new(worked, clock.now()),
                clock,
                pulses,
                _alive: alive,
            }
        }))
    }

    /// Puts a command into the channel, or says at once why it cannot.
    fn ask<T>(
        &self,
        make: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<oneshot::Receiver<T>, String> {
        let (reply, answer) = oneshot::channel();
        match self.commands.try_send(make(reply)) {
            Ok(()) => Ok(answer),
            Err(mpsc::error::TrySendError::Full(_)) => {
                Err(format!("the device has {DEVICE_COMMANDS} commands waiting; try again later"))
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err("the device thread has ended".to_owned()),
        }
    }
}

/// Waits for the thread's answer, outside of the actor.
async fn answer<T>(asked: Result<oneshot::Receiver<T>, String>) -> Result<T, String> {
    asked?.await.map_err(|_| "the device thread ended before it answered".to_owned())
}

impl Actor for DeviceActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(TICK, |actor, _| {
            actor.pulses.beat(Organ::Device(actor.number));
            actor.busy.mark(actor.clock.now());
            // Into an empty channel alone: a busy thread beats by itself, and pings must not take the others' places.
            if actor.commands.capacity() == actor.commands.max_capacity() {
                // An error means that the thread has died, which its guard has reported.
                let _ = actor.commands.try_send(Command::Ping);
            }
        });
    }
}

impl Handler<LoadStage> for DeviceActor {
    type Result = ResponseActFuture<Self, Result<LoadedStage, String>>;

    fn handle(&mut self, message: LoadStage, _: &mut Self::Context) -> Self::Result {
        let LoadStage { model, settings, stage, progress } = message;
        let name = model.clone();
        let asked = self.ask(|reply| Command::Load { model, settings, stage, progress, reply });
        Box::pin(answer(asked).into_actor(self).map(move |result, actor, _| {
            let loaded = result.and_then(|loaded| loaded)?;
            let blocks = u64::from(loaded.device_blocks) + u64::from(loaded.ram_blocks);
            let kv_bytes = blocks * loaded.kv_block_bytes;
            actor.loaded.insert(name, ModelMemory { weight_bytes: loaded.weight_bytes, kv_bytes });
            Ok(loaded)
        }))
    }
}

impl Handler<UnloadModel> for DeviceActor {
    type Result = ResponseActFuture<Self, Result<(), String>>;

    fn handle(&mut self, UnloadModel(model): UnloadModel, _: &mut Self::Context) -> Self::Result {
        let name = model.clone();
        let asked = self.ask(|reply| Command::Unload { model, reply });
        Box::pin(answer(asked).into_actor(self).map(move |result, actor, _| {
            result.map(|()| {
                actor.loaded.remove(&name);
            })
        }))
    }
}

impl Handler<RunStage> for DeviceActor {
    type Result = ResponseFuture<Result<StageDone, String>>;

    fn handle(&mut self, message: RunStage, _: &mut Self::Context) -> Self::Result {
        let RunStage { plan, hidden, begins, forgets } = message;
        let asked = self.ask(|reply| Command::Step { plan, hidden, begins, forgets, reply });
        Box::pin(async move { answer(asked).await? })
    }
}

impl Handler<FetchBlocks> for DeviceActor {
    type Result = ResponseFuture<Result<Vec<Vec<u8>>, String>>;

    fn handle(&mut self, FetchBlocks { model, slots }: FetchBlocks, _: &mut Self::Context) -> Self::Result {
        let asked = self.ask(|reply| Command::Fetch { model, slots, reply });
        Box::pin(async move { answer(asked).await? })
    }
}

impl Handler<PutBlocks> for DeviceActor {
    type Result = ResponseFuture<Result<(), String>>;

    fn handle(&mut self, PutBlocks { model, blocks }: PutBlocks, _: &mut Self::Context) -> Self::Result {
        let asked = self.ask(|reply| Command::Put { model, blocks, reply });
        Box::pin(async move { answer(asked).await? })
    }
}

impl Handler<CopyBlock> for DeviceActor {
    type Result = ResponseFuture<Result<(), String>>;

    fn handle(&mut self, CopyBlock { model, from, to }: CopyBlock, _: &mut Self::Context) -> Self::Result {
        let asked = self.ask(|reply| Command::Copy { model, from, to, reply });
        Box::pin(async move { answer(asked).await? })
    }
}

impl Handler<Snapshot> for DeviceActor {
    type Result = MessageResult<Snapshot>;

    fn handle(&mut self, _: Snapshot, _: &mut Self::Context) -> Self::Result {
        let (description, loaded) = (self.description.clone(), self.loaded.clone());
        MessageResult(DeviceSnapshot { description, loaded, busy: self.busy.share(self.clock.now()) })
    }
}
