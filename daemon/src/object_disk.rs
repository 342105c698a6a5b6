//! The disk of what clients put down and come back for: one OS thread that owns the object store, behind a bounded channel.
//!
//! HTTP's handlers ask; no actor does. Whatever waits when the thread is free becomes one round, in the order in which it
//! was asked; puts that follow on each other are one synced transaction.
//!
//! Invariant: whoever asks waits for a bounded time, [`OBJECT_TIMEOUT`], and holds nothing that others need.
//!
//! Invariant: a store that cannot be used refuses what needs it, with the reason, and the daemon serves everything else. It
//! is tried again with the next request.
//!
//! Invariant: a dead thread ends the daemon, as a dead actor does.

#[cfg(test)]
mod tests;
mod thread;
mod upload;

pub(crate) use upload::Upload;

use crate::clock::Clock;
use crate::config::ObjectSettings;
use crate::limits::{MAX_UPLOADS, OBJECT_COMMANDS, OBJECT_TIMEOUT, RETRY_AFTER};
use crate::pulse::{Organ, Pulses};
use std::sync::Arc;
use thread::{Command, Worker};
use tokio::sync::{Semaphore, mpsc, oneshot};
use zllm_state::{Content, Object, ObjectError, ObjectName, ObjectOrder, ObjectStore};
use zllm_wire::{ErrorCode, Fault};

/// Whose the daemon's own marks are: no client is called so, and what clients put does not push them out.
pub(crate) const DAEMON: &str = "*";

/// The way to the thread, which ends when the last one is dropped.
#[derive(Debug, Clone)]
pub(crate) struct ObjectDisk {
    commands: mpsc::Sender<Command>,
    uploads: Arc<Semaphore>,
}

impl ObjectDisk {
    /// Starts the thread, which opens the store first; that may take as long as the disk likes.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn spawn(settings: &ObjectSettings, clock: Clock, pulses: &Pulses) -> std::io::Result<Self> {
        let (commands, queue) = mpsc::channel(OBJECT_COMMANDS);
        let (worker, alive) = (Worker::new(settings, clock), pulses.guard(Organ::ObjectDiskThread));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        std::thread::Builder::new().name("object-disk".into()).spawn(move || {
            // A panic is a death; the end of a thread that nobody asks any more is none.
            runtime.block_on(worker.run(queue));
            alive.done();
        })?;
        Ok(Self { commands, uploads: Arc::new(Semaphore::new(MAX_UPLOADS)) })
    }

    /// Puts objects, all of them or none: see [`ObjectStore::put`]. What is too much for a tenant makes no sense.
    pub(crate) async fn put(&self, objects: Vec<Object>) -> Result<(), Fault> {
        self.ask(|reply| Command::Put(objects, reply)).await
    }

    /// An object, if it is kept.
    pub(crate) async fn get(&self, name: ObjectName) -> Result<Option<Object>, Fault> {
        self.with(move |store, _| Ok(store.get(&name)?)).await
    }

    /// Deletes an object and its content; whether it was there.
    pub(crate) async fn delete(&self, name: ObjectName) -> Result<bool, Fault> {
        Ok(self.with(move |store, _| Ok(store.delete(&[name])?)).await? == [true])
    }

    /// At most `limit` objects behind the one with the id `after`; `None` when there is none of this id.
    pub(crate) async fn list(
        &self,
        kind: impl Into<String>,
        tenant: String,
        after: Option<String>,
        limit: usize,
        order: ObjectOrder,
    ) -> Result<Option<Vec<Object>>, Fault> {
        let kind = kind.into();
        self.with(move |store, _| Ok(store.list(&kind, &tenant, after.as_deref(), limit, order)?)).await
    }

    /// A piece of an object's content, from 0; `None` when the object is gone.
    pub(crate) async fn piece(&self, content: Content, piece: u32) -> Result<Option<Vec<u8>>, Fault> {
        self.with(move |store, _| Ok(store.piece(content, piece)?)).await
    }

    /// Begins to take in a content.
    ///
    /// # Errors
    /// When as many as there may be are on their way.
    pub(crate) fn upload(&self) -> Result<Upload, Fault> {
        let place = self.uploads.clone().try_acquire_owned().map_err(|_| {
            let retry_after_ms = RETRY_AFTER.end().as_millis() as u64;
            let message = format!("{MAX_UPLOADS} files are being uploaded");
            Fault { code: ErrorCode::Refused { retry_after_ms }, message }
        })?;
        Ok(Upload::new(self.clone(), Some(place)))
    }

    /// The same for one that no client sends: its writer's places are its bound.
    pub(crate) fn upload_of_ours(&self) -> Upload {
        Upload::new(self.clone(), None)
    }

    /// Puts objects with what was taken in for each, and others with none, all of them or none.
    pub(crate) async fn put_uploads(
        &self,
        mut uploads: Vec<(Upload, Object)>,
        mut objects: Vec<Object>,
    ) -> Result<(), Fault> {
        for (upload, object) in &mut uploads {
            upload.append().await?;
            objects.push(Object { content: upload.content, ..object.clone() });
        }
        self.put(objects).await?;
        uploads.iter_mut().for_each(|(upload, _)| upload.content = None);
        Ok(())
    }

    /// Does several things with nobody else in between; the time is given along, in ms since 1970.
    pub(crate) async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut ObjectStore, u64) -> Result<T, ObjectError> + Send + 'static,
    ) -> Result<T, Fault> {
        self.ask(|reply| {
            Command::Work(Box::new(move |store| {
                if reply.is_closed() {
                    return;
                }
                let done = store.and_then(|(store, now_ms)| work(store, now_ms).map_err(fault));
                let _ = reply.send(done);
            }))
        })
        .await
    }

    async fn ask<T>(
        &self,
        make: impl FnOnce(oneshot::Sender<Result<T, Fault>>) -> Command,
    ) -> Result<T, Fault> {
        let (reply, answer) = oneshot::channel();
        let command = make(reply);
        let asked = async {
            self.commands.send(command).await.map_err(|_| failed("the object disk's thread has ended"))?;
            answer.await.map_err(|_| failed("the object disk's thread has ended"))?
        };
        tokio::time::timeout(OBJECT_TIMEOUT, asked).await.unwrap_or_else(|_| {
            let seconds = OBJECT_TIMEOUT.as_secs();
            Err(failed(format!("the disk of what is kept for clients has not answered for {seconds} s")))
        })
    }
}

fn failed(message: impl ToString) -> Fault {
    Fault { code: ErrorCode::Failed, message: message.to_string() }
}

/// What the store's error is to whoever asked.
fn fault(error: ObjectError) -> Fault {
    match error {
        ObjectError::TooMuch { what, .. } => {
            let message = format!("{error}: objects.tenant_{what} is the bound");
            Fault { code: ErrorCode::Invalid, message }
        }
        ObjectError::Database(error) => failed(error),
    }
}
