//! The one place in xtask that reads the clock.

use std::time::Instant;

/// The monotonic clock now.
#[expect(
    clippy::disallowed_methods,
    reason = "xtask times and bounds the programs it runs; nothing here is replayed"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}
