//! All devices, and which of them has which part of a model. A model is on one device or cut in stages over several; whoever
//! speaks to a model's devices does it here and does not see the cut.
//!
//! A step goes through the stages one after the other, each when the one before has answered; what concerns blocks (puts,
//! copies, fetches) goes to all stages at once, and each does its part of every block.
//!
//! Invariant: a put or a copy is in the queue of every stage when [`Devices::put`] or [`Devices::copy`] returns, and a step
//! is in that of the first when [`Devices::run_step`] does. So a step that is begun after them finds in each stage what
//! they wrote, as on one device: its later stages are sent later still. What else may come between two stages of a step
//! is harmless:
//! * puts and copies write only blocks of leases that are not granted yet, and a lease in a step is not released before
//!   the step is answered, so that its blocks are nobody else's in any stage;
//! * copies and fetches read only blocks that are full or left behind. A step that filled them was answered by its last
//!   stage before anybody could ask for them;
//! * another step is another model's: the scheduler begins one at a time for each model. It has an arena of its own;
//! * an unload comes when no job of the model is left, and so no step.
//!
//! Invariant: no device waits for another; only futures here do, and they hold no device.

use super::port::{Generate, LoadProgress, Loaded, LoadedStage, StageOutcome, not_loaded};
use super::{
    CopyBlock, DeviceActor, DeviceSnapshot, FetchBlocks, LoadStage, PutBlocks, RunStage, Snapshot, StepDone,
    UnloadModel,
};
use crate::config::{ModelSettings, PlaceSettings};
use crate::scheduler::plan::{ModelName, SequenceId, StepPlan};
use actix::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zllm_engine::{FingerprintPart, Stage};

/// All devices and where each loaded model is.
#[derive(Clone)]
pub(crate) struct Devices {
    devices: Arc<[Named]>,
    placed: Arc<Mutex<HashMap<ModelName, Arc<[Part]>>>>,
}

struct Named {
    name: String,
    address: Addr<DeviceActor>,
}

/// One stage of a loaded model.
struct Part {
    /// Its device's number.
    device: usize,
    /// Bytes of its part of a KV block.
    block_bytes: usize,
}

/// Bytes of KV blocks, each with the slot that it goes to.
type Blocks = Vec<(u32, Vec<u8>)>;

/// Where a load tells how far all stages are together.
struct Progress {
    stages: Vec<LoadProgress>,
    tell: Box<dyn FnMut(LoadProgress) + Send>,
}

impl Devices {
    /// Devices by name, in the order of their numbers; at least one.
    pub(crate) fn new(devices: impl IntoIterator<Item = (String, Addr<DeviceActor>)>) -> Self {
        let devices = devices.into_iter().map(|(name, address)| Named { name, address });
        Self { devices: devices.collect(), placed: Arc::default() }
    }

    /// Loads all stages of a model side by side; progress is that of all of them.
    ///
    /// # Errors
    /// Why a stage cannot be loaded, and on which device; the other stages are dropped again.
    pub(crate) async fn load(
        &self,
        model: ModelName,
        settings: ModelSettings,
        progress: Box<dyn FnMut(LoadProgress) + Send>,
    ) -> Result<Loaded, String> {
        let numbers = self.numbers(&settings.defaults.place)?;
        let of = numbers.len();
        let progress =
            Arc::new(Mutex::new(Progress { stages: vec![LoadProgress::START; of], tell: progress }));
        let load = |(index, &device): (usize, &usize)| {
            let progress = progress.clone();
            let stage = Stage { index, of, split: settings.defaults.place.split.clone() };
            let progress: Box<dyn FnMut(LoadProgress) + Send> =
                Box::new(move |at| lock(&progress).stage_is_at(index, at));
            self.send(device, LoadStage { model: model.clone(), settings: settings.clone(), stage, progress })
        };
        let asked: Vec<_> = numbers.iter().enumerate().map(load).collect();
        let (mut stages, mut failed) = (Vec::new(), None);
        for (&device, asked) in numbers.iter().zip(asked) {
            match self.answer(device, asked).await {
                Ok(stage) => stages.push((device, stage)),
                Err(message) => failed = failed.or(Some(message)),
            }
        }
        let fingerprint = match failed {
            None => FingerprintPart::join(stages.iter().map(|(_, stage)| &stage.fingerprint))
                .map_err(|error| error.to_string()),
            Some(message) => Err(message),
        };
        match fingerprint {
            Ok(fingerprint) => Ok(self.place(model, stages, fingerprint)),
            Err(message) => {
                let loaded: Vec<usize> = stages.iter().map(|(device, _)| *device).collect();
                self.drop_stages(&loaded, &model).await?;
                Err(message)
            }
        }
    }

    /// Takes a model whose stages are all loaded into the register.
    fn place(&self, model: ModelName, stages: Vec<(usize, LoadedStage)>, fingerprint: [u8; 32]) -> Loaded {
        let parts = stages
            .iter()
            .map(|(device, stage)| Part { device: *device, block_bytes: stage.kv_block_bytes as usize });
        let before = lock(&self.placed).insert(model, parts.collect());
        assert!(before.is_none(), "the scheduler loads a model once");
        let blocks = |stage: &LoadedStage| (stage.device_blocks, stage.ram_blocks);
        let (device_blocks, ram_blocks) = blocks(&stages[0].1);
        assert!(
            stages.iter().all(|(_, stage)| blocks(stage) == (device_blocks, ram_blocks)),
            "each stage counts the blocks of the whole model"
        );
        let kv_block_bytes = stages.iter().map(|(_, stage)| stage.kv_block_bytes).sum();
        let weight_bytes = stages.iter().map(|(_, stage)| stage.weight_bytes).sum();
        let devices = stages.iter().map(|(device, _)| *device as u16).collect();
        let (_, first) = stages.into_iter().next().expect("a model has a stage");
        let text = (first.text)(fingerprint);
        Loaded { text, device_blocks, ram_blocks, kv_block_bytes, weight_bytes, devices }
    }

    /// Drops a model from all its devices.
    ///
    /// # Errors
    /// A device that does not take the command.
    pub(crate) async fn unload(&self, model: &ModelName) -> Result<(), String> {
        let parts = lock(&self.placed).remove(model).ok_or_else(|| not_loaded(model))?;
        let devices: Vec<usize> = parts.iter().map(|part| part.device).collect();
        self.drop_stages(&devices, model).await
    }

    async fn drop_stages(&self, devices: &[usize], model: &ModelName) -> Result<(), String> {
        let unload = |&device: &usize| (device, UnloadModel(model.clone()));
        self.all(devices.iter().map(unload).collect()).await.map(|_| ())
    }

    /// Computes one step: stage after stage; the last one samples.
    ///
    /// # Errors
    /// A fault of a device, and fatal.
    pub(crate) fn run_step(
        &self,
        plan: StepPlan,
        begins: Vec<(SequenceId, Box<dyn Generate>)>,
        forgets: Vec<SequenceId>,
    ) -> impl Future<Output = Result<StepDone, String>> + use<> {
        let (devices, plan) = (self.clone(), Arc::new(plan));
        let parts = self.parts(&plan.model).expect("steps are planned for loaded models");
        let mut samplers = Some((begins, forgets));
        let mut stage = move |index: usize, hidden| {
            let is_last = index + 1 == parts.len();
            let (begins, forgets) = samplers.take_if(|_| is_last).unwrap_or_default();
            let device = parts[index].device;
            (device, devices.send(device, RunStage { plan: plan.clone(), hidden, begins, forgets }))
        };
        let mut asked = stage(0, None);
        let devices = self.clone();
        async move {
            let mut took = Duration::ZERO;
            let mut next = 0;
            loop {
                let (device, request) = asked;
                let done = devices.answer(device, request).await?;
                took += done.took;
                next += 1;
                match done.outcome {
                    StageOutcome::Hidden(hidden) => asked = stage(next, Some(hidden)),
                    StageOutcome::Sampled(outcome) => return Ok(StepDone { outcome, took }),
                }
            }
        }
    }

    /// The bytes of KV blocks, in the order of `slots`.
    ///
    /// # Errors
    /// The model is not loaded, or has no such block.
    pub(crate) fn fetch(
        &self,
        model: &ModelName,
        slots: Vec<u32>,
    ) -> impl Future<Output = Result<Vec<Vec<u8>>, String>> + use<> {
        let asked = self.parts(model).map(|parts| {
            let fetch =
                |part: &Part| (part.device, FetchBlocks { model: model.clone(), slots: slots.clone() });
            self.all(parts.iter().map(fetch).collect())
        });
        async move {
            let mut stages = asked?.await?.into_iter();
            let mut blocks = stages.next().expect("a model has a stage");
            for stage in stages {
                blocks.iter_mut().zip(stage).for_each(|(block, part)| block.extend_from_slice(&part));
            }
            Ok(blocks)
        }
    }

    /// Overwrites KV blocks with bytes that [`Self::fetch`] gave of a model with the same fingerprint, cut as it may be.
    ///
    /// # Errors
    /// The model is not loaded, has no such block, or has blocks of another size.
    pub(crate) fn put(
        &self,
        model: &ModelName,
        blocks: Blocks,
    ) -> impl Future<Output = Result<(), String>> + use<> {
        let asked = self.parts(model).and_then(|parts| {
            let cut = cut(&parts, blocks)?;
            let put = |(part, blocks): (&Part, _)| (part.device, PutBlocks { model: model.clone(), blocks });
            Ok(self.all(parts.iter().zip(cut).map(put).collect()))
        });
        async move { asked?.await.map(|_| ()) }
    }

    /// Overwrites the KV block `to` with `from`.
    ///
    /// # Errors
    /// The model is not loaded, or has no such block.
    pub(crate) fn copy(
        &self,
        model: &ModelName,
        from: u32,
        to: u32,
    ) -> impl Future<Output = Result<(), String>> + use<> {
        let asked = self.parts(model).map(|parts| {
            let copy = |part: &Part| (part.device, CopyBlock { model: model.clone(), from, to });
            self.all(parts.iter().map(copy).collect())
        });
        async move { asked?.await.map(|_| ()) }
    }

    /// What each device holds, in the order of their numbers.
    ///
    /// # Errors
    /// A device's actor is gone; the process is about to end.
    pub(crate) async fn snapshots(&self) -> Result<Vec<DeviceSnapshot>, MailboxError> {
        let mut snapshots = Vec::with_capacity(self.devices.len());
        for device in 0..self.devices.len() {
            snapshots.push(self.send(device, Snapshot).await?);
        }
        Ok(snapshots)
    }

    /// The names of a loaded model's devices, first stage to last, such as `a+b`.
    pub(crate) fn names(&self, model: &str) -> Option<String> {
        let placed = lock(&self.placed);
        let names = placed.get(model)?.iter().map(|part| self.devices[part.device].name.as_str());
        Some(names.collect::<Vec<_>>().join("+"))
    }

    fn numbers(&self, place: &PlaceSettings) -> Result<Vec<usize>, String> {
        if place.devices.is_empty() {
            return Ok(vec![0]);
        }
        let number = |name: &String| {
            let found = self.devices.iter().position(|device| device.name == *name);
            found.ok_or_else(|| format!("there is no device {name}"))
        };
        place.devices.iter().map(number).collect()
    }

    fn parts(&self, model: &ModelName) -> Result<Arc<[Part]>, String> {
        lock(&self.placed).get(model).cloned().ok_or_else(|| not_loaded(model))
    }

    /// Sends each message at once; the answers, in the order of the messages.
    fn all<M, T>(&self, messages: Vec<(usize, M)>) -> impl Future<Output = Result<Vec<T>, String>> + use<M, T>
    where
        M: Message<Result = Result<T, String>> + Send + 'static,
        T: Send + 'static,
        DeviceActor: Handler<M>,
    {
        let send = |(device, message)| (device, self.send(device, message));
        let asked: Vec<_> = messages.into_iter().map(send).collect();
        let devices = self.clone();
        async move {
            let mut answers = Vec::with_capacity(asked.len());
            for (device, request) in asked {
                answers.push(devices.answer(device, request).await?);
            }
            Ok(answers)
        }
    }

    /// The message is in the device's mailbox when this returns: through a fresh clone of the address (see `device.rs`).
    fn send<M>(&self, device: usize, message: M) -> Request<DeviceActor, M>
    where
        M: Message + Send + 'static,
        M::Result: Send,
        DeviceActor: Handler<M>,
    {
        self.devices[device].address.clone().send(message)
    }

    /// A device's answer; an error has the device's name where there are several.
    ///
    /// # Panics
    /// When the actor is gone: the process is about to end.
    async fn answer<M, T>(&self, device: usize, request: Request<DeviceActor, M>) -> Result<T, String>
    where
        M: Message<Result = Result<T, String>> + Send + 'static,
        T: Send + 'static,
        DeviceActor: Handler<M>,
    {
        let name = &self.devices[device].name;
        let answer =
            request.await.unwrap_or_else(|error| panic!("the actor of device {name} is gone: {error}"));
        let is_one = self.devices.len() == 1;
        answer.map_err(|message| if is_one { message } else { format!("device {name}: {message}") })
    }
}

/// Each stage's part of each block.
///
/// # Errors
/// Bytes that are not as many as a block's.
fn cut(parts: &[Part], blocks: Blocks) -> Result<Vec<Blocks>, String> {
    if let [_] = parts {
        return Ok(vec![blocks]);
    }
    let expected: usize = parts.iter().map(|part| part.block_bytes).sum();
    if let Some((_, bytes)) = blocks.iter().find(|(_, bytes)| bytes.len() != expected) {
        return Err(format!("{} bytes are no KV block; one of this model has {expected} bytes", bytes.len()));
    }
    let mut start = 0;
    let part = |part: &Part| {
        let own = start..start + part.block_bytes;
        start = own.end;
        blocks.iter().map(|(slot, bytes)| (*slot, bytes[own.clone()].to_vec())).collect()
    };
    Ok(parts.iter().map(part).collect())
}

impl Progress {
    /// Tells the bytes of all stages together, and what this one is at.
    fn stage_is_at(&mut self, index: usize, at: LoadProgress) {
        self.stages[index] = at;
        let sum = |of: fn(&LoadProgress) -> u64| self.stages.iter().map(of).sum();
        let (done_bytes, total_bytes) = (sum(|at| at.done_bytes), sum(|at| at.total_bytes));
        (self.tell)(LoadProgress { stage: at.stage, done_bytes, total_bytes });
    }
}

/// What is in there is whole after every change: a panic of another owner is not this one's.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
