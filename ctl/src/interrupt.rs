//! Ctrl-C while an answer streams: the first shuts the connection down, which ends the job; the second ends us.
//!
//! No handler runs in signal context: the signal is blocked and a thread waits for it.

use crate::failure::Failure;
use nix::sys::signal::{SigSet, Signal};
use std::{
    net::Shutdown,
    os::unix::net::UnixStream,
    process,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

/// The watch over SIGINT; lives until the process ends.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<Watch>);

#[derive(Default)]
struct Watch {
    state: Mutex<State>,
    hit: Condvar,
}

#[derive(Default)]
struct State {
    hit: bool,
    stream: Option<UnixStream>,
}

impl Interrupt {
    /// Begins to watch. Call it before any other thread is started, so that all inherit the blocked signal.
    pub(crate) fn install() -> Result<Self, Failure> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGINT);
        set.thread_block().map_err(|error| Failure::Failed(format!("cannot block SIGINT: {error}")))?;
        let interrupt = Self(Arc::default());
        let watcher = interrupt.clone();
        thread::Builder::new()
            .name("interrupt".into())
            .spawn(move || {
                while set.wait().is_ok() {
                    watcher.hit();
                }
            })
            .map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))?;
        Ok(interrupt)
    }

    /// The connection to shut down; at once if Ctrl-C came before.
    pub(crate) fn guard(&self, stream: &UnixStream) -> Result<(), Failure> {
        let stream = stream.try_clone().map_err(|error| Failure::Lost(error.to_string()))?;
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.hit {
            return Err(Failure::Interrupted);
        }
        state.stream = Some(stream);
        Ok(())
    }

    /// Lets the connection go; the watch remembers whether it was hit.
    pub(crate) fn release(&self) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).stream = None;
    }

    /// Whether Ctrl-C came since the start or the last [`Self::reset`].
    pub(crate) fn was_hit(&self) -> bool {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).hit
    }

    /// Sleeps, but not over Ctrl-C.
    pub(crate) fn sleep(&self, duration: Duration) -> Result<(), Failure> {
        let state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let slept = self.0.hit.wait_timeout_while(state, duration, |state| !state.hit);
        let (state, _) = slept.unwrap_or_else(PoisonError::into_inner);
        if state.hit { Err(Failure::Interrupted) } else { Ok(()) }
    }

    /// Forgets what came; the chat goes on after an answer that was cut short.
    pub(crate) fn reset(&self) {
        *self.0.state.lock().unwrap_or_else(PoisonError::into_inner) = State::default();
    }

    /// A lost connection is the interrupt's doing if there was one.
    pub(crate) fn explain(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Lost(_) if self.was_hit() => Failure::Interrupted,
            other => other,
        }
    }

    fn hit(&self) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.hit {
            process::exit(Failure::Interrupted.exit_code().into());
        }
        state.hit = true;
        self.0.hit.notify_all();
        if let Some(stream) = &state.stream {
            // It fails only when the connection is already gone, which is what we want.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
