//! The one place of the command line that reads the clock. Everything else is handed the time.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Monotonic time.
#[expect(clippy::disallowed_methods, reason = "the one place where time comes in")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Seconds since the Unix epoch.
#[expect(clippy::disallowed_methods, reason = "the one place where time comes in")]
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
