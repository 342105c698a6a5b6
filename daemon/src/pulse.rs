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

/// What the daemon cannot live without. Devices go by their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Organ {
    Scheduler,
    KvStore,
    Device(u16),
    DeviceThread(u16),
    /// Does not beat: it may be in the disk for as long as the disk likes, and nobody waits for it who does not need it.
    JobDiskThread,
    /// Does not beat either.
    ObjectDiskThread,
}

impl Organ {
    /// Those that beat and that there is one of.
    const SINGLE: [Self; 2] = [Self::Scheduler, Self::KvStore];

    /// How many do not beat.
    const SILENT: usize = 2;

    /// Those that beat in a daemon with so many devices.
    fn beating(devices: u16) -> impl Iterator<Item = Self> {
        let of_device = |number| [Self::Device(number), Self::DeviceThread(number)];
        Self::SINGLE.into_iter().chain((0..devices).flat_map(of_device))
    }

    /// Its place in [`Self::beating`].
    fn index(self) -> usize {
        match self {
            Self::Scheduler => 0,
            Self::KvStore => 1,
            Self::Device(number) => Self::SINGLE.len() + 2 * usize::from(number),
            Self::DeviceThread(number) => Self::SINGLE.len() + 2 * usize::from(number) + 1,
            Self::JobDiskThread | Self::ObjectDiskThread => unreachable!("it does not beat"),
        }
    }
}

impl std::fmt::Display for Organ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Scheduler => write!(f, "scheduler actor"),
            Self::KvStore => write!(f, "kv store actor"),
            Self::Device(number) => write!(f, "actor of device {number}"),
            Self::DeviceThread(number) => write!(f, "thread of device {number}"),
            Self::JobDiskThread => write!(f, "job disk thread"),
            Self::ObjectDiskThread => write!(f, "object disk thread"),
        }
    }
}

/// All counters and the way to report a death.
#[derive(Debug, Clone)]
pub(crate) struct Pulses(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    devices: u16,
    /// In the order of [`Organ::beating`].
    beats: Box<[AtomicU64]>,
    deaths: mpsc::Sender<Organ>,
    /// Set when the daemon ends on purpose: what is dropped then did not die.
    ending: AtomicBool,
}

impl Pulses {
    /// Counters at zero of a daemon with so many devices, and where deaths are reported.
    pub(crate) fn new(devices: u16) -> (Self, mpsc::Receiver<Organ>) {
        let beats: Box<[AtomicU64]> = Organ::beating(devices).map(|_| AtomicU64::default()).collect();
        let (deaths, reported) = mpsc::channel(beats.len() + Organ::SILENT);
        let shared = Shared { devices, beats, deaths, ending: AtomicBool::new(false) };
        (Self(Arc::new(shared)), reported)
    }

    /// Notes progress of one of those that beat.
    pub(crate) fn beat(&self, organ: Organ) {
        self.0.beats[organ.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// All counters now.
    pub(crate) fn counts(&self) -> Vec<(Organ, u64)> {
        let beats = self.0.beats.iter().map(|beats| beats.load(Ordering::Relaxed));
        Organ::beating(self.0.devices).zip(beats).collect()
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

impl AliveGuard {
    /// Its organ has ended because nobody needs it any more.
    pub(crate) fn done(self) {
        std::mem::forget(self);
    }
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
        let (pulses, mut deaths) = Pulses::new(2);
        let guard = pulses.guard(Organ::DeviceThread(1));
        let thread = std::thread::spawn(move || {
            let _guard = guard;
            panic!("on purpose");
        });
        assert!(thread.join().is_err());
        assert_eq!(deaths.try_recv().ok(), Some(Organ::DeviceThread(1)));

        let guard = pulses.guard(Organ::Scheduler);
        pulses.end_on_purpose();
        drop(guard);
        assert!(deaths.try_recv().is_err());
    }

    #[test]
    fn beats_are_counted_for_each() {
        let (pulses, _deaths) = Pulses::new(2);
        pulses.beat(Organ::KvStore);
        pulses.beat(Organ::KvStore);
        pulses.beat(Organ::DeviceThread(0));
        pulses.beat(Organ::Device(1));
        let (organs, counts): (Vec<_>, Vec<_>) = pulses.counts().into_iter().unzip();
        assert_eq!(counts, [0, 2, 0, 1, 1, 0]);
        assert!(organs.iter().enumerate().all(|(at, organ)| organ.index() == at), "{organs:?}");
    }
}
