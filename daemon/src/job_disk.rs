//! The disk of the durable jobs: one OS thread that owns the job store and the token log, behind a bounded channel.
//!
//! Whatever waits when the thread is free becomes one round: one synced transaction for all new jobs, one flush for all
//! that running jobs append, one transaction for all changes, in this order; then reads. So the disk's latency is shared by
//! all that wait for it, and each caller is answered for itself when its own part is durable.
//!
//! Invariant: nobody waits to ask. A full channel refuses at once.
//!
//! Invariant: an error answers every caller of that transaction: none of it has happened. The thread goes on, and the
//! stores open again by themselves.
//!
//! Invariant: a dead thread ends the daemon, as a dead actor does. One that hangs in the disk does not: whoever does not
//! need it is served meanwhile.

mod logs;
mod record;
#[cfg(test)]
mod tests;
mod thread;

pub(crate) use record::{Ending, Summary, TokenEntry, decode_request, encode_request};

use crate::clock::Clock;
use crate::limits::{JOB_DISK_COMMANDS, LOG_READ_PAUSE, LOG_READ_TRIES};
use crate::pulse::{Organ, Pulses};
use logs::NewStep;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use thread::{Command, Reply, Worker};
use tokio::sync::oneshot::{self, Receiver};
use zllm_state::{JobChange, JobRecord, Retention, Submitted};
use zllm_wire::Event;

/// The way to the thread, which ends when the last one is dropped.
#[derive(Debug, Clone)]
pub(crate) struct JobDisk {
    commands: SyncSender<Command>,
}

/// Events with their offsets in their job's log, each one more than the one before.
pub(crate) type NumberedEvents = Vec<(u64, Event)>;

/// What was there when the disk was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The jobs that have not ended, the oldest first.
    pub(crate) jobs: Vec<StoredJob>,
    /// The highest number that a job ever had; 0 if there was none.
    pub(crate) last_number: u64,
}

/// A job that has not ended.
#[derive(Debug)]
pub(crate) struct StoredJob {
    pub(crate) record: JobRecord,
    /// All that it has drawn, in the order of drawing; those of one answer are in the answer's order.
    pub(crate) tokens: Vec<TokenEntry>,
    /// Its `Started` event, if it has begun.
    pub(crate) started: Option<Event>,
    /// How many events are stored; the next one has this offset.
    pub(crate) events: u64,
}

/// What the disk has done since it was opened, and what it takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DiskFigures {
    /// Synced transactions of the job store.
    pub(crate) transactions: u64,
    /// Flushes of the token log.
    pub(crate) flushes: u64,
    /// Bytes of the job store.
    pub(crate) store_bytes: u64,
    /// Bytes of the token log.
    pub(crate) log_bytes: u64,
}

impl JobDisk {
    /// Starts the thread, which opens what is in `dir` first; that may take as long as the disk likes. The receiver hears what
    /// was there, or why there is no durable queue; in that case the disk answers every call so.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn spawn(
        dir: PathBuf,
        retention: Retention,
        clock: Clock,
        pulses: &Pulses,
    ) -> std::io::Result<(Self, Receiver<Result<Opened, String>>)> {
        let (commands, queue) = sync_channel(JOB_DISK_COMMANDS);
        let (opened, answer) = oneshot::channel();
        let alive = pulses.guard(Organ::JobDiskThread);
        std::thread::Builder::new().name("job-disk".into()).spawn(move || {
            // Outlives the queue: whoever asks after the death was reported is refused. A panic is a death; the end of a
            // thread that nobody asks any more is none.
            thread::run(&dir, retention, clock, queue, opened);
            alive.done();
        })?;
        Ok((Self { commands }, answer))
    }

    /// Stores a job, unless its tenant has one with its key.
    pub(crate) fn submit(&self, record: JobRecord) -> Receiver<Result<Submitted, String>> {
        self.ask(|reply| Command::Submit(Box::new(record), reply))
    }

    /// Appends drawn tokens and events to a job's log, together; events have the offsets that follow on those stored.
    pub(crate) fn append(
        &self,
        job: u64,
        tokens: Vec<TokenEntry>,
        events: NumberedEvents,
    ) -> Receiver<Result<(), String>> {
        self.ask(|reply| Command::Append(NewStep { job, tokens, events }, reply))
    }

    /// Changes a job that goes on.
    ///
    /// # Panics
    /// When it is a change to an end, which is [`Self::finish`]'s.
    pub(crate) fn change(&self, change: JobChange) -> Receiver<Result<(), String>> {
        assert!(!change.state.is_some_and(|state| state.is_terminal()), "a job ends with a result");
        self.ask(|reply| Command::Change(change, None, reply))
    }

    /// Ends a job: its result is all its events, those that are stored and `rest`, whose offsets follow on them; or `rest`
    /// alone, when it begins at 0. The job's tokens are forgotten.
    ///
    /// # Panics
    /// When it is no change to an end.
    pub(crate) fn finish(&self, change: JobChange, rest: NumberedEvents) -> Receiver<Result<(), String>> {
        assert!(change.state.is_some_and(|state| state.is_terminal()), "only an end has a result");
        self.ask(|reply| Command::Change(change, Some(rest), reply))
    }

    /// At most `max` events of a job, ended or not, from number `from` on; none behind its last.
    #[cfg(test)]
    pub(crate) fn events(&self, job: u64, from: u64, max: usize) -> Receiver<Result<Vec<Event>, String>> {
        self.read(move |worker| worker.events(job, from, max))
    }

    /// All that is kept of a job but its result.
    pub(crate) fn record(&self, job: u64) -> Receiver<Result<Option<JobRecord>, String>> {
        self.read(move |worker| worker.record(job))
    }

    /// The jobs that are not kept any more, since this was asked last.
    pub(crate) fn take_expired(&self) -> Receiver<Result<Vec<u64>, String>> {
        self.read(|worker| Ok(worker.take_expired()))
    }

    /// The number of a tenant's job with this key.
    pub(crate) fn find(&self, tenant: String, key: String) -> Receiver<Result<Option<u64>, String>> {
        self.read(move |worker| worker.find(&tenant, &key))
    }

    /// At most `limit` jobs with numbers below `before`, the newest first, without prompts and requests.
    pub(crate) fn latest(
        &self,
        before: Option<u64>,
        limit: usize,
    ) -> Receiver<Result<Vec<JobRecord>, String>> {
        self.read(move |worker| worker.latest(before, limit))
    }

    /// What the disk has done.
    #[cfg(test)]
    pub(crate) fn figures(&self) -> Receiver<Result<DiskFigures, String>> {
        self.read(|worker| Ok(worker.figures()))
    }

    /// At most `max` events of a job, ended or not, from number `from` on; none behind its last. Waits for its place in the
    /// channel.
    pub(crate) async fn read_log(&self, job: u64, from: u64, max: usize) -> Result<Vec<Event>, String> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.try_read(move |worker| worker.events(job, from, max)) {
                Ok(answer) => return answer.await.unwrap_or_else(|_| Err(ENDED.to_owned())),
                Err(TrySendError::Full(_)) if tries < LOG_READ_TRIES => {
                    tokio::time::sleep(LOG_READ_PAUSE).await
                }
                Err(refused) => return Err(why_not(&refused)),
            }
        }
    }

    fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Worker) -> Result<T, String> + Send + 'static,
    ) -> Receiver<Result<T, String>> {
        self.try_read(look).unwrap_or_else(refusal)
    }

    fn try_read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Worker) -> Result<T, String> + Send + 'static,
    ) -> Result<Receiver<Result<T, String>>, Refused> {
        self.try_ask(|reply| {
            Command::Read(Box::new(move |worker| {
                let _ = reply.send(worker.and_then(look));
            }))
        })
    }

    /// Puts a command into the channel; a refusal is in the receiver at once.
    fn ask<T>(&self, make: impl FnOnce(Reply<T>) -> Command) -> Receiver<Result<T, String>> {
        self.try_ask(make).unwrap_or_else(refusal)
    }

    fn try_ask<T>(
        &self,
        make: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<Receiver<Result<T, String>>, Refused> {
        let (reply, answer) = oneshot::channel();
        self.commands.try_send(make(reply)).map(|()| answer)
    }

    /// A disk whose thread never comes to its queue; it has ended when the queue is dropped.
    #[cfg(test)]
    pub(crate) fn unattended() -> (Self, impl Sized) {
        let (commands, queue) = sync_channel(JOB_DISK_COMMANDS);
        (Self { commands }, queue)
    }
}

/// A command that found no place.
type Refused = TrySendError<Command>;

/// Why an answer may never come.
const ENDED: &str = "the job disk's thread has ended";

fn why_not(refused: &Refused) -> String {
    match refused {
        TrySendError::Full(_) => {
            format!("the job disk has {JOB_DISK_COMMANDS} commands waiting; try again later")
        }
        TrySendError::Disconnected(_) => ENDED.to_owned(),
    }
}

/// A receiver that has its answer already.
fn refusal<T>(refused: Refused) -> Receiver<Result<T, String>> {
    let (reply, answer) = oneshot::channel();
    let _ = reply.send(Err(why_not(&refused)));
    answer
}
