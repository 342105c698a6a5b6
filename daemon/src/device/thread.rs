//! A device's thread: takes commands in order, one at a time, and beats after each. Between them it settles, a tenth of its
//! time.

use super::StageDone;
use super::busy::Worked;
use super::port::{Device, Generate, LoadProgress, LoadedStage};
use crate::clock::Clock;
use crate::config::ModelSettings;
use crate::limits::{REST_FROM_SETTLING, SETTLED_PIECES};
use crate::pulse::{Organ, Pulses};
use crate::scheduler::plan::{ModelName, SequenceId, StepPlan};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use zllm_engine::Stage;

/// What the thread is asked. A reply that nobody waits for is dropped.
pub(super) enum Command {
    Load {
        model: ModelName,
        settings: ModelSettings,
        stage: Stage,
        progress: Box<dyn FnMut(LoadProgress) + Send>,
        reply: oneshot::Sender<Result<LoadedStage, String>>,
    },
    Unload {
        model: ModelName,
        reply: oneshot::Sender<()>,
    },
    Step {
        plan: Arc<StepPlan>,
        hidden: Option<Vec<f32>>,
        begins: Vec<(SequenceId, Box<dyn Generate>)>,
        forgets: Vec<SequenceId>,
        reply: oneshot::Sender<Result<StageDone, String>>,
    },
    Fetch {
        model: ModelName,
        slots: Vec<u32>,
        reply: oneshot::Sender<Result<Vec<Vec<u8>>, String>>,
    },
    Put {
        model: ModelName,
        blocks: Vec<(u32, Vec<u8>)>,
        reply: oneshot::Sender<Result<(), String>>,
    },
    Copy {
        model: ModelName,
        from: u32,
        to: u32,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// Nothing but a beat, when there is nothing else.
    Ping,
}

/// Starts the thread of device `number`. It ends when the actor's end of the channel is dropped.
///
/// # Errors
/// When the system gives no thread.
pub(super) fn spawn(
    number: u16,
    mut device: Box<dyn Device>,
    mut queue: mpsc::Receiver<Command>,
    (clock, worked): (Clock, Worked),
    pulses: Pulses,
) -> std::io::Result<()> {
    std::thread::Builder::new().name(format!("device-{number}")).spawn(move || {
        let organ = Organ::DeviceThread(number);
        let _alive = pulses.guard(organ);
        let mut stall = Stall::from_env();
        let mut rests_until = Duration::ZERO;
        while let Some(command) = queue.blocking_recv() {
            stall.before(&command);
            let started = clock.now();
            let is_ping = matches!(command, Command::Ping);
            carry_out(device.as_mut(), command, &clock, || pulses.beat(organ));
            worked.add(clock.now() - started);
            pulses.beat(organ);
            if clock.now() >= rests_until {
                let pieces = if is_ping { SETTLED_PIECES } else { 1 };
                let began = clock.now();
                settle(device.as_mut(), pieces, || pulses.beat(organ), || queue.is_empty());
                rests_until = clock.now() + (clock.now() - began) * REST_FROM_SETTLING;
            }
        }
    })?;
    Ok(())
}

/// Settles one piece, and up to `most` while nothing is asked. What comes meanwhile waits for one of them.
///
/// They are few: while memory moves, other threads that ask the system for some have to wait.
fn settle(device: &mut dyn Device, most: usize, beat: impl Fn(), is_idle: impl Fn() -> bool) {
    for _ in 0..most {
        if !device.settle() {
            return;
        }
        beat();
        if !is_idle() {
            return;
        }
    }
}

fn carry_out(device: &mut dyn Device, command: Command, clock: &Clock, beat: impl Fn()) {
    match command {
        Command::Load { model, settings, stage, mut progress, reply } => {
            let loaded = device.load(&model, &settings, &stage, &mut |at| {
                beat();
                progress(at);
            });
            let _ = reply.send(loaded);
        }
        Command::Unload { model, reply } => {
            device.unload(&model);
            let _ = reply.send(());
        }
        Command::Step { plan, hidden, begins, forgets, reply } => {
            let started = clock.now();
            for sequence in forgets {
                device.forget(sequence);
            }
            for (sequence, generation) in begins {
                device.begin(sequence, &plan.model, generation);
            }
            let outcome = device.step(&plan, hidden.as_deref());
            // `cargo xtask http-bench` reads when.
            tracing::trace!("step done");
            let took = clock.now() - started;
            let _ = reply.send(outcome.map(|outcome| StageDone { outcome, took }));
        }
        Command::Fetch { model, slots, reply } => {
            let _ = reply.send(device.fetch(&model, &slots));
        }
        Command::Put { model, blocks, reply } => {
            let _ = reply.send(device.put(&model, &blocks));
        }
        Command::Copy { model, from, to, reply } => {
            let _ = reply.send(device.copy(&model, from, to));
        }
        Command::Ping => {}
    }
}

/// In debug builds `ZLLM_DEBUG_STALL_AFTER_STEPS=N` makes the thread hang before step N + 1, so that a test can see
/// the watchdog starve.
struct Stall {
    #[cfg(debug_assertions)]
    steps_left: Option<u64>,
}

#[cfg(debug_assertions)]
impl Stall {
    fn from_env() -> Self {
        let steps = std::env::var("ZLLM_DEBUG_STALL_AFTER_STEPS").ok();
        Self { steps_left: steps.and_then(|steps| steps.parse().ok()) }
    }

    fn before(&mut self, command: &Command) {
        let (Command::Step { .. }, Some(left)) = (command, &mut self.steps_left) else { return };
        match left.checked_sub(1) {
            Some(less) => *left = less,
            None => loop {
                std::thread::park();
            },
        }
    }
}

#[cfg(not(debug_assertions))]
impl Stall {
    fn from_env() -> Self {
        Self {}
    }

    fn before(&mut self, _: &Command) {}
}
