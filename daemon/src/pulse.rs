//! Signs of life: a counter for each actor and for the device thread, and a guard that reports a death.
//!
//! Those that beat do so at least every [`crate::limits::TICK`] while they make progress: actors from a timer in their own
//! context, the device thread after each command (a ping is one), each step and each stage of a load. The systemd watchdog
//! is fed only while all of them moved (see `notify`).
//!
//! An actor that panics is dropped and nobody is told; its [`AliveGuard`] tells, and the process ends with the reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::mpsc;

/// What the daemon cannot live without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Organ {
    Scheduler,
    KvStore,
    Device,
    DeviceThread,
    /// Does not beat: it may be in the disk for as long as the disk likes, and nobody waits for it who does not need it.
    JobDiskThread,
}

impl Organ {
    /// Those that beat, each at the place of its number.
    pub(crate) const BEATING: [Self; 4] = [Self::Scheduler, Self::KvStore, Self::Device, Self::DeviceThread];
    const COUNT: usize = Self::BEATING.len() + 1;

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler actor",
            Self::KvStore => "kv store actor",
            Self::Device => "device actor",
            Self::DeviceThread => "device thread",
            Self::JobDiskThread => "job disk thread",
        }
    }
}

/// All counters and the way to report a death.
#[derive(Debug, Clone)]
pub(crate) struct Pulses(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    beats: [AtomicU64; Organ::BEATING.len()],
    deaths: mpsc::Sender<Organ>,
    /// Set when the daemon ends on purpose: what is dropped then did not die.
    ending: AtomicBool,
}

impl Pulses {
    /// Counters at zero, and where deaths are reported.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Organ>) {
        let (deaths, reported) = mpsc::channel(Organ::COUNT);
        let shared = Shared { beats: Default::default(), deaths, ending: AtomicBool::new(false) };
        (Self(Arc::new(shared)), reported)
    }

    /// Notes progress of one of those that beat.
    pub(crate) fn beat(&self, organ: Organ) {
        self.0.beats[organ as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// All counters now, in the order of [`Organ::BEATING`].
    pub(crate) fn counts(&self) -> [u64; Organ::BEATING.len()] {
        std::array::from_fn(|at| self.0.beats[at].load(Ordering::Relaxed))
    }

    /// A guard for `organ` to hold as long as it lives.
    pub(crate) fn guard(&self, organ: Organ) -> AliveGuard {
        AliveGuard { organ, pulses: self.clone() }
    }

    /// From here on what ends, ends on purpose.
    pub(crate) fn end_on_purpose(&self) {
        self.0.ending.store(true, Ordering::Relaxed);
    }
}

/// Reports its organ's death when it is dropped, unless the daemon is ending.
#[derive(Debug)]
pub(crate) struct AliveGuard {
    organ: Organ,
    pulses: Pulses,
}

impl Drop for AliveGuard {
    fn drop(&mut self) {
        if !self.pulses.0.ending.load(Ordering::Relaxed) {
            // Each organ dies once and the channel has room for all; a closed channel means that the daemon has ended.
            let _ = self.pulses.0.deaths.try_send(self.organ);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panicking_owner_is_reported_and_an_orderly_end_is_not() {
        let (pulses, mut deaths) = Pulses::new();
        let guard = pulses.guard(Organ::DeviceThread);
        let thread = std::thread::spawn(move || {
            let _guard = guard;
            panic!("on purpose");
        });
        assert!(thread.join().is_err());
        assert_eq!(deaths.try_recv().ok(), Some(Organ::DeviceThread));

        let guard = pulses.guard(Organ::Scheduler);
        pulses.end_on_purpose();
        drop(guard);
        assert!(deaths.try_recv().is_err());
    }

    #[test]
    fn beats_are_counted_for_each() {
        let (pulses, _deaths) = Pulses::new();
        pulses.beat(Organ::KvStore);
        pulses.beat(Organ::KvStore);
        pulses.beat(Organ::DeviceThread);
        assert_eq!(pulses.counts(), [0, 2, 0, 1]);
    }
}
