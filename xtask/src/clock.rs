//! The one place in xtask that reads the clock.

use std::time::{Instant, SystemTime};

/// The monotonic clock now.
#[expect(
    clippy::disallowed_methods,
    reason = "xtask times and bounds the programs it runs; nothing here is replayed"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The wall clock now, to be compared with times in a program's log.
#[expect(clippy::disallowed_methods, reason = "as above")]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}
