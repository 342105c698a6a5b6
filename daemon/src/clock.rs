//! The daemon's only clock. Everything else is handed the time, so that it can be replayed.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time since the daemon's start.
pub(crate) type Uptime = Duration;

/// Time since the Unix epoch. It goes on steadily from the start, whatever is done to the wall clock meanwhile; what an
/// earlier run of the daemon wrote down may lie in its future.
pub(crate) type Time = Duration;

/// Time since the daemon's start, and the wall clock that goes with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    started: Instant,
    started_unix: Duration,
}

impl Clock {
    /// A clock that starts now.
    #[expect(clippy::disallowed_methods, reason = "the one place where time comes in")]
    pub(crate) fn start() -> Self {
        Self {
            started: Instant::now(),
            started_unix: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        }
    }

    /// Monotonic time since the start.
    #[expect(clippy::disallowed_methods, reason = "the one place where time comes in")]
    pub(crate) fn now(&self) -> Uptime {
        self.started.elapsed()
    }

    /// Time since the Unix epoch.
    pub(crate) fn time(&self) -> Time {
        self.started_unix + self.now()
    }

    /// The same in milliseconds.
    pub(crate) fn unix_ms(&self) -> u64 {
        self.time().as_millis() as u64
    }

    /// Seconds since the Unix epoch at the start.
    pub(crate) fn started_unix_seconds(&self) -> u64 {
        self.started_unix.as_secs()
    }
}
