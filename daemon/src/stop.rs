//! Why and how the daemon ends: signals and the `stop` operation.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// How to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// Jobs may end within the configured time.
    Drain,
    /// Jobs are cancelled.
    Now,
}

/// Lets a request end the daemon.
#[derive(Debug, Clone)]
pub(crate) struct StopHandle(mpsc::Sender<StopReason>);

impl StopHandle {
    pub(crate) fn stop(&self, reason: StopReason) {
        // A full channel means that a stop is under way.
        let _ = self.0.try_send(reason);
    }
}

/// Where the wish to end is heard.
pub(crate) struct StopListener {
    requests: mpsc::Receiver<StopReason>,
    terminate: Signal,
    interrupt: Signal,
}

impl StopListener {
    /// # Errors
    /// When signals cannot be caught.
    pub(crate) fn new() -> std::io::Result<(StopHandle, Self)> {
        let (handle, requests) = mpsc::channel(2);
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        Ok((StopHandle(handle.clone()), Self { requests, terminate, interrupt }))
    }

    /// Waits for the next wish to end.
    pub(crate) async fn next(&mut self) -> StopReason {
        tokio::select! {
            Some(reason) = self.requests.recv() => wish("a client", reason),
            _ = self.terminate.recv() => wish("SIGTERM", StopReason::Drain),
            _ = self.interrupt.recv() => wish("SIGINT", StopReason::Drain),
        }
    }
}

/// Logs who wants the end: the first question of whoever finds the daemon gone.
fn wish(whose: &str, reason: StopReason) -> StopReason {
    tracing::info!(by = whose, ?reason, "asked to stop");
    reason
}
