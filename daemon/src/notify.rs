//! What systemd is told: READY, STATUS, WATCHDOG, STOPPING. Without `NOTIFY_SOCKET` nothing is sent.

use crate::pulse::{Organ, Pulses};
use sd_notify::NotifyState;
use std::time::Duration;

/// Sends one state; a failure is logged, never fatal.
fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd could not be notified");
    }
}

/// A request can be served.
pub(crate) fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// What the daemon is at.
pub(crate) fn status(status: &str) {
    send(&[NotifyState::Status(status)]);
}

/// The daemon is about to end.
pub(crate) fn stopping(status: &str) {
    send(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Feeds the watchdog for as long as everyone makes progress; never returns. Does nothing without a watchdog.
pub(crate) async fn feed_watchdog(pulses: Pulses) {
    let Some(interval) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    let mut watchdog = Watchdog::default();
    let mut ticks = tokio::time::interval((interval / 4).max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match watchdog.judge(pulses.counts()) {
            Ok(()) => send(&[NotifyState::Watchdog]),
            Err(stuck) => {
                tracing::debug!(%stuck, "no progress since the last watchdog message")
            }
        }
    }
}

/// Decides whether everyone moved since the last time that everyone had.
#[derive(Debug, Default)]
struct Watchdog {
    seen: Vec<(Organ, u64)>,
}

impl Watchdog {
    /// # Errors
    /// The first that did not move.
    fn judge(&mut self, counts: Vec<(Organ, u64)>) -> Result<(), Organ> {
        match counts.iter().find(|count| self.seen.contains(count)) {
            Some(&(organ, _)) => Err(organ),
            None => {
                self.seen = counts;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_stuck_stops_the_watchdog_until_it_moves() {
        let organs = [Organ::Scheduler, Organ::KvStore, Organ::DeviceThread(0), Organ::DeviceThread(1)];
        let mut watchdog = Watchdog::default();
        let mut judge = |counts: [u64; 4]| watchdog.judge(organs.into_iter().zip(counts).collect());
        assert_eq!(judge([1, 1, 1, 1]), Ok(()));
        assert_eq!(judge([2, 2, 2, 1]), Err(Organ::DeviceThread(1)));
        assert_eq!(judge([3, 3, 3, 1]), Err(Organ::DeviceThread(1)));
        assert_eq!(judge([4, 4, 4, 2]), Ok(()));
        assert_eq!(judge([4, 5, 5, 3]), Err(Organ::Scheduler));
    }
}
