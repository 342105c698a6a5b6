//! The thread: it opens the stores, then takes whatever waits and does it in one round.

use super::logs::{Left, Logs, NewStep};
use super::record::{StoredResult, encode_result};
use super::{DiskFigures, NumberedEvents, Opened, StoredJob};
use crate::clock::Clock;
use crate::limits::{EXPIRY_INTERVAL, JOB_DISK_COMMANDS};
use std::collections::HashMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use tokio::sync::oneshot;
use zllm_state::{JobChange, JobRecord, JobStore, OpenedJobs, Retention, Submitted};
use zllm_wire::Event;

/// Where a caller waits. One that waits no more is passed over.
pub(super) type Reply<T> = oneshot::Sender<Result<T, String>>;

/// What the thread is asked.
pub(super) enum Command {
    Submit(Box<JobRecord>, Reply<Submitted>),
    Append(NewStep, Reply<()>),
    /// With the events that are not stored yet, if the job ends.
    Change(JobChange, Option<NumberedEvents>, Reply<()>),
    Read(Look),
}

/// A question, which answers for itself.
type Look = Box<dyn FnOnce(Result<&mut Worker, String>) + Send>;

/// The stores.
pub(super) struct Worker {
    store: JobStore,
    logs: Logs,
    /// The result that was read last, with its job: readers come for one piece after the other.
    last_read: Option<(u64, StoredResult)>,
    figures: DiskFigures,
    /// Jobs that are gone since somebody asked.
    expired: Vec<u64>,
    clock: Clock,
}

/// Opens, and then works until nobody is left to ask.
pub(super) fn run(
    dir: &Path,
    retention: Retention,
    clock: Clock,
    queue: Receiver<Command>,
    opened: oneshot::Sender<Result<Opened, String>>,
) {
    let mut worker = match Worker::open(dir, retention, clock) {
        Ok((worker, jobs)) => {
            let _ = opened.send(Ok(jobs));
            worker
        }
        Err(why) => {
            let _ = opened.send(Err(why.clone()));
            return queue.iter().for_each(|command| command.refuse(&why));
        }
    };
    loop {
        match queue.recv_timeout(EXPIRY_INTERVAL) {
            Ok(first) => {
                let others = queue.try_iter().take(JOB_DISK_COMMANDS - 1);
                worker.round(std::iter::once(first).chain(others));
            }
            Err(RecvTimeoutError::Timeout) => worker.expire(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Command {
    /// Answers that it is not done.
    fn refuse(self, why: &str) {
        let why = why.to_owned();
        match self {
            Self::Submit(_, reply) => drop(reply.send(Err(why))),
            Self::Append(_, reply) | Self::Change(_, _, reply) => drop(reply.send(Err(why))),
            Self::Read(look) => look(Err(why)),
        }
    }
}

/// As in [`Command::Change`].
type AskedChange = (JobChange, Option<NumberedEvents>, Reply<()>);

/// Jobs of a round that did not come as far as they should have, and why: what else is asked of them is not done either.
type Troubled = HashMap<u64, String>;

impl Worker {
    /// Opens both stores and reads what unfinished jobs left.
    pub(super) fn open(dir: &Path, retention: Retention, clock: Clock) -> Result<(Self, Opened), String> {
        let (store, found) =
            JobStore::open(dir, retention, clock.unix_ms()).map_err(|error| error.to_string())?;
        let OpenedJobs { unfinished, last_number } = found;
        let numbers: Vec<u64> = unfinished.iter().map(|record| record.number).collect();
        let (logs, mut left) = Logs::open(dir, &numbers)?;
        let stored = |record: JobRecord| {
            let Left { tokens, started, events } = left.remove(&record.number).unwrap_or_default();
            StoredJob { record, tokens, started, events }
        };
        let jobs = unfinished.into_iter().map(stored).collect();
        let worker = Self {
            store,
            logs,
            last_read: None,
            figures: DiskFigures::default(),
            expired: Vec::new(),
            clock,
        };
        Ok((worker, Opened { jobs, last_number }))
    }

    /// Carries out commands that came while the last round was under way: new jobs, appends, changes, reads.
    pub(super) fn round(&mut self, commands: impl Iterator<Item = Command>) {
        let (mut submits, mut appends, mut changes, mut reads) = (vec![], vec![], vec![], vec![]);
        for command in commands {
            match command {
                Command::Submit(record, reply) => submits.push((*record, reply)),
                Command::Append(step, reply) => appends.push((step, reply)),
                Command::Change(change, rest, reply) => changes.push((change, rest, reply)),
                Command::Read(look) => reads.push(look),
            }
        }
        let mut troubled = Troubled::new();
        self.submit(submits, &mut troubled);
        self.append(appends, &mut troubled);
        self.change(changes, &troubled);
        for look in reads {
            look(Ok(self));
        }
    }

    fn submit(&mut self, submits: Vec<(JobRecord, Reply<Submitted>)>, troubled: &mut Troubled) {
        if submits.is_empty() {
            return;
        }
        let (records, replies): (Vec<_>, Vec<_>) = submits.into_iter().unzip();
        self.figures.transactions += 1;
        let outcome = self.store.submit(&records).map_err(|error| error.to_string());
        for (at, (record, reply)) in records.iter().zip(replies).enumerate() {
            let submitted = outcome.as_ref().map(|submitted| submitted[at]);
            match submitted {
                Ok(Submitted::New) => {}
                Ok(Submitted::Known(first)) => {
                    let why = format!("it is not stored: its key is that of job j-{first:016x}");
                    troubled.insert(record.number, why);
                }
                Err(why) => drop(troubled.insert(record.number, why.clone())),
            }
            let _ = reply.send(submitted.map_err(Clone::clone));
        }
    }

    fn append(&mut self, appends: Vec<(NewStep, Reply<()>)>, troubled: &mut Troubled) {
        let (mut steps, mut replies) = (Vec::new(), Vec::new());
        for (step, reply) in appends {
            match troubled.get(&step.job) {
                Some(why) => drop(reply.send(Err(why.clone()))),
                None => {
                    replies.push((step.job, reply));
                    steps.push(step);
                }
            }
        }
        if steps.is_empty() {
            return;
        }
        self.figures.flushes += 1;
        let outcome = self.logs.append(steps);
        for (job, reply) in replies {
            if let Err(why) = &outcome {
                troubled.insert(job, why.clone());
            }
            let _ = reply.send(outcome.clone());
        }
    }

    fn change(&mut self, asked: Vec<AskedChange>, troubled: &Troubled) {
        let (mut changes, mut replies, mut ended) = (Vec::new(), Vec::new(), Vec::new());
        for (mut change, rest, reply) in asked {
            let sound = troubled.get(&change.number).map_or(Ok(()), |why| Err(why.clone()));
            let result = sound.and_then(|()| rest.map(|rest| self.result(change.number, rest)).transpose());
            match result {
                Ok(result) => {
                    ended.extend(result.is_some().then_some(change.number));
                    change.result = result;
                    changes.push(change);
                    replies.push(reply);
                }
                Err(why) => drop(reply.send(Err(why))),
            }
        }
        if changes.is_empty() {
            return;
        }
        self.figures.transactions += 1;
        let outcome = self.store.change(&changes).map_err(|error| error.to_string());
        if let Ok(expired) = &outcome {
            self.forget(expired);
            if let Err(why) = self.logs.remove(&ended) {
                // The next start finds that they have ended, and removes them.
                tracing::warn!(why, "tokens of ended jobs could not be removed");
            }
        }
        for reply in replies {
            let _ = reply.send(outcome.as_ref().map(|_| ()).map_err(Clone::clone));
        }
    }

    /// All events of a job that ends.
    fn result(&mut self, job: u64, rest: NumberedEvents) -> Result<Vec<u8>, String> {
        let is_all = rest.first().is_none_or(|(offset, _)| *offset == 0);
        let mut events = if is_all { Vec::new() } else { self.logs.events(job, 0, usize::MAX)? };
        for (offset, event) in rest {
            assert_eq!(offset, events.len() as u64, "job {job:016x}: an event follows on the last one");
            events.push(event);
        }
        encode_result(&events)
    }

    /// Lets go of old jobs, and of what was read: nobody has asked for a while.
    fn expire(&mut self) {
        self.last_read = None;
        match self.store.expire(self.clock.unix_ms()) {
            Ok(expired) => self.forget(&expired),
            Err(error) => tracing::warn!(%error, "old jobs could not be deleted"),
        }
    }

    fn forget(&mut self, expired: &[u64]) {
        self.expired.extend(expired);
        if self.last_read.as_ref().is_some_and(|(job, _)| expired.contains(job)) {
            self.last_read = None;
        }
    }

    pub(super) fn take_expired(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.expired)
    }

    pub(super) fn events(&mut self, job: u64, from: u64, max: usize) -> Result<Vec<Event>, String> {
        if self.logs.has(job) {
            return self.logs.events(job, from, max);
        }
        let result = self.stored_result(job)?;
        result.map_or(Ok(Vec::new()), |result| result.events(from, max))
    }

    fn stored_result(&mut self, job: u64) -> Result<Option<&StoredResult>, String> {
        if self.last_read.as_ref().is_none_or(|(of, _)| *of != job) {
            let bytes = self.store.result(job).map_err(|error| error.to_string())?;
            let Some(bytes) = bytes else { return Ok(None) };
            self.last_read = Some((job, StoredResult::new(bytes)?));
        }
        Ok(self.last_read.as_ref().map(|(_, result)| result))
    }

    pub(super) fn record(&mut self, job: u64) -> Result<Option<JobRecord>, String> {
        self.store.record(job).map_err(|error| error.to_string())
    }

    pub(super) fn find(&mut self, tenant: &str, key: &str) -> Result<Option<u64>, String> {
        self.store.find(tenant, key).map_err(|error| error.to_string())
    }

    pub(super) fn latest(&mut self, before: Option<u64>, limit: usize) -> Result<Vec<JobRecord>, String> {
        self.store.latest(before, limit).map_err(|error| error.to_string())
    }

    #[cfg(test)]
    pub(super) fn figures(&self) -> DiskFigures {
        DiskFigures {
            store_bytes: self.store.file_bytes(),
            log_bytes: self.logs.disk_bytes(),
            ..self.figures
        }
    }
}
