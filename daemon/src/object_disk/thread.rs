//! The thread: it opens the store, then takes whatever waits and does it in its order.

use super::failed;
use crate::clock::Clock;
use crate::config::ObjectSettings;
use crate::limits::{EXPIRY_INTERVAL, OBJECT_COMMANDS};
use std::path::PathBuf;
use tokio::sync::{mpsc, oneshot};
use zllm_state::{Object, ObjectRetention, ObjectStore};
use zllm_wire::{ErrorCode, Fault};

/// What the thread is asked. A caller that waits no more is passed over.
pub(super) enum Command {
    Put(Vec<Object>, oneshot::Sender<Result<(), Fault>>),
    Work(Work),
}

/// Something that is done with the store and the time, or not done for this reason; it answers for itself.
type Work = Box<dyn FnOnce(Result<(&mut ObjectStore, u64), Fault>) + Send>;

/// The store, as far as it can be used.
pub(super) struct Worker {
    store: Option<ObjectStore>,
    dir: Option<PathBuf>,
    retention: ObjectRetention,
    clock: Clock,
    /// Why it could not be opened last time.
    trouble: Option<String>,
}

impl Worker {
    pub(super) fn new(settings: &ObjectSettings, clock: Clock) -> Self {
        let retention = ObjectRetention {
            max_age_ms: settings.keep.map_or(u64::MAX, |keep| keep.as_millis() as u64),
            max_objects: settings.keep_objects,
            max_bytes: settings.keep_bytes,
        };
        Self { store: None, dir: settings.dir.clone(), retention, clock, trouble: None }
    }

    /// Works until nobody is left to ask.
    pub(super) async fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        // What is too old goes now, and what is wrong is in the log.
        let _ = self.ready();
        let mut round = Vec::new();
        loop {
            match tokio::time::timeout(EXPIRY_INTERVAL, queue.recv_many(&mut round, OBJECT_COMMANDS)).await {
                Ok(0) => return,
                Ok(_) => self.round(std::mem::take(&mut round)),
                Err(_) => self.expire(),
            }
        }
    }

    fn round(&mut self, commands: Vec<Command>) {
        let (mut objects, mut replies) = (Vec::new(), Vec::new());
        for command in commands {
            match command {
                Command::Put(_, reply) if reply.is_closed() => {}
                Command::Put(new, reply) => {
                    objects.extend(new);
                    replies.push(reply);
                }
                Command::Work(work) => {
                    self.put(&mut objects, &mut replies);
                    work(self.ready());
                }
            }
        }
        self.put(&mut objects, &mut replies);
    }

    /// Puts what was gathered.
    fn put(&mut self, objects: &mut Vec<Object>, replies: &mut Vec<oneshot::Sender<Result<(), Fault>>>) {
        if replies.is_empty() {
            return;
        }
        let objects = std::mem::take(objects);
        let done = self.ready().and_then(|(store, now_ms)| store.put(&objects, now_ms).map_err(failed));
        for reply in replies.drain(..) {
            let _ = reply.send(done.clone());
        }
    }

    fn expire(&mut self) {
        if self.store.is_none() {
            return;
        }
        if let Err(Fault { message: why, .. }) = self.ready() {
            tracing::warn!(why, "old objects could not be deleted");
        }
    }

    /// The store without what is too old, and the time; it is opened if it is not.
    fn ready(&mut self) -> Result<(&mut ObjectStore, u64), Fault> {
        let now_ms = self.clock.unix_ms();
        let Some(dir) = &self.dir else {
            let message = "nothing is kept for clients: set objects.dir or kv.dir".to_owned();
            return Err(Fault { code: ErrorCode::Invalid, message });
        };
        if self.store.is_none() {
            match ObjectStore::open(dir, self.retention, now_ms) {
                Ok(store) => (self.store, self.trouble) = (Some(store), None),
                Err(error) => {
                    let why = error.to_string();
                    if self.trouble.as_ref() != Some(&why) {
                        tracing::error!(why, "what clients put down cannot be kept or read");
                        self.trouble = Some(why.clone());
                    }
                    return Err(failed(why));
                }
            }
        }
        let store = self.store.as_mut().expect("it was opened");
        store.expire(now_ms).map_err(failed)?;
        Ok((store, now_ms))
    }
}
