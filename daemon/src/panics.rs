//! Remembers what the last panics said, so that the process can end with the reason. One panic often brings another
//! (whoever waited for the first), so a few are kept, in their order.

use std::sync::{Mutex, MutexGuard};

/// Panics that are remembered.
const KEPT: usize = 4;

static LATEST: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Logs each panic with its place, and remembers it.
pub(crate) fn install_hook() {
    std::panic::set_hook(Box::new(|info| {
        let message = info.payload_as_str().unwrap_or("a panic without a message").to_owned();
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        tracing::error!(thread, place, message, "panic");
        let mut latest = lock();
        if latest.len() == KEPT {
            latest.remove(0);
        }
        latest.push(format!("{message} (at {place})"));
    }));
}

/// What the last panics said, the first of them first; `None` when there was none.
pub(crate) fn latest() -> Option<String> {
    let latest = lock();
    (!latest.is_empty()).then(|| latest.join("; then: "))
}

fn lock() -> MutexGuard<'static, Vec<String>> {
    LATEST.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
