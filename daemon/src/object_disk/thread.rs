//! The thread: it opens the store, then takes whatever waits and does it in its order.

use super::{failed, fault};
use crate::clock::Clock;
use crate::config::ObjectSettings;
use crate::limits::{EXPIRY_INTERVAL, OBJECT_COMMANDS};
use std::path::PathBuf;
use tokio::sync::{mpsc, oneshot};
use zllm_state::{Object, ObjectRetention, ObjectStore};
use zllm_wire::{ErrorCode, Fault};

/// What the thread is asked. A caller that waits no more is passed over.
pub(super) enum Command {
    Put(Vec<Object>, Reply),
    Work(Work),
}

type Reply = oneshot::Sender<Result<(), Fault>>;

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
            tenant_objects: settings.tenant_objects,
            tenant_bytes: settings.tenant_bytes,
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
                    replies.push((new.len(), reply));
                    objects.extend(new);
                }
                Command::Work(work) => {
                    self.put(&mut objects, &mut replies);
                    work(self.ready());
                }
            }
        }
        self.put(&mut objects, &mut replies);
    }

    /// Puts what was gathered: together, or where that is too much for a tenant each caller's objects for themselves.
    fn put(&mut self, objects: &mut Vec<Object>, replies: &mut Vec<(usize, Reply)>) {
        if replies.is_empty() {
            return;
        }
        let objects = std::mem::take(objects);
        let together = self.store(&objects);
        let is_refused = matches!(&together, Err(Fault { code: ErrorCode::Invalid, .. }));
        let mut rest = &objects[..];
        for (count, reply) in replies.drain(..) {
            let (own, others) = rest.split_at(count);
            rest = others;
            let _ = reply.send(if is_refused { self.store(own) } else { together.clone() });
        }
    }

    fn store(&mut self, objects: &[Object]) -> Result<(), Fault> {
        let (store, now_ms) = self.ready()?;
        store.put(objects, now_ms).map_err(fault)
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
