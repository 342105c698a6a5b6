//! The device actor: an ordinary actor in front of one OS thread that owns the backend, the weights and the sequences.
//!
//! Invariant: the channel to the thread is bounded, and nothing here ever waits for the thread: a message either gets
//! its place in the channel or is refused at once. What the actor tells about itself it knows without asking the thread.
//!
//! Invariant: loads, steps and copies of KV blocks go through one queue, the mailbox and then the channel, and are carried
//! out in the order in which they came into the mailbox. So whoever is told of blocks after the commands that fill them
//! were sent may send the step that reads them, and need not wait for the answers. A message is in the mailbox when `send`
//! returns; only an address that met a full mailbox before has to wait for its next one, so commands are sent through a
//! fresh clone.

pub(crate) mod cpu;
#[cfg(test)]
pub(crate) mod fake;
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
use port::{Description, Device, Generate, LoadProgress, Loaded};
use std::collections::BTreeMap;
use std::time::Duration;
use thread::Command;
use tokio::sync::{mpsc, oneshot};

/// The actor.
pub(crate) struct DeviceActor {
    commands: mpsc::Sender<Command>,
    description: Description,
    loaded: BTreeMap<ModelName, ModelMemory>,
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
}

/// Loads a model; progress is published as it comes.
#[derive(Message)]
#[rtype(result = "Result<Loaded, String>")]
pub(crate) struct LoadModel {
    pub(crate) model: ModelName,
    pub(crate) settings: ModelSettings,
    pub(crate) progress: Box<dyn FnMut(LoadProgress) + Send>,
}

/// Drops a model and all that belongs to it.
#[derive(Message)]
#[rtype(result = "Result<(), String>")]
pub(crate) struct UnloadModel(pub(crate) ModelName);

/// Computes one step. An error is the device's, and fatal.
#[derive(Message)]
#[rtype(result = "Result<StepDone, String>")]
pub(crate) struct RunStep {
    pub(crate) plan: StepPlan,
    /// Samplers of the sequences that are in a step for the first time.
    pub(crate) begins: Vec<(SequenceId, Box<dyn Generate>)>,
    /// Sequences whose samplers may go.
    pub(crate) forgets: Vec<SequenceId>,
}

/// What a step gave, and how long the device took.
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
        device: Box<dyn Device>,
        clock: Clock,
        pulses: Pulses,
    ) -> std::io::Result<Addr<Self>> {
        let description = device.describe();
        let (commands, queue) = mpsc::channel(DEVICE_COMMANDS);
        thread::spawn(device, queue, clock, pulses.clone())?;
        Ok(Self::create(|ctx| {
            ctx.set_mailbox_capacity(MAILBOX_MESSAGES);
            let alive = pulses.guard(Organ::Device);
            Self { commands, description, loaded: BTreeMap::new(), pulses, _alive: alive }
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
            actor.pulses.beat(Organ::Device);
            // Into an empty channel alone: a busy thread beats by itself, and pings must not take the others' places.
            if actor.commands.capacity() == actor.commands.max_capacity() {
                // An error means that the thread has died, which its guard has reported.
                let _ = actor.commands.try_send(Command::Ping);
            }
        });
    }
}

impl Handler<LoadModel> for DeviceActor {
    type Result = ResponseActFuture<Self, Result<Loaded, String>>;

    fn handle(&mut self, message: LoadModel, _: &mut Self::Context) -> Self::Result {
        let LoadModel { model, settings, progress } = message;
        let name = model.clone();
        let asked = self.ask(|reply| Command::Load { model, settings, progress, reply });
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

impl Handler<RunStep> for DeviceActor {
    type Result = ResponseFuture<Result<StepDone, String>>;

    fn handle(&mut self, message: RunStep, _: &mut Self::Context) -> Self::Result {
        let RunStep { plan, begins, forgets } = message;
        let asked = self.ask(|reply| Command::Step { plan, begins, forgets, reply });
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
        MessageResult(DeviceSnapshot { description: self.description.clone(), loaded: self.loaded.clone() })
    }
}
