//! Remembers what the last panic said, so that the process can end with the reason.

use std::sync::Mutex;

static LAST: Mutex<Option<String>> = Mutex::new(None);

/// Logs each panic with its place, and remembers it.
pub(crate) fn install_hook() {
    std::panic::set_hook(Box::new(|info| {
        let message = info.payload_as_str().unwrap_or("a panic without a message").to_owned();
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        tracing::error!(thread, place, message, "panic");
        *LAST.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
            Some(format!("{message} (at {place})"));
    }));
}

/// What the last panic said.
pub(crate) fn last() -> Option<String> {
    LAST.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
}
