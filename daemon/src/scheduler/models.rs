//! The life of each model: available, loading, loaded, closing. Pure bookkeeping; the scheduler actor carries it out.

use super::plan::ModelName;
use crate::device::port::{LoadProgress, Loaded, TextModel};
use crate::limits::MAX_LOADED_MODELS;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{oneshot, watch};
use zllm_wire::{ErrorCode, Fault};

/// How far a model is that somebody wants.
#[derive(Clone)]
pub(crate) enum LoadState {
    Loading(LoadProgress),
    Ready(Loaded),
    Failed(Fault),
}

/// Where the wish for a model is answered: a state now, and each change of it.
pub(crate) type LoadWatch = watch::Receiver<LoadState>;

enum Entry {
    Loading(watch::Sender<LoadState>),
    Loaded {
        ready: watch::Sender<LoadState>,
        loaded: Loaded,
    },
    /// Takes no new jobs; goes when the last of the old ones has ended.
    Closing {
        loaded: Loaded,
        waiting: Vec<oneshot::Sender<()>>,
        unloading: bool,
    },
    /// The last load failed. The next wish tries again.
    Failed(String),
}

/// What to do about a wish.
pub(crate) enum Wish {
    /// Wait here; whoever started the load is at it, or it is there.
    Wait(LoadWatch),
    /// Start the load, tell its progress here, and wait here.
    Start(watch::Sender<LoadState>, LoadWatch),
}

/// All models that are or were wanted.
#[derive(Default)]
pub(crate) struct ModelTable {
    entries: BTreeMap<ModelName, Entry>,
}

impl ModelTable {
    /// Somebody wants `model`.
    ///
    /// # Errors
    /// When it is about to be unloaded, or too many are loaded.
    pub(crate) fn want(&mut self, model: &ModelName) -> Result<Wish, Fault> {
        match self.entries.get(model) {
            Some(Entry::Loading(state) | Entry::Loaded { ready: state, .. }) => {
                return Ok(Wish::Wait(state.subscribe()));
            }
            Some(Entry::Closing { .. }) => {
                return Err(refused(format!("model {model:?} is being unloaded")));
            }
            Some(Entry::Failed(_)) | None => {}
        }
        let held = self.entries.values().filter(|entry| !matches!(entry, Entry::Failed(_))).count();
        if held >= MAX_LOADED_MODELS {
            return Err(refused(format!("{held} models are loaded, which is the limit; unload one first")));
        }
        let (state, watch) = watch::channel(LoadState::Loading(LoadProgress::START));
        self.entries.insert(model.clone(), Entry::Loading(state.clone()));
        Ok(Wish::Start(state, watch))
    }

    /// The load of `model` has ended.
    pub(crate) fn loaded(&mut self, model: &ModelName, result: Result<Loaded, String>) {
        let Some(Entry::Loading(state)) = self.entries.remove(model) else {
            unreachable!("a load ends once, and nothing else touches a loading model")
        };
        let entry = match result {
            Ok(loaded) => {
                state.send_replace(LoadState::Ready(loaded.clone()));
                Entry::Loaded { ready: state, loaded }
            }
            Err(message) => {
                let fault = Fault {
                    code: ErrorCode::Failed,
                    message: format!("model {model:?} does not load: {message}"),
                };
                state.send_replace(LoadState::Failed(fault));
                Entry::Failed(message)
            }
        };
        self.entries.insert(model.clone(), entry);
    }

    /// No new jobs for `model`. The receiver hears when it is gone; `None` when it is not loaded.
    ///
    /// # Errors
    /// While it is loading.
    pub(crate) fn close(&mut self, model: &ModelName) -> Result<Option<oneshot::Receiver<()>>, Fault> {
        let (gone, heard) = oneshot::channel();
        match self.entries.remove(model) {
            None => return Ok(None),
            Some(Entry::Failed(_)) => return Ok(None),
            Some(loading @ Entry::Loading(_)) => {
                self.entries.insert(model.clone(), loading);
                return Err(refused(format!("model {model:?} is still being loaded")));
            }
            Some(Entry::Loaded { loaded, .. }) => {
                let closing = Entry::Closing { loaded, waiting: vec![gone], unloading: false };
                self.entries.insert(model.clone(), closing);
            }
            Some(Entry::Closing { loaded, mut waiting, unloading }) => {
                waiting.retain(|waiting| !waiting.is_closed());
                waiting.push(gone);
                self.entries.insert(model.clone(), Entry::Closing { loaded, waiting, unloading });
            }
        }
        Ok(Some(heard))
    }

    /// Closing models without jobs whose unload has not begun; each is named once.
    pub(crate) fn take_unloadable(&mut self, has_jobs: impl Fn(&ModelName) -> bool) -> Vec<ModelName> {
        let mut names = Vec::new();
        for (name, entry) in &mut self.entries {
            if let Entry::Closing { unloading, .. } = entry
                && !*unloading
                && !has_jobs(name)
            {
                *unloading = true;
                names.push(name.clone());
            }
        }
        names
    }

    /// A closing model is gone.
    pub(crate) fn unloaded(&mut self, model: &ModelName) {
        if let Some(Entry::Closing { waiting, .. }) = self.entries.remove(model) {
            for heard in waiting {
                // Whoever asked may have gone away.
                let _ = heard.send(());
            }
        }
    }

    /// The text side of a model, while it is loaded.
    pub(crate) fn text(&self, model: &str) -> Option<&Arc<dyn TextModel>> {
        self.state(model)?.1.map(|loaded| &loaded.text)
    }

    /// Whether `model` takes jobs.
    pub(crate) fn is_open(&self, model: &ModelName) -> bool {
        matches!(self.entries.get(model), Some(Entry::Loaded { .. }))
    }

    /// What a listing says of a model that was wanted once.
    pub(crate) fn state(&self, model: &str) -> Option<(zllm_wire::ModelState, Option<&Loaded>)> {
        let state = match self.entries.get(model)? {
            Entry::Loading(_) => (zllm_wire::ModelState::Loading, None),
            Entry::Loaded { loaded, .. } | Entry::Closing { loaded, .. } => {
                (zllm_wire::ModelState::Loaded, Some(loaded))
            }
            Entry::Failed(message) => (zllm_wire::ModelState::Failed { message: message.clone() }, None),
        };
        Some(state)
    }
}

fn refused(message: String) -> Fault {
    Fault { code: ErrorCode::Refused { retry_after_ms: 1000 }, message }
}
